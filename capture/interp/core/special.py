"""Special methods: whether an operation on an object would run Python code. Both models and polyfills ask."""
from __future__ import annotations

import collections
import enum
import itertools
import types
import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from capture._C import is_a
from capture.refgraph.identical import Classes, contents_in_c, is_one_of
from capture.refgraph.keys import asks_keys
from capture.refgraph.lookup import MISSING, has, is_mutable, lookup_class, parts
from capture.refgraph.memory import is_overriding
from capture.refgraph.ndarrays import is_all_content, is_array
from capture.refgraph.node import SCALARS
from capture.refgraph.source import IMMUTABLE_TYPE
from capture.refgraph.state_queries import keys_of
from capture.refgraph.value_types import is_record

C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType,
             types.ClassMethodDescriptorType,
             types.GetSetDescriptorType, types.MemberDescriptorType, type(SDPBackend.__dict__["__eq__"]))
# Immutable values of torch, which compare and print by what they are.
PLAIN = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, SDPBackend)
# What C code asks of an object's class without a word in the program.
PROTOCOLS = tuple(f"__{name}__" for name in (
    "bool len iter next contains getitem setitem delitem reversed eq ne lt le gt ge hash str repr format index int "
    "float call").split())
WALKING = ("__iter__", "__len__", "__getitem__")
COMPARING = tuple(f"__{name}__" for name in "eq ne lt le gt ge hash".split())
# All that C code asks of builtin data, or of what derives from it, to take it for what it is.
ARITHMETIC = frozenset(f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in (
    "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or").split())
OF_DATA = dict.fromkeys((*PROTOCOLS, *(f"__{name}__" for name in (
    "complex bytes fspath missing length_hint trunc round floor ceil abs neg pos invert "
    "array array_interface array_struct array_ufunc array_priority").split()), *sorted(ARITHMETIC)))
BUILTIN_DATA = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
EXACT_DATA = Classes(BUILTIN_DATA)
VIEWS = (type({}.keys()), type({}.values()), type({}.items()),
         type(collections.OrderedDict().keys()), type(collections.OrderedDict().values()),
         type(collections.OrderedDict().items()))
PLAIN_CONTAINERS = Classes((list, tuple, set, frozenset, collections.deque, *VIEWS))      # equal if their items are
SEQUENCES = (list, collections.deque, bytearray)        # that can be changed
# Containers that C code walks by itself, unless a subclass has an __iter__ of its own.
CONTAINERS = (list, tuple, dict, set, frozenset, range, str, bytes, collections.deque, *VIEWS)
# Iterators of C over these, which run Python code only where what they walk over does.
ITERATORS = (type(iter([])), type(iter(())), type(iter({})), type(iter({}.values())), type(iter({}.items())),
             type(iter(set())), type(iter(range(0))), type(iter(range(1 << 70))), type(iter("")),
             type(iter("\u0100")), type(iter(b"")), type(reversed([])),
             type(reversed({})), type(reversed({}.values())), type(reversed({}.items())), reversed, zip, enumerate,
             type(iter(collections.OrderedDict())), type(iter(collections.deque())),
             type(reversed(collections.deque())),
             itertools.count, itertools.repeat, itertools.islice, itertools.chain, itertools.cycle, itertools.product,
             itertools.permutations, itertools.combinations, itertools.combinations_with_replacement)


def _is_torchs(name: str, method: Any) -> bool:
    """Whether a special method of torch.Tensor is the one that torch, or Python, gave it."""
    if is_a(method, types.FunctionType):
        return method.__globals__["__name__"].startswith("torch.")
    return getattr(method, "__name__", name) == name


# The special methods of tensors, as torch defines them.
OF_TENSORS = {name: method for name in dir(torch.Tensor)
              if name.startswith("__") and _is_torchs(name, method := lookup_class(torch.Tensor, name))}


def in_python(x: Any, name: str) -> bool:
    """Whether the special method `name` of `x` runs Python code, or is None, which forbids it. The methods of torch's own tensors
    do not count, unless a program has replaced them."""
    if type(x) in SCALARS:
        return False
    method = lookup_class(type(x), name, MISSING)
    if is_a(x, torch.Tensor) and not is_overriding(type(x)):
        return method is not OF_TENSORS.get(name, MISSING)
    return method is not MISSING and not is_a(method, C_METHODS) and (method is not None or name != "__hash__")


