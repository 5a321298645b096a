"""What can be changed at a place: another value in its place, or the object itself.

A mutation is a name and a function that makes the change and returns what takes it back (None where nothing can). Values and
names are the same in each world, so that a mutation of one can be made in another.
"""
from __future__ import annotations

import collections
import contextvars
import copy
import decimal
import enum
import functools
import itertools
import math
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

import capture
import tests.helpers
import tests.snapshot
from tests.mutation.places import FOREIGN, Place, Undo, is_own, restoring
from tests.subclasses import Dict, Float, Int, List, Set, Str, Tuple

Change = Callable[[], "Undo | None"]
SILENT = (*FOREIGN, os.path.dirname(capture.__file__), tests.snapshot.__file__, tests.helpers.__file__)
MOST_ALIKE = 4
LOG: list[str] = []         # what was called of that which mutations have put there: part of the world


class Tensor(torch.Tensor):
    pass


class Answering:
    """Answers everything, in Python."""

    def __eq__(self, other: object) -> bool:
        LOG.append("eq")
        return True

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        LOG.append("bool")
        return False

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: Any) -> Any:
        return 3

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 2.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        LOG.append("call")
        return args[0] if args else None

    def __index__(self) -> int:
        return 1

    def __rmul__(self, other: Any) -> Any:
        return other

    __mul__ = __add__ = __radd__ = __rmul__

    def __format__(self, spec: str) -> str:
        return "answer"


