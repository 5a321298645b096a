"""The objects of the universe, by name: made anew for every call, since programs may change them, or always the same."""
from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import math
import operator
import pathlib
import re
import string
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.subclasses import ByteArray, Bytes, Complex, Deque, Dict, Float, FrozenSet, Int, List, Ordered, Set, Tuple
from tests.universe.classes import (
    Arithmetic,
    Attributes,
    BadBool,
    BadContainer,
    BadFormat,
    BadIndex,
    BadIterable,
    BadLength,
    Bare,
    Callable_,
    ClassOfItsOwn,
    Container,
    Context,
    Data,
    Declining,
    Descriptor,
    EqualToAll,
    EqualToNone,
    EqualToTwo,
    False_,
    Frozen,
    Generating,
    HasComplex,
    HasFloat,
    HasFormat,
    Hashed,
    HasInt,
    HasRepr,
    HasStr,
    Index,
    Iterable,
    Iterator,
    Length,
    LongSequence,
    Mapping,
    Matched,
    NoLength,
    NotIterable,
    Ordered_,
    Plain,
    Raising,
    RaisingBool,
    Sequence,
    Slotted,
    Str,
    SubclassText,
    True_,
    Unequal,
    Unhashable,
    WithMeta,
)

Make = Callable[[], Any]
OBJECTS: dict[str, Make] = {}


def add(**factories: Make) -> None:
    assert not OBJECTS.keys() & factories.keys()
    OBJECTS.update(factories)


def add_values(**values: Any) -> None:
    """Adds objects that nothing can change."""
    add(**{name: functools.partial(_same, value) for name, value in values.items()})


def _same(value: Any) -> Any:
    return value


# -- scalars -----------------------------------------------------------------------------------------------------------

add_values(zero=0, one=1, two=2, three=3, seven=7, minus=-1, hundred=100, large=-10**20, true=True, false=False, none=None,
           dots=Ellipsis, declined=NotImplemented, half=0.5, two_float=2.0, minus_zero=-0.0, zero_float=0.0, infinity=math.inf,
           complex_two=2 + 0j, imaginary=1.5j, empty_text="", a="a", b="b", abc="abc", digits="12", two_text="2", spec=">5",
           sentence="a b,c", percent="%s", braces="{}", real="real", upper="upper", wide="äß", bytes_a=b"a", bytes_abc=b"abc",
           no_bytes=b"", nothing=range(0), ten=range(10), two_range=range(2), by_two=range(0, 4, 2))
add(nan=lambda: float("nan"))
add_values(one_nan=math.nan)


# -- enums -------------------------------------------------------------------------------------------------------------

class Colour(enum.Enum):
    RED = 1
    BLUE = 2
    NAVY = 2


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Text(enum.StrEnum):
    A = "a"
    B = "b"


class Mixed(str, enum.Enum):
    A = "a"
    TWO = "2"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mask(enum.IntFlag):
    LOW = 1
    HIGH = 2


class Equal(enum.Enum):
    """An enum with an equality of its own."""

    ONE = 1
    TWO = 2

    def __eq__(self, other: object) -> bool:
        return other == self.value

    def __hash__(self) -> int:
        return hash(self.value)


class Half(float, enum.Enum):
    HALF = 0.5
    TWO = 2.0


class Shown(enum.Enum):
    TWO = 2

    def __str__(self) -> str:
        return "shown"

    def __bool__(self) -> bool:
        return False

    def __index__(self) -> int:
        return 2


for _cls in (Colour, Number, Text, Mixed, Access, Mask, Equal, Half, Shown):
    for _member in _cls:
        add_values(**{f"{_cls.__name__}_{_member.name}": _member})
add_values(Access_both=Access.READ | Access.WRITE, Access_none=Access(0), Mask_three=Mask(3))


# -- subclasses of builtins --------------------------------------------------------------------------------------------

