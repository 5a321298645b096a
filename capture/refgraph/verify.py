"""Compares a sealed graph's idea of the heap with the real heap.

This is what soundness rests on: a change that no model saw (native code that called back, a C function which does more
than was thought) shows up here, and no cache entry is made.
"""
from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import Classes, bytes_in_c, contents_in_c, is_one_of
from capture.refgraph.keys import KeyTable, asks_keys, table
from capture.refgraph.lookup import instance_dict, parts
from capture.refgraph.ndarrays import content, is_ndarray
from capture.refgraph.node import (
    ABSENT,
    SCALARS,
    Build,
    BytesState,
    Const,
    DictState,
    Expr,
    External,
    FunctionState,
    ListStart,
    ListState,
    RefNode,
    SetState,
    Shadow,
    WrittenDict,
)
from capture.refgraph.repetitions import repetition
from capture.refgraph.source import Computed
from capture.refgraph.state_queries import keys_of

UNKNOWN = object()                                  # a value that cannot be computed from what the graph knows


def verify(graph: RefGraph, result: Any) -> None:
    """Checks every living object that the trace tracked, and its result (a pair with `real` and `shadow`).

    Raises Break("untracked-mutation") naming the first object and key that differ.
    """
    checker = _Checker()
    checker.check(result.shadow, result.real, "the result")
    for node in graph.nodes:
        real = node.real
        if real is not None:
            checker.node(node, real)
            if node.source is not None and is_ndarray(real):
                held = graph.requirements.get((Computed(content, (node.source,)), "VALUE"))
                if held is not None and held[2] != content(real):
                    raise _differs(f"{_describe(node)} holds something else than at entry", "an array of numpy")