def logged(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that does the same, and says so."""
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        LOG.append(name)
        return function(*args, **kwargs)
    return wrapper


def overheard(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of a library that does the same, and says so where it is the program that calls it."""
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not sys._getframe(1).f_code.co_filename.startswith(SILENT):
            LOG.append(name)
        return function(*args, **kwargs)
    return wrapper


def negated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns something else."""
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return not result if isinstance(result, bool) else -result if isinstance(result, (int, float, torch.Tensor)) else result
    return wrapper


# -- other values ------------------------------------------------------------------------------------------------------

def replacements(place: Place) -> Iterator[tuple[str, Any]]:
    """Names and functions that make other values for a place. Functions, so that values are made only where they are used."""
    value = place.value
    if not place.own:
        if callable(value) and not isinstance(value, type):
            yield "overheard", lambda: overheard(value, place.path)
        return
    yield "None", lambda: None
    for kinds, others in OTHERS:
        if type(value) in kinds or isinstance(value, kinds) and kinds[0] not in EXACT:
            yield from ((name, functools.partial(make, value)) for name, make in others.items())
            break
    else:
        if isinstance(value, type):
            yield "subclass", lambda: type(value)(value.__name__, (value,), {})
        elif not isinstance(value, types.ModuleType):
            yield "copy", lambda: copy.copy(value)
            yield "deep copy", lambda: copy.deepcopy(value)
            yield "answering", Answering
            if is_own(type(value)):
                yield "of a subclass", lambda: in_subclass(value)


def in_subclass(value: Any) -> Any:
    """A copy of an instance, of a subclass that changes nothing."""
    made = copy.copy(value)
    made.__class__ = subclass(type(value))
    return made


def subclass(cls: type, **names: Any) -> type:
    return type(cls)(cls.__name__, (cls,), names)


def with_code(function: types.FunctionType) -> types.FunctionType:
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def changed_code(code: types.CodeType) -> types.CodeType:
    """Code with other numbers and strings in it."""
    def other(constant: Any) -> Any:
        if isinstance(constant, types.CodeType):
            return changed_code(constant)
        return constant + 1 if type(constant) in (int, float) else constant
    return code.replace(co_consts=tuple(map(other, code.co_consts)))


def changed_function(function: types.FunctionType) -> types.FunctionType:
    made = with_code(function)
    made.__code__ = changed_code(function.__code__)
    return made


def strided(t: torch.Tensor) -> torch.Tensor:
    return torch.stack([t.detach(), t.detach()], -1)[..., 0].requires_grad_(t.requires_grad)


def shifted(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t.detach().reshape(-1)[:1], t.detach().reshape(-1)])[1:].view(t.shape).requires_grad_(t.requires_grad)


def rolled(t: torch.Tensor) -> torch.Tensor:
    return t.detach().reshape(-1).roll(1).view(t.shape).clone().requires_grad_(t.requires_grad)


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "plus one": lambda v: v + 1, "negative": lambda v: -v, "zero": lambda v: type(v)(0), "as int": int, "as float": float,
    "as bool": bool, "as str": str, "as tensor": torch.tensor, "answering": lambda v: Answering()}
TENSORS: dict[str, Callable[[Any], Any]] = {
    "clone": lambda t: t.detach().clone().requires_grad_(t.requires_grad), "rolled": rolled,
    "double": lambda t: t.detach().double(),
    "integers": lambda t: t.detach().to(torch.int64), "one more dimension": lambda t: t.detach().unsqueeze(0),
    "longer": lambda t: torch.cat([t.detach(), t.detach()]), "empty": lambda t: t.detach()[:0], "strided": strided,
    "shifted": shifted,
    "transposed": lambda t: t.detach().transpose(0, -1), "requires grad": lambda t: t.detach().requires_grad_(not t.requires_grad),
    "not a leaf": lambda t: t.detach().requires_grad_() * 1, "parameter": torch.nn.Parameter, "buffer": torch.nn.Buffer,
    "subclass": lambda t: t.detach().as_subclass(Tensor), "detached": lambda t: t.detach(),
    "negative view": torch._neg_view,
    "expanded": lambda t: t.detach().reshape(-1)[:1].expand(t.shape), "sparse": lambda t: t.detach().to_sparse(),
    "meta": lambda t: t.detach().to("meta"), "number": lambda t: 2.0, "list": lambda t: t.tolist(),
    "array": lambda t: t.detach().numpy(),
    "complex": lambda t: t.detach().to(torch.complex64), "nan": lambda t: t.detach() * math.nan, "zeros": lambda t: t.detach() * 0,
    "inference": lambda t: _inference(t), "channels last": lambda t: t.detach().contiguous(memory_format=torch.channels_last)}


def _inference(t: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return t.detach().clone()


EXACT = frozenset({int, bool, float, str, bytes, type(None)})
OTHERS: list[tuple[tuple[type, ...], dict[str, Callable[[Any], Any]]]] = [
    ((bool,), {"other": lambda v: not v, "as int": int, "as float": float, "as array": numpy.bool_, "as tensor": torch.tensor,
               "answering": lambda v: Answering()}),
    ((int,), NUMBERS | {"subclass": Int, "enum": lambda v: enum.IntEnum("Whole", {"A": v}).A, "of numpy": numpy.int64}),
    ((float,), NUMBERS | {"subclass": Float, "nan": lambda v: math.nan, "minus zero": lambda v: -0.0, "of numpy": numpy.float64}),
    ((str,), {"other": lambda v: v + "_", "empty": lambda v: "", "subclass": Str, "upper": str.upper, "bytes": str.encode,
              "enum": lambda v: enum.Enum("Text", {"A": v}, type=str).A, "answering": lambda v: Answering()}),
    ((type(None),), {"number": lambda v: 1, "zero": lambda v: 0, "string": lambda v: "a", "list": lambda v: [],
                     "tensor": lambda v: torch.ones(2), "answering": lambda v: Answering()}),
    ((bytes,), {"other": lambda v: v + b"_", "bytearray": bytearray}),
    ((torch.Tensor,), TENSORS),
    ((list,), {"copy": lambda v: v[:], "subclass": List, "tuple": tuple, "longer": lambda v: v + v[:1], "shorter": lambda v: v[:-1],
               "reversed": lambda v: v[::-1], "deque": collections.deque}),
    ((tuple,), {"subclass": lambda v: Tuple(v), "list": list, "longer": lambda v: v + v[:1], "shorter": lambda v: v[:-1],
                "reversed": lambda v: v[::-1]}),
    ((dict,), {"copy": lambda v: v.copy(), "subclass": Dict, "ordered": collections.OrderedDict,
               "reversed": lambda v: type(v)(reversed(list(v.items()))),
               "with a default": lambda v: collections.defaultdict(int, v),
               "proxy": types.MappingProxyType, "empty": lambda v: {}}),
    ((set, frozenset), {"copy": lambda v: set(v), "subclass": lambda v: Set(v), "frozen": frozenset, "list": list,
                        "empty": lambda v: set(), "one more": lambda v: v | {7}}),
    ((types.FunctionType,), {"copy": with_code, "logged": lambda f: logged(f, f.__name__), "negated": negated,
                             "other numbers": changed_function, "partial": functools.partial, "answering": lambda f: Answering(),
                             "static": staticmethod}),
    ((types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
     {"logged": lambda f: logged(f, f.__name__), "negated": negated}),
    ((torch.dtype,), {"double": lambda v: torch.float64, "integer": lambda v: torch.int32}),
    ((torch.device,), {"meta": lambda v: torch.device("meta")}),
    ((enum.Enum,), {"next": lambda v: [*type(v), *type(v)][[*type(v)].index(v) + 1], "value": lambda v: v.value}),
    ((decimal.Decimal,), {"plus one": lambda v: v + 1, "float": float}),
    ((slice,), {"other": lambda v: slice(v.start, v.stop, 2)}),
    ((range,), {"longer": lambda v: range(len(v) + 1), "list": list}),
    ((torch.nn.Module,), {"deep copy": copy.deepcopy, "identity": lambda v: torch.nn.Identity(), "answering": lambda v: Answering(),
                          "of a subclass": in_subclass, "compiled": lambda v: torch.nn.Sequential(v)}),
]


# -- changes of objects -------------------------------------------------------------------------------------------------

def changes(place: Place) -> Iterator[tuple[str, Change]]:
    """What can be done to the object at a place."""
    value = place.value
    if isinstance(value, (type, types.FunctionType)) and not place.own:
        return
    for kind, list_changes in CHANGES:
        if isinstance(value, kind):
            yield from list_changes(value, place)
            if kind is not object:
                break
    if not isinstance(value, (type, types.ModuleType, types.FunctionType, enum.Enum)) and is_own(type(value)):
        yield from _instance(value, place)


def _restored(container: Any, act: Callable[[], Any]) -> Change:
    def change() -> Undo:
        undo = restoring(container)
        act()
        return undo
    return change


def _list(items: Any, place: Place) -> Iterator[tuple[str, Change]]:
    base: Any = list if isinstance(items, list) else collections.deque
    first = base.__getitem__(items, 0) if base.__len__(items) else 1
    for name, act in {"append": lambda: base.append(items, first), "insert": lambda: base.insert(items, 0, first),
                      "pop": lambda: base.pop(items), "reverse": lambda: base.reverse(items),
                      "clear": lambda: base.clear(items)}.items():
        yield name, _restored(items, act)


def _dict(mapping: Any, place: Place) -> Iterator[tuple[str, Change]]:
    base: Any = collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict

    def move_first() -> None:
        key = next(base.__iter__(mapping))
        base.__setitem__(mapping, key, base.pop(mapping, key))

    def equal_keys() -> None:
        for key, value in [(key, base.pop(mapping, key)) for key in list(base.__iter__(mapping))]:
            base.__setitem__(mapping, float(key) if type(key) is int else Str(key) if type(key) is str else key, value)
    acts = {"new key": lambda: base.__setitem__(mapping, "zz", 1), "move first": move_first, "clear": lambda: base.clear(mapping),
            "equal keys": equal_keys, "number": lambda: base.__setitem__(mapping, 1, 1)}
    for name in sorted(place.names - set(key for key in base.__iter__(mapping) if type(key) is str)):
        if not name.startswith("__") and len(name) < 12 and len(acts) < 40:
            acts[f"key {name}"] = functools.partial(base.__setitem__, mapping, name, 3)
    for name, act in acts.items():
        yield name, _restored(mapping, act)


def _set(members: Any, place: Place) -> Iterator[tuple[str, Change]]:
    for member in [*range(5), "a", "zz", None, *sorted(name for name in place.names if len(name) < 4)]:
        toggle = set.discard if member in members else set.add
        yield f"toggle {member!r}", _restored(members, functools.partial(toggle, members, member))
    yield "clear", _restored(members, lambda: set.clear(members))


def _tensor(t: torch.Tensor, place: Place) -> Iterator[tuple[str, Change]]:
    def under_no_grad(act: Callable[[torch.Tensor], Any]) -> Change:
        def change() -> Undo:
            before, data, needs = t.detach().clone(), t.data, t.requires_grad

            def undo() -> None:
                with torch.no_grad():
                    t.data = data
                    t.copy_(before)
                    t.requires_grad_(needs)
            with torch.no_grad():
                act(t)
            return undo
        return change

    def renamed() -> Undo:
        t.zz = 1  # type: ignore[attr-defined]
        return functools.partial(delattr, t, "zz")

    def hooked() -> Undo:
        return t.register_hook(lambda grad: LOG.append("hook")).remove
    for name, act in {
            "add one": lambda t: t.add_(1), "zero": lambda t: t.zero_(), "negate": lambda t: t.neg_(),
            "toggle grad": lambda t: t.requires_grad_(not t.requires_grad), "unsqueeze": lambda t: t.unsqueeze_(0),
            "data of double": lambda t: setattr(t, "data", t.data.double()), "transpose": lambda t: t.transpose_(0, -1),
            "data longer": lambda t: setattr(t, "data", torch.cat([t.data, t.data])),
            "data copy": lambda t: setattr(t, "data", t.data.clone()),
            "nan": lambda t: t.mul_(math.nan), "swap": lambda t: t.set_(t.detach().flip(0))}.items():
        yield name, under_no_grad(act)
    yield "attribute", renamed
    if t.requires_grad:
        yield "hook", hooked


def _module(module: torch.nn.Module, place: Place) -> Iterator[tuple[str, Change]]:
    def toggle() -> Undo:
        training = [(m, m.training) for m in module.modules()]
        module.train(not module.training)
        return lambda: [setattr(m, "training", was) for m, was in training]

    def doubled() -> None:
        module.double()
    yield "toggle training", toggle
    yield "hook", lambda: module.register_forward_hook(lambda *a: LOG.append("forward hook")).remove
    yield "changing hook", lambda: module.register_forward_hook(
        lambda m, args, result: -result if isinstance(result, torch.Tensor) else None).remove
    yield "pre hook", lambda: module.register_forward_pre_hook(lambda *a: LOG.append("pre hook")).remove
    yield "backward hook", lambda: module.register_full_backward_hook(lambda *a: LOG.append("backward hook")).remove
    yield "double", doubled
    yield "freeze", lambda: module.requires_grad_(False) and None
    yield "new buffer", lambda: module.register_buffer("zz", torch.ones(1))
    yield "new module", lambda: module.add_module("zz", torch.nn.Identity())
    yield "own forward", lambda: _shadow(module, "forward", logged(module.forward, "own forward"))


def _shadow(owner: Any, name: str, value: Any) -> Undo:
    namespace = object.__getattribute__(owner, "__dict__")
    namespace[name] = value
    return functools.partial(namespace.pop, name)


def _instance(value: Any, place: Place) -> Iterator[tuple[str, Change]]:
    cls = type(value)

    def become(new: Callable[[], type]) -> Change:
        def change() -> Undo:
            object.__setattr__(value, "__class__", new())
            return functools.partial(object.__setattr__, value, "__class__", cls)
        return change
    yield "become subclass", become(lambda: subclass(cls))
    for name in ("__getattr__", "__getattribute__", "__eq__", "__bool__", "__len__", "__call__"):
        yield f"become subclass with {name}", become(lambda name=name: subclass(cls, **{name: SPECIALS[name]}))
    try:
        object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    for name in sorted(place.names):
        found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if found is None:
            if len(name) < 10:
                yield f"attribute {name}", functools.partial(_attribute, value, name, 3)
        elif isinstance(found, types.FunctionType):
            yield f"shadow {name}", functools.partial(_attribute, value, name, logged(found.__get__(value), name))
        else:
            yield f"shadow {name}", functools.partial(_attribute, value, name, 4)


def _attribute(owner: Any, name: str, new: Any) -> Undo:
    namespace = object.__getattribute__(owner, "__dict__")
    undo = restoring(namespace)
    namespace[name] = new
    return undo


def _answer(name: str, answer: Any) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        LOG.append(name)
        return answer
    return method


def _getattribute(self: Any, name: str) -> Any:
    if not name.startswith(("_", "capture_")):
        LOG.append(name)
    return object.__getattribute__(self, name)


def _setattr(self: Any, name: str, value: Any) -> None:
    LOG.append(f"set {name}")
    object.__setattr__(self, name, value)


SPECIALS: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": _answer(name, answer) for name, answer in {
        "bool": False, "len": 0, "eq": True, "ne": True, "lt": True, "gt": True, "le": False, "ge": False, "hash": 1, "getattr": 7,
        "call": 8, "contains": True, "getitem": 9, "enter": None, "exit": True, "format": "f", "repr": "r", "str": "s",
        "index": 2, "int": 2, "float": 2.0, "get": 5, "add": 6, "radd": 6, "iadd": 6, "mul": 6, "rmul": 6, "sub": 6, "matmul": 6,
        "neg": 6, "invert": 6, "missing": 4, "next": 3, "init": None, "instancecheck": True, "length_hint": 3, "abs": 1}.items()},
    "__iter__": lambda self: iter((1, 2)), "__reversed__": lambda self: iter((2, 1)), "__getattribute__": _getattribute,
    "__setattr__": _setattr, "__setitem__": _answer("setitem", None), "__delitem__": _answer("delitem", None),
    "__set__": _answer("set", None), "__delattr__": _answer("delattr", None)}


def _class(cls: type, place: Place) -> Iterator[tuple[str, Change]]:
    def define(name: str, value: Any) -> Change:
        def change() -> Undo:
            had, old = name in vars(cls), vars(cls).get(name)
            type.__setattr__(cls, name, value)
            return functools.partial(type.__setattr__, cls, name, old) if had else functools.partial(type.__delattr__, cls, name)
        return change

    def rebased() -> Undo:
        bases = cls.__bases__
        new: type = type("Base", (), {name: 5 for name in place.names if not name.startswith("__")})
        cls.__bases__ = (new, *(base for base in bases if base is not object))
        return functools.partial(setattr, cls, "__bases__", bases)
    for name, method in SPECIALS.items():
        yield f"define {name}", define(name, method)
    for name in sorted(place.names - vars(cls).keys()):
        if not name.startswith("__"):
            yield f"define {name}", define(name, 3)
            yield f"property {name}", define(name, property(lambda self: LOG.append("property") or 3, lambda self, value: None))
    yield "rebase", rebased


def _function(function: types.FunctionType, place: Place) -> Iterator[tuple[str, Change]]:
    def exchanged(name: str, new: Callable[[Any], Any]) -> Change:
        def change() -> Undo:
            old = getattr(function, name)
            setattr(function, name, new(old))
            return functools.partial(setattr, function, name, old)
        return change
    yield "other numbers", exchanged("__code__", changed_code)
    yield "equal code", exchanged("__code__", lambda code: code.replace(co_name=code.co_name))
    yield "defaults", exchanged("__defaults__", lambda old: (3,) if old is None else None)
    yield "keyword defaults", exchanged("__kwdefaults__", lambda old: {"zz": 3} if old is None else None)
    yield "attribute", lambda: _shadow(function, "zz", 3)


def _array(array: numpy.ndarray, place: Place) -> Iterator[tuple[str, Change]]:
    def add() -> Undo:
        before = array.copy()
        array.__iadd__(1)
        return functools.partial(array.__setitem__, ..., before)

    def freeze() -> Undo:
        was = array.flags.writeable
        array.flags.writeable = not was
        return functools.partial(setattr, array.flags, "writeable", was)

    def reshape() -> Undo:
        shape = array.shape
        array.shape = (*shape, 1)
        return functools.partial(setattr, array, "shape", shape)
    yield from {"add one": add, "freeze": freeze, "reshape": reshape}.items()


def _generator(generator: torch.Generator, place: Place) -> Iterator[tuple[str, Change]]:
    def seeded() -> Undo:
        state = generator.get_state()
        generator.manual_seed(7)
        return functools.partial(generator.set_state, state)
    yield "seed", seeded


def _variable(variable: Any, place: Place) -> Iterator[tuple[str, Change]]:
    def assign() -> Undo:
        return functools.partial(variable.reset, variable.set(3))
    yield "set", assign


def _other(value: Any, place: Place) -> Iterator[tuple[str, Change]]:
    if isinstance(value, collections.abc.Iterator) and not is_own(type(value)):
        yield "advance", lambda: next(value, None) and None


CHANGES: list[tuple[Any, Callable[[Any, Place], Iterator[tuple[str, Change]]]]] = [
    ((list, collections.deque), _list), (dict, _dict), (set, _set), (torch.Tensor, _tensor), (torch.nn.Module, _module),
    (type, _class),
    (types.FunctionType, _function), (numpy.ndarray, _array), (torch.Generator, _generator),
    (contextvars.ContextVar, _variable), (object, _other)]


# -- all of it -----------------------------------------------------------------------------------------------------------

def mutations(place: Place) -> Iterator[tuple[str, Change]]:
    """All that can be done at a place."""
    if place.put is not None:
        yield from ((f"= {name}", functools.partial(_put, place.put, make)) for name, make in replacements(place))
    if place.drop is not None:
        yield "drop", place.drop
    yield from changes(place)


def _put(put: Callable[[Any], Undo], make: Callable[[], Any]) -> Undo:
    return put(make())


def alike(place: Place, among: list[Place]) -> Iterator[tuple[str, Place]]:
    """A few places with another object of the same class, which may come to be one with that of `place`."""
    return itertools.islice(_alike(place, among), MOST_ALIKE)


def _alike(place: Place, among: list[Place]) -> Iterator[tuple[str, Place]]:
    if place.put is not None and place.own and type(place.value) not in (bool, type(None), types.BuiltinFunctionType):
        for other in among:
            if type(other.value) is type(place.value) and other.value is not place.value and other.own:
                yield f"= {other.path}", other