class LoudInt(int):
    """A number with methods of its own."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 2

    def __format__(self, spec: str) -> str:
        return f"loud {spec}"

    def __bool__(self) -> bool:
        return False

    def __add__(self, other: Any) -> Any:
        return "added"

    def __radd__(self, other: Any) -> Any:
        return "added to"

    def __index__(self) -> int:
        return 1

    def __lt__(self, other: object) -> Any:
        return "less"


class LoudStr(str):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 3

    def __str__(self) -> str:
        return "loud"

    def __len__(self) -> int:
        return 0

    def __contains__(self, item: object) -> bool:
        return True

    def __mod__(self, other: Any) -> Any:
        return "formatted"

    def upper(self) -> str:
        return "own"


class Formatted(str):
    def __format__(self, spec: str) -> str:
        return "own format"


class LoudFloat(float):
    def __repr__(self) -> str:
        return "loud float"

    def __mul__(self, other: Any) -> Any:
        return None

    def __neg__(self) -> Any:
        return "negative"


class LoudList(list):
    def __iter__(self) -> Any:
        return iter("own")

    def __len__(self) -> int:
        return 7

    def __contains__(self, item: object) -> bool:
        return False

    def __getitem__(self, key: Any) -> Any:
        return "item"


class LoudTuple(tuple):
    def __iter__(self) -> Any:
        return iter((7, 8))

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 5


class LoudDict(dict):
    def __missing__(self, key: Any) -> Any:
        return "missing"

    def __contains__(self, key: object) -> bool:
        return True

    def keys(self) -> Any:
        return ["a"]


class LoudSet(set):
    def __contains__(self, item: object) -> bool:
        return True

    def __or__(self, other: Any) -> Any:
        return "or"


Pair = collections.namedtuple("Pair", "a b")

add(Int=lambda: Int(2), Int_zero=lambda: Int(0), Float=lambda: Float(2.0), Complex=lambda: Complex(2), Str=lambda: Str("a"),
    Str_empty=lambda: Str(), Str_two=lambda: Str("2"), Bytes=lambda: Bytes(b"a"), List=lambda: List([2, 3]), List_empty=List,
    Tuple=lambda: Tuple((2, 3)), Dict=lambda: Dict(a=2), Dict_empty=Dict, Set=lambda: Set({2, 3}), FrozenSet=lambda: FrozenSet({2}),
    ByteArray=lambda: ByteArray(b"a"), Deque=lambda: Deque([2]), Ordered=lambda: Ordered(a=2), LoudInt=lambda: LoudInt(5),
    LoudStr=lambda: LoudStr("z"), Formatted=lambda: Formatted("a"), LoudFloat=lambda: LoudFloat(2.0),
    LoudList=lambda: LoudList([2, 3]), LoudTuple=lambda: LoudTuple((2, 3)), LoudDict=lambda: LoudDict(a=2),
    LoudSet=lambda: LoudSet({2}), Pair=lambda: Pair(2, 3), Pair_text=lambda: Pair("a", "b"))


# -- containers --------------------------------------------------------------------------------------------------------

add(list_empty=list, list_two=lambda: [2], list_numbers=lambda: [3, 1, 2], list_text=lambda: ["a", "b"],
    list_mixed=lambda: [2, "a"],
    list_pairs=lambda: [("a", 1), (2, 3)], list_nested=lambda: [[1], [2]], list_nan=lambda: [math.nan],
    dict_empty=dict, dict_a=lambda: {"a": 2}, dict_two=lambda: {2: "a", "b": 7}, dict_spec=lambda: {"sep": "-"},
    set_empty=set, set_two=lambda: {2}, set_numbers=lambda: {1, 2, 3}, set_text=lambda: {"a"},
    bytearray_a=lambda: bytearray(b"a"), deque_two=lambda: collections.deque([2, 3]), default=lambda: collections.defaultdict(list),
    counter=lambda: collections.Counter("aab"), chain_map=lambda: collections.ChainMap({"a": 2}, {"b": 3}),
    user_list=lambda: collections.UserList([2]), user_dict=lambda: collections.UserDict(a=2), view=lambda: {"a": 2}.keys(),
    values=lambda: {"a": 2}.values(), items=lambda: {"a": 2}.items(), proxy=lambda: types.MappingProxyType({"a": 2}),
    iterator=lambda: iter([2, 3]), text_iterator=lambda: iter("ab"), zipped=lambda: zip("ab", (1, 2)), mapped=lambda: map(str, [1]),
    counting=lambda: itertools.repeat(2, 3), generator=lambda: (n for n in (2, 3)), enumerated=lambda: enumerate("ab"),
    reversed_=lambda: reversed([2, 3]), list_tensor=lambda: [torch.tensor(2.0)], memory=lambda: memoryview(b"abc"))
add_values(tuple_empty=(), tuple_two=(2,), tuple_numbers=(2, 3), tuple_text=("a", "b"), tuple_nested=((1, 2), (3, 4)),
           tuple_types=(int, str), frozenset_two=frozenset({2}), frozenset_empty=frozenset(), slice_two=slice(2),
           slice_all=slice(None), tuple_nan=(math.nan,))


# -- objects with and without special methods --------------------------------------------------------------------------

for _cls in (Plain, Slotted, EqualToAll, EqualToNone, EqualToTwo, Unequal, Declining, Hashed, Unhashable, HasFormat, BadFormat,
             HasStr, HasRepr, SubclassText, Index, BadIndex, HasInt, HasFloat, HasComplex, True_, False_, BadBool, RaisingBool,
             Length, NoLength, BadLength, Iterable, Generating, BadIterable, NotIterable, Iterator, Sequence, LongSequence,
             Container, BadContainer, Mapping, Callable_, Context, Descriptor, Attributes, Arithmetic, Ordered_, Raising,
             ClassOfItsOwn, WithMeta, Data, Frozen, Matched):
    add(**{f"an_{_cls.__name__}": _cls})
add(error=lambda: ValueError("a", 2), key_error=lambda: KeyError("a"), bare=Bare, namespace=lambda: types.SimpleNamespace(a=2),
    stop=StopIteration)


# -- functions, classes and modules ------------------------------------------------------------------------------------

def function(*args: Any) -> Any:
    return args


def other_function(a: Any = 2) -> Any:
    return a


def generates() -> Any:
    yield 2


shared = Plain()
add_values(function=function, other_function=other_function, generates=generates, builtin=len, other_builtin=abs,
           method_of_c=str.upper, bound_of_c="abc".upper, int_class=int, str_class=str,
           list_class=list, type_class=type, object_class=object, Plain_class=Plain,
           Int_class=Int, Colour_class=Colour, meta_class=WithMeta, error_class=ValueError, bare_class=Bare, math_module=math,
           torch_module=torch, string_module=string, partial_class=functools.partial, generic=list[int], union=int | str,
           getter=operator.attrgetter("real"), shared=shared, code=function.__code__, wrapper=int.__add__,
           pattern=re.compile("a"), fraction=fractions.Fraction(2), path=pathlib.PurePosixPath("a"), date=datetime.date(2020, 1, 2),
           delta=datetime.timedelta(2), decimal_two=decimal.Decimal(2), property_=property(function), static=staticmethod(function))
add(closure=lambda: lambda *args: "closure", partial=lambda: functools.partial(function, 2), bound=lambda: Callable_().__call__,
    reference=lambda: weakref.ref(shared), cached=lambda: functools.lru_cache(function))


# -- torch and numpy ---------------------------------------------------------------------------------------------------

add_values(float32=torch.float32, int64=torch.int64, cpu=torch.device("cpu"), size=torch.Size((2, 3)), size_two=torch.Size((2,)),
           strided=torch.strided)
add(tensor_two=lambda: torch.tensor(2), tensor_float=lambda: torch.tensor(2.0), tensor_true=lambda: torch.tensor(True),
    tensor_false=lambda: torch.tensor(False), tensor_vector=lambda: torch.tensor([2.0, 3.0, 4.0]),
    tensor_ints=lambda: torch.tensor([0, 1, 2]), tensor_mask=lambda: torch.tensor([True, False, True]),
    tensor_empty=lambda: torch.zeros(0), tensor_matrix=lambda: torch.arange(9.0).reshape(3, 3),
    tensor_double=lambda: torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64), tensor_complex=lambda: torch.tensor(2j),
    tensor_leaf=lambda: torch.ones(3, requires_grad=True), parameter=lambda: torch.nn.Parameter(torch.ones(3)),
    linear=lambda: torch.nn.Identity(), generator_torch=lambda: torch.Generator(),
    array=lambda: np.array([2.0, 3.0, 4.0]), array_ints=lambda: np.array([0, 1, 2]), array_zero=lambda: np.array(2),
    array_text=lambda: np.array(["a", "b"]), array_empty=lambda: np.zeros(0),
    array_objects=lambda: np.array([2, "a"], dtype=object))
add_values(np_int=np.int64(2), np_int32=np.int32(2), np_float=np.float64(2.0), np_float32=np.float32(2.0), np_true=np.True_,
           np_false=np.False_, np_str=np.str_("a"), np_bytes=np.bytes_(b"a"), np_complex=np.complex128(2),
           np_dtype=np.dtype("int64"), np_class=np.int64, np_nan=np.float64("nan"), np_date=np.datetime64("2020-01-02"))

NAMES = tuple(OBJECTS)


def make(name: str) -> Any:
    """The object of a name."""
    return OBJECTS[name]()