def is_written_in_python(x: Any, but: Collection[str] = ()) -> bool:
    """Whether Python code has a say in what builtin data is to C: any special method of its class, `but` these."""
    classes = [cls for cls in type.__getattribute__(type(x), "__mro__") if is_mutable(cls)]
    own = {name for cls in classes for name in type.__getattribute__(cls, "__dict__") if name in OF_DATA and name not in but}
    return any(in_python(x, name) for name in own)


def is_index_in_python(x: Any) -> bool:
    """Whether Python code tells which index an object is: C takes integers, also of subclasses, as they are."""
    return in_python(x, "__index__") and not is_a(x, int)


def is_walked_by_python(x: Any) -> bool:
    """Whether Python code tells what a list or tuple holds, as its class has it: libraries ask that code, or look past it."""
    return is_mutable(type(x)) and is_a(x, (list, tuple)) and any(in_python(x, name) for name in WALKING)


def is_measured(x: Any) -> bool:
    """Whether C runs Python code to learn how many items of `x` there may be: it asks before it fills a list or tuple."""
    return in_python(x, "__len__") or in_python(x, "__length_hint__") and lookup_class(type(x), "__len__") is None


def asks_python(x: Any, name: str) -> bool:
    """Whether C code that asks `x` for an attribute may run Python code."""
    found = lookup_class(type(x), name)
    return is_mutable(type(x)) and (in_python(x, "__getattribute__") or found is None and in_python(x, "__getattr__")
                                    or is_a(found, property) or in_python(found, "__get__"))


def special_method(x: Any, name: str) -> Any:
    """The special method of `x`, bound as C binds it: neither `x` itself nor the class of its class is asked for it. The
    interpreter does this by `descriptors.bind`."""
    method = lookup_class(type(x), name)
    get = lookup_class(type(method), "__get__", MISSING)        # None is called, too
    return method if get is MISSING else get(method, x, type(x))


def method_or(x: Any, name: str, default: Any) -> Any:
    """`special_method`, or `default` if binding it fails: C drops the error of some methods, and takes them for missing."""
    try:
        return special_method(x, name)
    except BaseException:
        return default


def comparison_method(x: Any, name: str) -> Any:
    """`special_method` for a comparison, which is not implemented if binding fails."""
    return method_or(x, name, decline)


def decline(other: Any) -> Any:
    """A comparison method that returns NotImplemented."""
    return NotImplemented


# Which numbers those of a class know, as operands and in comparisons; they know nothing else.
KNOWN_NUMBERS = {int: int, float: (int, float), complex: (int, float, complex)}
PRODUCTS = ("__mul__", "__rmul__")
AFTER_NUMBERS = ("__add__", "__mul__")      # of sequences, which C asks after the numbers' methods of both operands
OF_KEYS = ("__or__", "__and__", "__xor__", "__sub__")       # of dicts and sets, which know dicts, and sets


def declines(x: Any, other: Any, name: str) -> bool:
    """Whether the special method of `x` for a binary operation with `other` is not there, or, if written in C, sure to return
    NotImplemented."""
    if in_python(x, name):
        return False
    method = lookup_class(type(x), name)
    if method is None or method is getattr(object, name, None):
        return True
    if name == "__mod__" and is_a(x, (str, bytes, bytearray)):      # which formats anything
        return False
    if name in PRODUCTS and is_a(x, (str, bytes, bytearray, list, tuple)) and not any(in_python(x, of) for of in PRODUCTS):
        return True         # a class without a product of its own has none of numbers
    if name in AFTER_NUMBERS and is_one_of(type(x), str, bytes, bytearray, list, tuple):
        return True
    if is_a(x, torch.Tensor) and (asks_python(other, "__torch_function__") or asks_python(other, "__class__")):
        return False
    if has(type(other), "__torch_function__"):
        return type(x) in SCALARS and is_a(other, torch.Tensor) and not is_overriding(type(other))
    if name in OF_KEYS and is_one_of(type(x), dict, set, frozenset):
        return not is_a(other, dict if type(x) is dict else (set, frozenset, *VIEWS))
    owner = getattr(method, "__objclass__", type(x))        # a class that derives from builtin data may have it from there
    if is_a(other, BUILTIN_DATA):
        return any(is_a(x, cls) and not is_a(other, known) for cls, known in KNOWN_NUMBERS.items()) and owner in SCALARS
    return owner in SCALARS or is_a(x, torch.Tensor) or owner in EXACT_DATA


