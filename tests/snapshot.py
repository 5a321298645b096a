"""Snapshots of object graphs: what two worlds must agree upon, as a flat table from access path to description.

Identity and aliasing need no extra rule: an object met again, or a storage met again, is described by the path where it
was met first, so two graphs have equal tables exactly if they have the same shape, sharing and values.
"""
from __future__ import annotations

import collections
import datetime
import enum
import re
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy
import torch

from capture import _C

SCALARS = (int, float, complex, bool, str, bytes, bytearray, range, slice, enum.Enum, torch.dtype, torch.device, torch.layout,
           torch.memory_format, torch.Size, Decimal, datetime.date, datetime.time, datetime.timedelta, re.Pattern, re.Match,
           type(None), type(...), type(NotImplemented))
# Types told at once, by identity: a class of the program's may have no hash.
ATOMS = {id(cls): f"{cls.__module__}.{cls.__qualname__}" for cls in (
    int, float, complex, bool, str, bytes, torch.dtype, type(None))}
PLAIN = frozenset(map(id, (dict, list, tuple, set)))            # hold items and nothing else
COMPOUND = PLAIN | {id(torch.Tensor), id(types.FunctionType), id(type)}         # neither of which is a scalar
# Those that Python code is behind are objects of ours in a captured world, and show what C's do.
ITERATORS = (*(type(iter(x)) for x in ([], (), {}, set(), "", b"", range(0), {}.items(), {}.values())), type(iter(int, 1)),
             type(iter(type("Sequence", (), {"__getitem__": None})())), map, zip, filter, enumerate, reversed)
LEAVES = (types.BuiltinFunctionType, types.CodeType, types.GeneratorType)


@dataclass(frozen=True)
class Same:
    """The object that was met before, at `path`."""

    path: str


@dataclass(frozen=True)
class TensorState:
    """A tensor: its properties, and its values at the time of the snapshot (None for one without data)."""

    properties: tuple[tuple[str, Any], ...]
    values: torch.Tensor | None = field(compare=False)


@dataclass
class Snapshot:
    """`table`: path to description, in the order of the walk. `alive` keeps all objects, so that ids stay unique."""

    table: dict[str, Any] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)


def take(roots: Mapping[str, Any], world: Mapping[str, Any] = types.MappingProxyType({})) -> Snapshot:
    """A snapshot of all that can be reached from `roots`, and of the plain values in `world`."""
    snapshot = Snapshot(dict(world))
    walk = _Walk(snapshot)
    with torch._C.DisableTorchFunctionSubclass():       # which may be the program's, and change what is looked at
        for name, root in roots.items():
            walk.visit(name, root)
    return snapshot


def tensors(root: Any) -> list[torch.Tensor]:
    """Every tensor reachable from `root`, each once, in the order of the walk."""
    snapshot = Snapshot()
    _Walk(snapshot).visit("root", root)
    return [obj for obj in snapshot.alive if isinstance(obj, torch.Tensor)]


def differences(eager: Snapshot, captured: Snapshot, tolerance: float | None = None) -> list[str]:
    """One line for each path at which the two differ. Values are equal bit for bit, or within `tolerance`."""
    lines = []
    for path in {**eager.table, **captured.table}:
        left, right = eager.table.get(path, "missing"), captured.table.get(path, "missing")
        if isinstance(left, TensorState) and isinstance(right, TensorState):
            lines += [f"{path}: {line}" for line in _tensor_differences(left, right, tolerance)]
        elif left != right:
            lines.append(f"{path}: eager {_short(left)}, captured {_short(right)}")
    if not lines and list(eager.table) != list(captured.table):
        lines.append("the order of keys or attributes differs")
    return lines


