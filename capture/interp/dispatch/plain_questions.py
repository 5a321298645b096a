"""What programs ask most often, without dispatch: a text in a dict from outside, whether a container has items, what is in the
`__dict__` of an instance. Answers, guards and shadows are those to which `calls.apply` and `descriptors.bind` come for these.

Each returns None where there is more to ask, and has then changed nothing that asking in full would not.
"""
from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable

from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.function_models.identity import depend_truth
from capture.interp.polyfills.keys import is_by_python
from capture.interp.recording import arrays
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import is_heap_type
from capture.refgraph.node import Const, DictState, ListState, RefNode, SetState, Shadow

CONTAINERS = Classes((dict, OrderedDict, list, set))     # which a program can change; a tuple's length is guarded as it is met
MADE = Classes((ListState, DictState, SetState))         # states of those that the trace has made, of a length that is known


def looked_up(interp: Interpreter, mapping: Value, key: Value) -> Shadow | None:
    """What a dict has under a constant text, or ABSENT."""
    if type(mapping.real) is not dict or type(key.shadow) is not Const or type(key.real) is not str:
        return None
    node = outside(interp, mapping.shadow)
    if node is None or node.state is not None and type(node.state) is not DictState or is_by_python(mapping.real, key.real):
        return None
    return answered(interp, lambda: interp.graph.dict_get(node, key.real))


def truth(interp: Interpreter, container: Value) -> bool | None:
    """Whether a container that the trace made, or of which no item was looked at, has any; the program decides by it."""
    if type(container.real) not in CONTAINERS:
        return None
    node = known(interp, container.shadow)
    if node is not None and node.created and type(node.state) in MADE:
        return bool(container.real)         # it follows from what the trace did
    if node is None or node.source is None or node.state is not None:
        return None

    def model() -> Shadow:
        depend_truth(interp, container)
        return container.shadow
    return None if answered(interp, model) is None else bool(container.real)


def namespace(interp: Interpreter, obj: Value, descriptor: object) -> Shadow | None:
    """The `__dict__` of an instance of a class of Python; `descriptor` is what the class has under that name."""
    if type(descriptor) is not types.GetSetDescriptorType or not is_heap_type(type(obj.real)) or arrays.is_value(obj.real):
        return None
    node = outside(interp, obj.shadow)
    if node is None or node.state is not None:
        return None
    return answered(interp, lambda: interp.graph.attributes(node))


def outside(interp: Interpreter, shadow: Shadow | None) -> RefNode | None:
    """The node of an object from outside, in a trace that need not end here."""
    node = known(interp, shadow)
    return None if node is None or node.source is None else node


def known(interp: Interpreter, shadow: Shadow | None) -> RefNode | None:
    """The node of an object, in a trace that need not end here."""
    if not interp.tracking or not interp.inlining or type(shadow) is not RefNode:
        return None
    return shadow if interp.early_breaks is None or interp.early_breaks.here(interp) is None else None


def answered(interp: Interpreter, model: Callable[[], Shadow | None]) -> Shadow | None:
    """What a model says; None if it raises Break, which it will raise again when asked in full."""
    def say() -> Shadow | None:
        try:
            return model()
        except Break:
            return None
    return interp.track(say)