def adds_first(sequence: Any, items: Any) -> bool:
    """Whether `sequence += items` is left to the class of the items, as by arrays of numpy: C asks numbers before sequences.
    Classes derived from these in Python, however, have `+=` as numbers have it."""
    return is_one_of(type(sequence), *SEQUENCES) and lookup_class(
        type(items), "__radd__") is not None and not is_a(items, torch.Tensor)


def is_native_iterable(x: Any) -> bool:
    """Whether C code iterates over `x` without calling Python, and we know its items."""
    return is_a(x, CONTAINERS) and not in_python(x, "__iter__") and not asks_keys(x)


def is_native_iterator(x: Any) -> bool:
    """Whether `x` is an iterator whose items are tracked without a frame of its own."""
    return is_a(x, ITERATORS)


def is_iterable(x: Any) -> bool:
    """Whether `iter(x)` may succeed."""
    if lookup_class(type(x), "__iter__", MISSING) is not MISSING or in_python(x, "__getitem__"):
        return True
    try:                        # C tells sequences and mappings apart, which both have a `__getitem__`
        return lookup_class(type(x), "__getitem__") is not None and iter(x) is not None
    except TypeError:
        return False


def has_identity_equality(x: Any) -> bool:
    """Whether `x == y` and `hash(x)` depend on identity alone."""
    cls = type(x)
    return (is_one_of(lookup_class(cls, "__eq__"), object.__eq__, enum.Enum.__dict__.get("__eq__", object.__eq__))
            and (is_one_of(lookup_class(cls, "__hash__"), object.__hash__, type.__hash__) or is_a(x, enum.Enum)))


def is_key(x: Any) -> bool:
    """Whether `x` can be a key of a dict or set that is tracked: hashed and compared by value in C, or by identity."""
    if type(x) in SCALARS:
        return True
    if is_a(x, (tuple, frozenset)) and not in_python(x, "__hash__") and not in_python(x, "__eq__"):
        return all(map(is_key, (tuple if is_a(x, tuple) else frozenset).__iter__(x)))
    if is_a(x, torch.Tensor):
        return True
    if is_a(x, enum.Enum) and lookup_class(type(x), "__hash__") is enum.Enum.__hash__:      # of its name
        return not in_python(x, "__eq__") and not in_python(x, "__getattribute__")
    if is_a(x, weakref.ref):                  # equal to others while its referent lives
        return x() is not None and is_key(x())
    if is_a(x, type):
        return type(x).__hash__ is type.__hash__ or type(x).__hash__ is object.__hash__
    return lookup_class(type(x), "__hash__") is not None and not in_python(x, "__hash__") and not in_python(x, "__eq__")


def are_keys(items: Collection[Any]) -> bool:
    """Whether each item of a container can be such a key."""
    return all(map(is_key, keys_of(items) if is_a(items, (dict, set, frozenset)) else contents_in_c(items)))


def is_plain(x: Any, depth: int = 8, but: Collection[str] = ARITHMETIC) -> bool:
    """Whether `x` is only data: comparing, hashing, formatting and counting it runs no Python code, has no other effect, and gives
    the same in another process with equal data. but: which special methods may be written in Python all the same."""
    cls = type(x)
    if cls in SCALARS or is_a(x, PLAIN) or is_record(x):
        return True
    if depth == 0:
        return False
    if is_a(x, (int, float, str, bytes)):
        return not is_mutable(cls) or is_a(x, enum.Enum) or not is_written_in_python(x, but)
    if cls is dict or cls is collections.OrderedDict:
        return all(is_plain(k, depth - 1, but) and is_plain(v, depth - 1, but) for k, v in dict.items(x))
    if cls is bytearray:
        return True
    if cls is slice:
        return all(is_plain(part, depth - 1, but) for part in parts(x))
    named = is_a(x, tuple) and has(cls, "_fields") and not is_written_in_python(x, {"__repr__", *but})
    if named or cls in PLAIN_CONTAINERS:
        return all(is_plain(item, depth - 1, but) for item in x)
    return is_all_content(x) and not is_array(x)           # a number of numpy's


def type_name(x: Any) -> str:
    """How CPython's messages name the type of `x`: those of C with their module."""
    cls = type(x)
    module = cls.__module__ if cls.__flags__ & IMMUTABLE_TYPE else "builtins"
    return cls.__name__ if module == "builtins" else f"{module}.{cls.__name__}"
