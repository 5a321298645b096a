"""The guard tree: from guards to the nodes and checks that the extension evaluates.

Entries hold no strong reference to objects of the user's program: what a guard expects by identity is held weakly, and
its death takes the entry out of the tree. Objects that cannot be referenced weakly (numbers, dtypes) are held strongly.
"""
from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from capture import _C
from capture.guards.explain import Mismatch
from capture.guards.guard import Guard, Kind
from capture.refgraph.dropped_references import Drop, Loss
from capture.refgraph.identical import BUILTIN_SCALARS, Classes
from capture.refgraph.requirements import Form
from capture.refgraph.source import (
    Attr,
    Computed,
    Constant,
    Function,
    ImportedModule,
    InstanceDict,
    Item,
    Literal,
    Local,
    Source,
    TypeAttr,
    TypeOf,
)

STEP_CODES = {name: code for code, name in enumerate(_C.STEPS)}
KIND_CODES = {Kind[name]: code for code, (name, _) in enumerate(_C.KINDS)}
if {kind: kind.row.form for kind in Kind} != {Kind[name]: Form[form] for name, form in _C.KINDS}:
    raise ImportError(f"capture._C knows other kinds of guards, or expects other things of them: {_C.KINDS}")
COPIED = Classes((tuple, list, set, frozenset))


class CacheEntry(_C.CacheEntry):
    """One captured variant: `mock` is called on a hit (None: the frame runs natively), `hits` counts, `alive` says
    whether all objects that it depends on still exist."""

    def __init__(self, mock: Callable[..., Any] | None, payload: object) -> None:
        self._guards: tuple[Guard, ...] = ()
        self._lifted: tuple[Source, ...] = ()
        self._needed: tuple[Any, ...] = ()

    @property
    def guard_count(self) -> int:
        """How many guards there are."""
        return len(self._guards)

    @property
    def guards(self) -> list[Guard]:
        """The guards, in order, each made anew to be shown; what died is shown as None."""
        return list(map(_Thawing().guard, self._guards))

    def guard(self, index: int) -> Guard:
        """One of them."""
        return _Thawing().guard(self._guards[index])

    @property
    def lifted(self) -> list[Source]:
        """Where the values come from that the mock function gets as a tuple."""
        return list(map(_Thawing().source, self._lifted))


class GuardTree(_C.GuardTree):
    """The entries of one code object. At most 64 entries (ValueError). `on_death(entry)` is called when objects that an entry
    depends on have died."""

    def __init__(self, code: CodeType, on_death: Callable[[CacheEntry], None] | None = None) -> None:
        self._code = weakref.ref(code)
        self.on_death = on_death

    def succeed(self, former: GuardTree) -> None:
        """Tells of deaths whom `former` tells: the tree of the code that the same function had before."""
        self.on_death = former.on_death

    @property
    def code(self) -> CodeType | None:
        """The code object, while it exists."""
        return self._code()

    def insert(self, guards: Sequence[Guard], lifted: Sequence[Source], mock: Callable[..., Any] | None,
               payload: object, needed: Iterable[Any] = (), losses: Iterable[Loss] = ()) -> CacheEntry:
        """Adds an entry, which applies when all guards hold, the lifted values exist, and the objects `needed` by the mock live.

        On a hit mock(*arguments) is called; with lifted sources, mock(*arguments, tuple of their values). A call by which code
        of the program's might run as something dies of these `losses` is no hit: it runs natively.
        Raises TypeError for expectations that their kind does not allow, ValueError when the tree is full.
        """
        entry = CacheEntry(mock, payload)
        lowering = _Lowering(entry, self.on_death)
        checks = [lowering.check(guard) for guard in guards]
        places = [lowering.node(source) for source in lifted]
        entry._guards = tuple(lowering.frozen_guard(guard, held) for guard, (_, _, held) in zip(guards, checks))
        entry._lifted = tuple(lowering.frozen(source) for source in lifted)
        entry._needed = tuple(map(lowering.identity, needed))
        dropped = [(lowering.node(loss.owner), loss.drop.value,
                    lowering.node(loss.key) if loss.drop is Drop.CHANGING_ITEM else loss.key) for loss in losses]
        self._add(entry, lowering.nodes, checks, places, dropped)
        return entry

    def explain(self, function: FunctionType, args: Sequence[Any], every: bool = False) -> list[Mismatch]:
        """For each entry that does not apply: the first guard that fails, and why. every: each one that fails."""
        mismatches = []
        for entry, index, subject, expected, found, aspect in (self._explain_all if every else self._explain)(function, args):
            guard = entry.guard(index) if index >= 0 else None
            if guard is not None and guard.source is not None:
                subject = str(guard.source)
            mismatches.append(Mismatch(entry, guard, subject or "lifted value", expected, found, aspect))
        return mismatches


class KeyPart(weakref.ref):     # type: ignore[type-arg]
    """A weak reference to a part of a key, which is found where that very object is."""

    __slots__ = ()
    __hash__ = weakref.ref.__hash__

    def __eq__(self, other: object) -> bool:
        return self() is other or weakref.ref.__eq__(self, other) is True


