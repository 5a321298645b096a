"""Effects: what a call does to the world outside of it, in order. The mock function repeats them on every hit.

In the narrow sense, an *effect* mutates an outside object. A *call effect* is a call that acts on the world (printing, logging,
files) or asks it (clocks, random numbers). What it returns is a replayed value, by which nothing in the trace may be decided.
"""
from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from capture.errors import Break, UserFrame
from capture.refgraph.identical import LISTS
from capture.refgraph.node import Build, Const, Display, Expr, External, ListState, RefNode, Shadow, TensorState, source_of
from capture.refgraph.shapes import ask
from capture.refgraph.source import Source, TypeAttr

# Operations of effects by which no object loses a reference that it had.
ADDING = frozenset({
    list.append, list.extend, list.insert, list.sort, list.reverse, collections.deque.insert, collections.deque.reverse,
    collections.deque.rotate, set.add, set.update, collections.OrderedDict.move_to_end})

# … and those by which the program may have got what an object held.
POPPING = frozenset({list.pop, collections.deque.pop, collections.deque.popleft, set.pop, dict.__delitem__,
                     collections.OrderedDict.__delitem__, ContextVar.set})

# One frame of the user's program: code object, offset of the instruction, line.
Position = tuple[types.CodeType, int, int]


def user_stack(positions: tuple[Position, ...]) -> tuple[UserFrame, ...]:
    """The frames of the program as user frames."""
    return tuple(UserFrame.at(code, line) for code, _, line in positions)


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """`operation(target, *args)` on an outside object: `dict.__setitem__`, `list.append`, `object.__setattr__` … Only builtin
    operations: no effect runs Python code of the user. Objects that the trace created have no effects; the mock function builds
    them in their final state. early: done before the graph runs, because of the object that it drops."""

    operation: Callable[..., Any]
    target: RefNode
    args: tuple[Shadow, ...]
    early: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CallEffect:
    """`function(*args, **kwargs)`, done for real at its place among the effects. `names` are the keywords of the last of `args`.
    shown: which of `args` the call may look into; these objects must be as they were at `serial`, a point in the order of the
    trace. stream: the random stream, if the call only draws from it or seeds it; such a call may be moved before anything but other
    draws. positions: the user's frames that made the call, outermost first. once: the call that makes it cannot run again."""

    function: Shadow
    args: tuple[Shadow, ...]
    names: tuple[str, ...]
    shown: tuple[Shadow, ...]
    stream: RefNode | None
    serial: int
    positions: tuple[Position, ...]
    once: bool = False

    @property
    def operands(self) -> tuple[Shadow, ...]:
        return self.function, *self.args


def operands_of(effect: Effect | CallEffect) -> tuple[Shadow, ...]:
    """What an effect is done with."""
    return effect.operands if isinstance(effect, CallEffect) else (effect.target, *effect.args)


@dataclass(frozen=True, slots=True, eq=False)
class Replayed(Expr):
    """What a call effect returned: another value on every hit. `op` is the effect itself. returns: the type of the value, if it is
    always the same. value: the value in the capture, if it is a scalar."""

    op: CallEffect  # type: ignore[assignment]
    returns: type | None = None
    value: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Traceback(Expr):
    """The traceback of an exception which the trace has raised: `runtime.extend` of the one that it had before."""


def changed_by(effect: Effect | CallEffect) -> tuple[RefNode, Callable[..., Any], tuple[Shadow, ...]] | None:
    """The object from outside of which an effect changes what it holds, by which operation, and with what; None: there is none."""
    if isinstance(effect, Effect):
        target, operation, args = effect.target, effect.operation, effect.args
    elif isinstance(effect.function, Const) and effect.function.value is ContextVar.set:
        target, *rest = effect.args  # type: ignore[assignment]
        operation, args = ContextVar.set, tuple(rest)
    else:
        return None
    return None if target.source is None else (target, operation, args)


def is_foreign(shadow: Shadow | None) -> bool:
    """Whether an object, or what it belongs to, was returned by a call effect: an opened file."""
    while isinstance(shadow, RefNode):
        shadow = shadow.origin
    return isinstance(shadow, Replayed)


@dataclass(frozen=True, slots=True)         # which cannot be held weakly, as mock functions hold the program's own
class Keywords:
    """`function` as a callable of positional arguments alone, the last of which it takes by keyword, `names`."""

    function: Callable[..., Any]
    names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, *args: Any) -> Any:
        split = len(args) - len(self.names)
        return self.function(*args[:split], **dict(zip(self.names, args[split:])))


@dataclass(frozen=True, slots=True)         # which cannot be held weakly, as mock functions hold the program's own
class Arranged:
    """`function` as a callable of scalars alone, which it takes in tuples and lists: `layout` has an entry for each argument, an
    index among the scalars, or a class and the entries of its items. So what it computes is a path, which a guard can check."""

    function: Callable[..., Any]
    layout: tuple[Any, ...]

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, *scalars: Any) -> Any:
        return self.function(*(arrange(entry, scalars) for entry in self.layout))


