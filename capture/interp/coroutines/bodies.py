"""Which body is behind a generator, coroutine or asynchronous generator of ours, and whether a trace may resume it."""
from __future__ import annotations

import types
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.generator_drivers import GENERATORS
from capture.interp.core.interpreter import Interpreter
from capture.refgraph.node import Build, RefNode, Shadow
from capture.refgraph.source import DESCRIPTIONS, Computed

if TYPE_CHECKING:
    from capture.interp.coroutines.generators import Body

# State; the continuation and its first arguments; the one for an exception, where the value of a call is awaited.
Dormant = tuple[str, types.FunctionType | None, tuple[Any, ...], types.FunctionType | None]

# By id of the object, whose driver keeps the body alive.
_bodies: weakref.WeakValueDictionary[int, Body] = weakref.WeakValueDictionary()
# Of those that have finished, whose bodies are gone.
_codes: weakref.WeakKeyDictionary[Any, types.CodeType] = weakref.WeakKeyDictionary()


def note_body(real: Any, body: Body) -> None:
    """Notes the body behind a generator."""
    _bodies[id(real)] = body


def note_finished(real: Any, code: types.CodeType) -> None:
    """Notes that the body of a generator has ended. code: the body's."""
    _codes[real] = code


def find(interp: Interpreter, generator: Value) -> Body | None:
    """The body of a generator, of any kind, that may be resumed directly: this capture has made it, or takes it over. None for all
    others."""
    real = generator.real
    if not is_a(real, GENERATORS):
        return None
    body = body_of(real)
    return body if body is not None and (body.interp() is interp or take_over(interp, body, generator.shadow)) else None


def body_of(real: Any) -> Body | None:
    """The body of a generator of ours."""
    body = _bodies.get(id(real))
    return body if body is not None and body.reference() is real else None


def code_of(real: Any) -> types.CodeType | None:
    """The code of a generator of ours that has finished."""
    return _codes.get(real)


def dormant_of(real: Any) -> Dormant | None:
    """What is left of a dormant generator; None of any other object."""
    body = body_of(real)
    return None if body is None else body.dormant


DESCRIPTIONS[dormant_of] = "the state of a generator"


def watch(interp: Interpreter, values: Iterable[Value]) -> None:
    """Makes these generators part of the trace: what their bodies do when they die (`finally`) is recorded."""
    for value in values:
        body = body_of(value.real)
        if body is not None and isinstance(value.shadow, RefNode):
            body.watcher = weakref.ref(interp), value.shadow


def take_over(interp: Interpreter, body: Body, node: Shadow | None) -> bool:
    """Makes a dormant body one of this trace's, if that can be."""
    if body.dormant is None or not interp.tracking:
        return False
    record = interp.track(_record_of, interp, body, node)
    if record is not None:
        body.take_over(interp, node, record)  # type: ignore[arg-type]
    return record is not None


def _record_of(interp: Interpreter, body: Body, node: Shadow | None) -> Shadow:
    """What a trace knows of a dormant body: its state is guarded, the rest is guarded when it matters."""
    if not isinstance(node, RefNode) or node.source is None:
        raise Break("opaque-call", f"a {body.kind} of unknown origin was resumed")
    graph = interp.graph
    source = Computed(dormant_of, (graph.touch(node).source,))
    record: Build = graph.external(body.dormant, source)  # type: ignore[assignment]
    graph.depend(record.items[0], body.state.value)
    graph.resume(node.source)
    return record