class _Lowering:
    """Guards of one entry as nodes (base, step, key) and checks (node, kind, expected), for `_C.GuardTree._add`.

    Paths are told apart by identity, which is quick; the extension merges those that are equal.
    """

    def __init__(self, entry: CacheEntry, on_death: Callable[[CacheEntry], None] | None) -> None:
        self._on_death = on_death
        self.nodes: list[tuple[int, int, Any]] = []
        self._index: dict[int, int] = {}
        self._frozen: dict[int, Source] = {}
        self._held: dict[int, weakref.ref[Any]] = {}
        self._properties: dict[_C.TensorProperties, _C.TensorProperties] = {}
        self._entry = weakref.ref(entry)

    def node(self, source: Source) -> int:
        """The index of the node for a path; bases come first."""
        index = self._index.get(id(source))
        if index is None:
            base = -1 if source.base is None else self.node(source.base)
            node = base, STEP_CODES[type(source).__name__], self._key(source)
            index = self._index[id(source)] = len(self.nodes)
            self.nodes.append(node)
        return index

    def _key(self, source: Source) -> Any:
        match source:
            case Local(index=index):
                return index
            case Constant(value=value):
                return self.identity(value)
            case Item(key=key):
                return self.key(key)
            case Literal(value=value):
                return value
            case ImportedModule(name=name) | Attr(name=name) | TypeAttr(name=name):
                return name
            case Computed(op=op, args=args):
                return op, tuple(self.node(arg) for arg in args)
            case Function() | InstanceDict() | TypeOf():
                return None
        raise TypeError(f"the guard tree cannot follow a {type(source).__name__}")

    def check(self, guard: Guard) -> tuple[int, int, Any]:
        """(node, kind, expected) with references to objects of the program made weak."""
        node = -1 if guard.source is None else self.node(guard.source)
        return node, KIND_CODES[guard.kind], self.expectation(guard.kind.row.form, guard.expected)

    def expectation(self, form: Form, expected: Any) -> Any:
        """What stands for `expected` in the tree."""
        match form:
            case Form.OBJECT:
                return self.identity(expected)
            case Form.KEY:
                return self.key(expected)
            case Form.VALUE:
                return self.hold(expected)
            case Form.PROPERTIES:                   # so that they stay in the CPU's cache
                return self._properties.setdefault(expected, expected)
        return form.with_paths(expected, self.node)

    def hold(self, value: Any) -> Any:
        """What stands for `value` in the tree: scalars as they are, containers as copies, other objects weakly."""
        cls = type(value)
        if cls in BUILTIN_SCALARS:
            return value
        if cls in COPIED:
            return cls(map(self.hold, value))
        if cls is dict:
            return {self.hold(key): self.hold(item) for key, item in value.items()}
        if cls is bytearray:
            return bytearray(value)
        if cls is weakref.ref:
            raise TypeError("a weak reference cannot be expected by a guard")
        if issubclass(cls, tuple) or cls is slice or cls is range:
            return value
        return self.identity(value)

    def key(self, value: Any) -> Any:
        """What is found in a dict or set where `value` is. The extension looks up what weak references refer to, not in tuples."""
        return tuple(map(self._part, value)) if type(value) is tuple else self.hold(value)

    def _part(self, value: Any) -> Any:
        held = self.key(value)
        return KeyPart(value, held.__callback__) if type(held) is weakref.ref else held

    def identity(self, value: Any) -> Any:
        """A weak reference whose death is the entry's, or the object itself where it allows none."""
        reference = self._held.get(id(value))
        if reference is None:
            entry, on_death = self._entry, self._on_death

            def died(_: object, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
                dying = entry()
                if dying is not None and dying.alive:
                    dying._kill()
                    if on_death is not None and not is_finalizing():
                        on_death(dying)

            try:
                reference = self._held[id(value)] = weakref.ref(value, died)
            except TypeError:
                return value
        return reference

    def frozen(self, source: Source) -> Source:
        """The path with its constants held weakly; the path itself when it has none."""
        frozen = self._frozen.get(id(source))
        if frozen is None:
            frozen = self._frozen[id(source)] = _rebuilt(source, self.frozen, self.identity, self.hold)
        return frozen

    def frozen_guard(self, guard: Guard, held: Any) -> Guard:
        """The guard for showing it later."""
        form = guard.kind.row.form
        held = form.with_paths(guard.expected, self.frozen) if form.has_paths else held
        return Guard(None if guard.source is None else self.frozen(guard.source), guard.kind, held, guard.place)


def _rebuilt(source: Source, path: Callable[[Source], Source], constant: Callable[[Any], Any], key: Callable[[Any], Any]) -> Source:
    """A path with something else for the paths, the constant and the key in it; itself where its base stays."""
    match source:
        case Constant(value=value):
            return Constant(constant(value))
        case Computed(args=args):
            return replace(source, args=tuple(map(path, args)))
        case Item(base=base, key=found):
            return Item(path(base), key(found))
    if source.base is None:
        return source
    base = path(source.base)
    return source if base is source.base else replace(source, base=base)  # type: ignore[type-var]


def _referent(value: Any) -> Any:
    return value() if type(value) is weakref.ref else value


def _thawed_value(value: Any) -> Any:
    cls = type(value)
    if cls is weakref.ref or cls is KeyPart:
        return value()
    if cls in COPIED:
        return cls(map(_thawed_value, value))
    if cls is dict:
        return {_thawed_value(key): _thawed_value(item) for key, item in value.items()}
    return value


class _Thawing:
    """Turns frozen guards back into such as can be shown. What paths have in common is made once."""

    def __init__(self) -> None:
        self._made: dict[int, Source] = {}      # by the identity of the frozen path, which its entry holds

    def guard(self, frozen: Guard) -> Guard:
        return Guard(self.source(frozen.source), frozen.kind, self._expectation(frozen), frozen.place)

    def source(self, frozen: Source | None) -> Any:
        if frozen is None:
            return None
        made = self._made.get(id(frozen))
        if made is None:
            made = self._made[id(frozen)] = _rebuilt(frozen, self.source, _referent, _thawed_value)
        return made

    def _expectation(self, guard: Guard) -> Any:
        form = guard.kind.row.form
        if form.has_paths:
            return form.with_paths(guard.expected, self.source)
        return _referent(guard.expected) if form is Form.OBJECT else _thawed_value(guard.expected)