def arrange(entry: Any, scalars: tuple[Any, ...]) -> Any:
    """The argument that an entry of a layout stands for."""
    return scalars[entry] if type(entry) is int else entry[0](arrange(item, scalars) for item in entry[1:])


def function_of(op: Callable[..., Any]) -> Callable[..., Any]:
    """The function that the operation of an expression calls."""
    while isinstance(op, (Keywords, Arranged)):
        op = op.function
    return op


def arranged(function: Callable[..., Any], args: tuple[Shadow, ...]) -> tuple[Callable[..., Any], tuple[Shadow, ...]]:
    """The operation and the operands of `function(*args)`, its arguments flattened if they are made of scalars that have paths."""
    scalars: list[Shadow] = []

    def flatten(shadow: Shadow) -> Any:
        if isinstance(shadow, (Build, Display)) and shadow.cls in LISTS:
            return shadow.cls, *map(flatten, shadow.items)
        if isinstance(shadow, Const) and type(shadow.value) is tuple:
            return tuple, *(flatten(Const(item)) for item in shadow.value)
        scalars.append(shadow)
        return len(scalars) - 1
    layout = tuple(map(flatten, args))
    nested = any(type(entry) is not int for entry in layout)
    if not nested or any(source_of(scalar) is None for scalar in scalars):
        return function, args
    return Arranged(function, layout), tuple(scalars)


def decision(what: str, shadows: Iterable[Shadow]) -> Break:
    """Why a trace ends where `what` ("a branch") depends on values that only a hit can compute: by where these come from."""
    stack = list(shadows)
    while stack:
        shadow = stack.pop()
        if isinstance(shadow, Replayed):
            function = shadow.op.function
            name = getattr(function_of(function.value), "__name__", "a call") if isinstance(function, Const) else "a call"
            return Break("changing-result", f"{what} depends on the result of {name}()")
        if isinstance(shadow, Expr) and shadow.op is ask:
            return Break("data-dependent-shape", f"{what} depends on the shape of a tensor")
        stack += shadow.parts
        if isinstance(shadow, RefNode) and isinstance(shadow.origin, Replayed):
            stack.append(shadow.origin)
        elif isinstance(shadow, RefNode) and isinstance(shadow.state, ListState):
            stack += (item for item in shadow.state.items if not isinstance(item, RefNode))
    return Break("data-dependent", f"{what} depends on the value of a tensor")


# -- what is done before the graph runs --------------------------------------------------------------------------------

def calls_in(shadow: Shadow) -> list[CallEffect] | None:
    """The call effects that a value comes from; None if it also comes from objects, which may be others, or not there at all,
    before the graph has run."""
    found = list(walk(shadow))
    if any(not isinstance(part, (Const, External, Expr, Build, Display)) for part in found):
        return None
    return [part.op for part in found if isinstance(part, Replayed)]


def walk(root: Shadow) -> Iterator[Shadow]:
    """A value and all that it is computed and composed of, each once; it may be deeper than Python's own stack."""
    stack, seen = [root], {id(root)}
    while stack:
        shadow = stack.pop()
        yield shadow
        if isinstance(shadow, (Expr, Build, Display)) and not isinstance(shadow, Replayed):
            for part in reversed(shadow.parts):
                if id(part) not in seen:
                    seen.add(id(part))
                    stack.append(part)


def draws_before(effects: list[Effect | CallEffect], early: set[CallEffect], wanted: CallEffect) -> list[CallEffect] | None:
    """The draws of random numbers that must come before the graph with those in `early`, if `wanted` is to be drawn before it: all
    earlier ones, so that the order of draws stays that of the program. None if that is not possible."""
    if wanted in early or wanted.stream is None:
        return [] if wanted in early else None
    found: list[CallEffect] = []
    streams = {part for effect in effects if isinstance(effect, CallEffect) and effect.stream is not None
               for part in (effect.stream, effect.stream.attrs)}
    changed = False                                 # something outside was, which draws may be given
    for effect in effects:
        if isinstance(effect, Effect):
            if effect.target in streams:
                return None
            changed = True
        elif effect.stream is not None:
            if effect not in early:
                if not _can_be_drawn(effect, {*early, *found}, changed):
                    return None
                found.append(effect)
        elif effect not in early and not all(map(_is_plain, effect.shown)):
            return None
        if effect is wanted:
            return found
    return None


def _can_be_drawn(draw: CallEffect, made: set[CallEffect], changed: bool) -> bool:
    """Whether a draw can be made when, of all calls, only `made` have been. changed: objects from outside may have changed since
    entry."""
    if draw.stream is None or draw.stream.source is None:      # the trace made it
        return False
    for arg in draw.args:
        if arg is draw.stream:
            continue
        if isinstance(arg, RefNode):
            if arg.source is None or isinstance(arg.state, TensorState) or changed:
                return False
        elif (calls := calls_in(arg)) is None or not made.issuperset(calls):
            return False
    return True