class _Checker:
    """One comparison; remembers the values of expressions."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}

    # -- values ------------------------------------------------------------------------------------------------------

    def check(self, shadow: Shadow, real: Any, *where: Any) -> None:
        """Raises Break when `real`, the object that is at `where`, is not what `shadow` says."""
        if not self.agrees(shadow, real):
            raise _differs(f"{_describe(*where)} is {_short(real)}", shadow)

    def agrees(self, shadow: Shadow, real: Any) -> bool:
        if isinstance(shadow, RefNode):
            return shadow.real is real
        if isinstance(shadow, Const):
            return same_value(shadow.value, real)
        if isinstance(shadow, External):
            return same_value(shadow.value, real)
        if isinstance(shadow, Expr):
            value = self.evaluate(shadow)
            return value is UNKNOWN or same_value(value, real)
        if isinstance(shadow, Build):
            if type(real) is not shadow.cls:
                return False
            items = parts(real)
            if len(items) != len(shadow.items):
                return False
            if is_a(real, frozenset):         # in no order
                return all(any(self.agrees(part, item) for item in items) for part in shadow.items)
            return all(map(self.agrees, shadow.items, items))
        return False

    def evaluate(self, root: Shadow) -> Any:
        """The value of an expression now, or UNKNOWN when it depends on an object."""
        stack = [root]
        while stack:
            shadow = stack[-1]
            if id(shadow) in self.values:
                stack.pop()
            elif type(shadow) is Expr:              # what a call effect returned is not computed
                missing = [arg for arg in shadow.args if id(arg) not in self.values]
                if missing:
                    stack += missing
                    continue
                args = [self.values[id(arg)] for arg in shadow.args]
                self.values[id(shadow)] = UNKNOWN if any(arg is UNKNOWN for arg in args) else shadow.op(*args)
            else:
                self.values[id(shadow)] = shadow.value if isinstance(shadow, (Const, External)) else UNKNOWN
        return self.values[id(root)]

    # -- objects -----------------------------------------------------------------------------------------------------

    def node(self, node: RefNode, real: Any) -> None:
        """Raises Break when an object is not in the state that its node says."""
        if type(real) is not node.cls:
            raise _differs(f"{_describe(node)} is of type {type(real).__qualname__}", node.cls)
        state = node.state
        if (opened := repetition(node)) is not None:
            self.items(node, opened.once * opened.times.real, real)
        elif isinstance(state, ListState):
            self.items(node, state.items, real)
        elif isinstance(state, ListStart):
            known = {**state.known, **dict(enumerate(state.added, state.length)), **state.writes}
            self.items(node, [known.get(index) for index in range(state.length + len(state.added))], real)
        elif isinstance(state, DictState):
            self.entries(node, state, state.items, real)
        elif isinstance(state, WrittenDict):
            self.entries(node, state.before, {**state.before.items, **{key: shadow for _, key, shadow in state.writes}}, real)
        elif isinstance(state, SetState):
            self.members(node, state, real)
        elif isinstance(state, BytesState):
            held = bytes_in_c(real)  # type: ignore[arg-type]
            if held != state.content:
                raise _differs(f"{_describe(node)} is {_short(held)}", repr(state.content))
        elif isinstance(state, FunctionState):
            self.function(node, state, real)  # type: ignore[arg-type]
        if node.attrs is not None and instance_dict(real) is not node.attrs.real:
            raise _differs(f"{_describe(node)} has another __dict__", node.attrs)
        for name, shadow in node.slots.items():
            value = _slot(real, name)
            if value is not UNKNOWN:
                self.place(node, name, shadow, value)

    def items(self, node: RefNode, shadows: Sequence[Shadow | None], real: Any) -> None:
        items = contents_in_c(real)
        if len(items) != len(shadows):
            raise _differs(f"{_describe(node)} has {len(items)} items", len(shadows))
        for index, (shadow, item) in enumerate(zip(shadows, items)):
            if shadow is not None:
                self.check(shadow, item, node, index)

    def entries(self, node: RefNode, state: DictState, known: dict[Any, Shadow], real: Any) -> None:
        if isinstance(state.items, KeyTable):       # no hash of theirs is asked for
            held = KeyTable(dict.items(real))  # type: ignore[arg-type]
            for key, shadow in known.items():
                self.place(node, key, shadow, held.get(key, ABSENT))
            if len(held) != sum(shadow is not ABSENT for shadow in state.items.values()):
                raise _differs(f"{_describe(node)} has {len(held)} keys", len(state.items))
            return
        for key, shadow in known.items():
            self.place(node, key, shadow, dict.__getitem__(real, key) if dict.__contains__(real, key) else ABSENT)
        present = [key for key, shadow in known.items() if shadow is not ABSENT]
        ordered = is_a(real, collections.OrderedDict) and not asks_keys(real)       # else they were not looked through
        keys = list((collections.OrderedDict if ordered else dict).__iter__(real))
        if state.complete:
            if len(keys) != len(present) or not all(map(_same_key, keys, present)):
                raise _differs(f"the keys of {_describe(node)} are {_keys(keys)}", _keys(present))
        elif state.entry_keys is not None:
            gone = KeyTable((key, shadow) for key, shadow in known.items() if shadow is ABSENT)
            expected = KeyTable((key, None) for key in (*state.entry_keys, *present) if key not in gone)
            if dict.keys(expected) != dict.keys(KeyTable((key, None) for key in keys)):
                raise _differs(f"the keys of {_describe(node)} are {_keys(keys)}", _keys(expected))

    def members(self, node: RefNode, state: SetState, real: Any) -> None:
        members = table(keys_of(real), ((member, member) for member in keys_of(real)))
        for member, shadow in state.items.items():
            self.place(node, member, shadow, members.get(member, ABSENT))
        if len(members) != len(state.items):
            raise _differs(f"{_describe(node)} has {len(members)} members", len(state.items))

    def function(self, node: RefNode, state: FunctionState, real: types.FunctionType) -> None:
        parts = {"__code__": Const(state.code), "__defaults__": state.defaults, "__kwdefaults__": state.kwdefaults,
                 "__globals__": state.globals}
        for name, shadow in parts.items():
            if name not in node.slots:              # else assigned since
                self.place(node, name, shadow, getattr(real, name))
        cells = real.__closure__ or ()
        if len(cells) != len(state.closure) or not all(known.real is cell for known, cell in zip(state.closure, cells)):
            raise _differs(f"{_describe(node)} has other cells", state.code)

    def place(self, node: RefNode, key: Any, shadow: Shadow, real: Any) -> None:
        """Checks what `node` holds under a key or name; ABSENT on either side means nothing."""
        if (shadow is ABSENT) != (real is ABSENT):
            raise _differs(f"{_describe(node, key)} is {'absent' if real is ABSENT else _short(real)}", shadow)
        if shadow is not ABSENT:
            self.check(shadow, real, node, key)


def same_value(left: Any, right: Any) -> bool:
    """Whether two immutable values are of one type and equal bit for bit; identity for what has identity."""
    if left is right:
        return True
    cls = type(left)
    if type(right) is not cls:
        return False
    if cls is float:
        return left.hex() == right.hex()
    if cls is complex:
        return same_value(left.real, right.real) and same_value(left.imag, right.imag)
    if is_one_of(cls, tuple, slice):
        lefts, rights = parts(left), parts(right)
        return len(lefts) == len(rights) and all(map(same_value, lefts, rights))
    if cls is frozenset:
        return len(left) == len(right) and {(type(m), m) for m in left} == {(type(m), m) for m in right}
    return cls in _EQUAL and left == right


# Types whose builtin equality tells all.
_EQUAL = Classes({int, bool, str, bytes, range, torch.device, torch.Size, types.MethodType})


def _same_key(left: Any, right: Any) -> bool:
    return left is right or same_value(left, right)


def _slot(real: Any, name: str) -> Any:
    """An attribute kept in C: ABSENT if it is not set, UNKNOWN if there is no such attribute."""
    if is_a(real, type):
        return type.__getattribute__(real, "__dict__").get(name, ABSENT)
    getter = _getter(type(real), name)
    try:
        return UNKNOWN if getter is None else getter(real)
    except (AttributeError, ValueError):            # an empty slot; an empty cell
        return ABSENT


def _getter(cls: type, name: str) -> Callable[[Any], Any] | None:
    for base in type.__getattribute__(cls, "__mro__"):
        descriptor = type.__getattribute__(base, "__dict__").get(name)
        if is_a(descriptor, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return descriptor.__get__
    return None


def _differs(fact: str, known: Any) -> Break:
    return Break("untracked-mutation", f"{fact}; the trace knows {known if is_a(known, str) else _short(known)}")


def _describe(*where: Any) -> str:
    """A place for messages: an object by its path or type, and a key within it."""
    node, *keys = where
    if is_a(node, str):
        return node
    text = f"a new {node.cls.__qualname__}" if node.source is None else str(node.source)
    return "".join([text, *(f"[{_short(key)}]" for key in keys)])


def _keys(keys: Iterable[Any]) -> str:
    return ", ".join(map(_short, keys)) or "none"


def _short(value: Any) -> str:
    """A value as text for messages. No `__repr__` of the program runs."""
    if isinstance(value, Const):
        return _short(value.value)
    readable = type(value) in SCALARS or is_a(value, (RefNode, type))
    text = repr(value) if readable else f"a {type(value).__qualname__}"
    return text if len(text) <= 80 else text[:77] + "..."