class _Walk:
    """One depth-first walk; objects and storages are numbered by the path of the first visit."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.seen: dict[int, str] = {}
        self.storages: dict[int, str] = {}

    def visit(self, path: str, obj: Any) -> None:
        table, cls = self.snapshot.table, type(obj)
        if id(cls) in ATOMS:
            table[path] = (ATOMS[id(cls)], repr(obj))
            return
        if cls is _C.CompiledFunction:                  # eager worlds have the function itself in its place
            obj, cls = obj.__wrapped__, types.FunctionType
        if id(cls) not in COMPOUND and isinstance(obj, SCALARS):
            table[path] = (_name(cls), repr(obj))
            return
        if id(obj) in self.seen:
            table[path] = Same(self.seen[id(obj)])
            return
        if not _is_constant(obj):
            self.seen[id(obj)] = path
        self.snapshot.alive.append(obj)
        is_plain = id(cls) in PLAIN
        table[path] = _name(cls) if is_plain else self.tensor(path, obj) if isinstance(obj, torch.Tensor) else _describe(obj)
        for step, child in _items(obj) if is_plain else _children(obj):
            self.visit(path + step, child)

    def tensor(self, path: str, t: torch.Tensor) -> TensorState:
        properties: dict[str, Any] = {
            "type": _name(type(t)), "shape": tuple(t.shape), "dtype": t.dtype, "device": t.device, "layout": t.layout,
            "requires_grad": t.requires_grad, "autograd": _autograd(t),
            "inference": t.is_inference(), "conj": t.is_conj(), "neg": t.is_neg(),
        }
        if t.layout is not torch.strided:
            return TensorState(tuple(properties.items()), t.detach().to_dense())
        storage = t.untyped_storage()
        self.snapshot.alive.append(storage)
        properties |= {"stride": t.stride(), "offset": t.storage_offset(),
                       "storage": self.storages.setdefault(storage._cdata, path)}
        values = None if t.is_meta else t.detach().resolve_conj().resolve_neg().clone(
            memory_format=torch.contiguous_format).as_subclass(torch.Tensor)
        return TensorState(tuple(properties.items()), values)


def _autograd(t: torch.Tensor) -> tuple[bool, bool] | str:
    """Whether a tensor is a leaf and whether it was computed; of a view that has become invalid, the error."""
    try:
        return t.is_leaf, t.grad_fn is not None
    except RuntimeError as error:
        return str(error)


def _is_constant(obj: Any) -> bool:
    """Whether an object is a tuple of scalars, which may be shared or made anew as an implementation pleases."""
    return (type(obj) is tuple or type(obj) is frozenset) and all(isinstance(item, SCALARS) or _is_constant(item) for item in obj)


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds: items, then attributes, as (step of the path, value)."""
    if isinstance(obj, LEAVES):
        return
    if isinstance(obj, torch.Tensor):
        if _autograd(obj) == (True, False):
            yield ".grad", obj.grad
        yield from _attributes(obj)
    elif isinstance(obj, types.ModuleType):
        if vars(obj).get("__name__") not in sys.modules:
            yield from _attributes(obj)
    elif isinstance(obj, type):
        if _is_of_program(obj):  # a class of the test program itself: its attributes are program state
            yield from ((f".{k}", v) for k, v in vars(obj).items() if not k.startswith("__"))
    elif isinstance(obj, types.FunctionType):
        if _is_of_program(obj):
            yield from _function(obj)
    elif isinstance(obj, types.MethodType):
        yield from ((".__self__", obj.__self__), (".__func__", obj.__func__))
    elif isinstance(obj, ITERATORS):
        yield ".__reduce__()", obj.__reduce__()[1:]
    elif isinstance(obj, weakref.ref):
        yield "()", obj()
    else:
        yield from _items(obj)
        yield from _attributes(obj)


def _is_of_program(obj: type | types.FunctionType) -> bool:
    """Whether a class or function is defined by the program under test, in a function or in a module made by hand: state of it."""
    return "<locals>" in obj.__qualname__ or obj.__module__ is not None and obj.__module__ not in sys.modules


def _items(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        cls = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
        for number, (key, value) in enumerate(cls.items(obj)):
            if not isinstance(key, SCALARS):
                yield f".key({number})", key
            yield f"[{key!r}]" if isinstance(key, SCALARS) else f".value({number})", value
    elif isinstance(obj, (list, tuple, collections.deque)):
        yield from ((f"[{i}]", item) for i, item in enumerate(obj))
    elif isinstance(obj, (set, frozenset)):
        yield from ((f".element({i})", item) for i, item in enumerate(sorted(obj, key=_element_key)))
    elif isinstance(obj, types.CellType):
        try:
            yield ".cell_contents", obj.cell_contents
        except ValueError:
            return  # an empty cell holds nothing
    elif isinstance(obj, types.MappingProxyType):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())


def _attributes(obj: Any) -> Iterator[tuple[str, Any]]:
    """The instance dictionary and the slots, without any code of the class being run."""
    try:
        yield from ((f".{k}", v) for k, v in object.__getattribute__(obj, "__dict__").items())
    except AttributeError:
        pass  # an object without a dictionary
    for cls in type(obj).__mro__:
        for name, slot in vars(cls).items() if "__slots__" in cls.__dict__ else ():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield f".{name}", slot.__get__(obj, cls)
                except AttributeError:
                    continue  # a slot not assigned yet


def _function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield from ((f".{name}", cell) for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()))
    yield from _attributes(function)


def _describe(obj: Any) -> Any:
    """What tells an object apart besides its children."""
    if isinstance(obj, numpy.ndarray):
        return (_name(type(obj)), obj.shape, str(obj.dtype), obj.tobytes())
    if isinstance(obj, (types.FunctionType, types.BuiltinFunctionType, type)):
        return (_name(type(obj)), _name(obj))
    if isinstance(obj, torch.Generator):
        return (_name(type(obj)), obj.get_state().numpy().tobytes())
    return _name(type(obj))


def _tensor_differences(left: TensorState, right: TensorState, tolerance: float | None) -> Iterator[str]:
    for (name, ours), (_, theirs) in zip(left.properties, right.properties):
        if ours != theirs:
            yield f"{name}: eager {_short(ours)}, captured {_short(theirs)}"
    if left.values is None or right.values is None or left.values.shape != right.values.shape \
            or left.values.dtype != right.values.dtype:
        return
    if tolerance is None:
        if not torch.equal(_bits(left.values), _bits(right.values)):
            yield f"values: eager {_short(left.values)}, captured {_short(right.values)}"
        return
    try:
        torch.testing.assert_close(right.values, left.values, rtol=tolerance, atol=tolerance, equal_nan=True)
    except AssertionError as error:
        yield f"values: {error}"


def _bits(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor: NaN equals NaN, and 0.0 differs from -0.0."""
    return t.reshape(-1).view(torch.uint8)


def _element_key(element: Any) -> tuple[str, str]:
    return type(element).__qualname__, repr(element) if isinstance(element, SCALARS) else ""


def _name(obj: Any) -> str:
    return f"{getattr(obj, '__module__', '')}.{obj.__qualname__}"


def _short(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 160 else text[:157] + "..."