def _is_plain(shadow: Shadow) -> bool:
    """Whether a value is data, which is shown without running Python code of the program's: this might draw numbers too."""
    return all(not isinstance(part, RefNode) or isinstance(part.state, TensorState) for part in walk(shadow))


def ready_at_entry(effects: list[Effect | CallEffect], early: set[CallEffect]) -> int:
    """How many effects, from the first on, use only entry state and the results of these calls, so that they may come before the
    graph."""
    done: set[CallEffect] = set()
    for count, effect in enumerate(effects):
        if isinstance(effect, CallEffect):
            ready = effect in early or all(map(_is_plain, effect.shown)) and all(_is_there(s, done) for s in effect.operands)
            done.add(effect)
        else:
            settled = effect.early or not isinstance(effect.target.state, TensorState)
            ready = settled and all(_is_there(part, done) for part in (effect.target, *effect.args))
        if not ready:
            return count
    return len(effects)


def _is_there(shadow: Shadow, done: set[CallEffect]) -> bool:
    """Whether a value is available at entry, after these calls."""
    for part in walk(shadow):
        if isinstance(part, RefNode):
            if part.source is None and not (isinstance(part.origin, Replayed) and part.origin.op in done):
                return False
        elif isinstance(part, Replayed):
            if part.op not in done:
                return False
        elif not isinstance(part, (Expr, Build, Display, Const, External)):
            return False
    return True


def merge_changes(effects: list[Effect | CallEffect]) -> list[Effect | CallEffect]:
    """Leaves out assignments that a later one overwrites; the first takes the last's value, so that the order of keys
    stays. What is assigned to tensors stays as it is: it may change other attributes of theirs. Leaves out what is pushed on a
    list and popped again, as stacks of contexts are. No change is moved across a call, which may look at it."""
    settled: list[Effect | CallEffect | None] = []
    places: dict[int, dict[Any, int]] = {}          # target's serial -> key -> index in `settled`
    pushes: dict[int, list[int]] = {}               # target's serial -> indices in `settled` of what nothing came after but pushes
    for effect in effects:
        if isinstance(effect, CallEffect):
            places.clear()
            pushes.clear()
            settled.append(effect)
            continue
        known = places.setdefault(effect.target.serial, {})
        if effect.operation is list.append:
            pushes.setdefault(effect.target.serial, []).append(len(settled))
        elif effect.operation is list.pop and not effect.args and pushes.get(effect.target.serial):
            settled[pushes[effect.target.serial].pop()] = None
            continue
        else:
            pushes.pop(effect.target.serial, None)
        if not _overwrites(effect):
            known.clear()
        else:
            key = effect.args[0]
            place = known.setdefault(key.value if isinstance(key, Const) else key, len(settled))
            if place < len(settled):
                settled[place] = effect
                continue
        settled.append(effect)
    return [effect for effect in settled if effect is not None]


def _overwrites(effect: Effect) -> bool:
    """Whether an effect is the assignment of one key or attribute, and changes nothing else."""
    if effect.operation is setattr:
        return effect.target.cls is types.CellType
    if isinstance(effect.target.state, TensorState):
        return False
    changing = bool(effect.args) and isinstance(effect.args[0], (Expr, External))           # a key which may be any other
    return not changing and effect.operation in (
        dict.__setitem__, collections.OrderedDict.__setitem__, object.__setattr__, type.__setattr__)


def without_restored(effects: list[Effect | CallEffect]) -> list[Effect | CallEffect]:
    """Leaves out assignments by which attributes of classes keep what they had when the call began: a program that sets one for a
    while, and puts back what it was. Each would have all guards on the class looked at again."""
    deleted = {getattr(effect.args[0], "value", None) for effect in effects
               if isinstance(effect, Effect) and effect.operation is type.__delattr__}
    changed: set[tuple[int, Any]] = set()
    kept = []
    for effect in effects:
        if isinstance(effect, Effect) and effect.operation in (type.__setattr__, type.__delattr__):
            name, *values = effect.args
            place = effect.target.serial, getattr(name, "value", None)
            if place not in changed and values and place[1] not in deleted and (
                    source_of(values[0]) == _own_attribute(effect.target, place[1])):
                continue
            changed.add(place)
        kept.append(effect)
    return kept


def _own_attribute(target: RefNode, name: Any) -> Source | None:
    """The path of an attribute of a class which no base and no metaclass has, so that what was found there when the call began was
    its own, if no class lost it since."""
    others = (*type.__getattribute__(target.real, "__mro__")[1:], *type.__getattribute__(type(target.real), "__mro__"))
    inherited = any(name in type.__getattribute__(other, "__dict__") for other in others)
    return None if inherited or target.source is None or type(name) is not str else TypeAttr(target.source, name)
