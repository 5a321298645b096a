"""What a class has under a name, bound to an instance or to a class as its own `__get__` does it.

Code of the user's that is run for that (of properties, of descriptors written in Python) is inlined; what C does is done for real,
and its outcome is then explained.
"""
from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import program_frames, unwind
from capture.interp.core.frame import NONE_VALUE, Asked, Catch, Then, UserError, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import REDUCTIONS
from capture.interp.dispatch import callables, calls, overrides, plain_questions
from capture.interp.dispatch.c_attributes import C_DATA, class_builtin, external_c_attribute
from capture.interp.dispatch.call_kinds import name_of
from capture.interp.function_models import autograd, computed_arrays
from capture.interp.function_models.shadows import shadow_of
from capture.interp.polyfills.objects import or_hook
from capture.interp.recording import arrays, leaf_functions, tensors
from capture.refgraph.class_attributes import pin_special, type_attr
from capture.refgraph.lookup import MISSING, is_heap_type, lookup_class
from capture.refgraph.node import ABSENT, Build, Const, External, HandleState, RefNode, Shadow
from capture.refgraph.source import Computed, Literal
from capture.refgraph.state_queries import is_unset

C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType, types.ClassMethodDescriptorType)
OF_PROPERTY, OF_STATIC, OF_CLASS_METHOD = (cls.__dict__["__get__"] for cls in (property, staticmethod, classmethod))
CLASS_METHODS_BIND = sys.version_info < (3, 13)      # what they wrap, by its own `__get__`; later it is called with the class


def bind(interp: Interpreter, found: Value, name: str, obj: Value | None, then: Then, on_raise: Catch, owner: Value | None = None,
         asked: Asked | None = None, hook: Value | None = None) -> None:
    """`found.__get__(obj, owner)`, or `found` itself if its class has no `__get__`. `obj` is None where a class is asked for its
    own attribute; `owner` is by default the class of `obj`. asked: the attribute that this computes; hook: the `__getattr__` of the
    object asked, in case the attribute is missing."""
    descriptor, kind = found.real, type(found.real)
    get = lookup_class(kind, "__get__", MISSING)        # None is called, too
    if get is MISSING or obj is None and (issubclass(kind, callables.FUNCTIONS) or get is OF_PROPERTY):
        return interp.deliver(found, then)
    if issubclass(kind, callables.FUNCTIONS):
        return bind_method(interp, found, obj, then)  # type: ignore[arg-type]
    if owner is None:
        owner = Value(type(obj.real), interp.track(class_of, interp, obj))  # type: ignore[union-attr]
    if get is OF_PROPERTY and descriptor.fget is not None:
        return _call(interp, part(interp, found, "fget"), [obj], hook, then, on_raise, asked)  # type: ignore[list-item]
    if get is OF_STATIC:
        return interp.deliver(part(interp, found, "__func__"), then)
    if get is OF_CLASS_METHOD:
        inner = part(interp, found, "__func__")
        if not CLASS_METHODS_BIND and not callable(inner.real):
            return _bind_not_callable(interp, found, get, owner, then, on_raise)
        if not CLASS_METHODS_BIND or lookup_class(type(inner.real), "__get__") is None:
            return bind_method(interp, inner, owner, then)
        interp.track(pin_special, interp.graph, type(inner.real), "__get__")
        return bind(interp, inner, name, owner, then, on_raise, owner, asked, hook)
    if not is_a(get, types.WrapperDescriptorType):        # C calls what it finds, without binding that
        method = Value(get, interp.track(callables.class_attribute, interp, kind, "__get__"))
        args = [found, obj or NONE_VALUE, owner]
        return _call(interp, method, args, hook, then, on_raise, asked)
    if obj is not None:
        if overrides.is_attribute_of_tensors(descriptor) and overrides.is_overridden(interp, [obj], {}):
            override = overrides.about_attribute(interp, descriptor, "__get__", [obj])
            if override is not None:
                return _call(interp, *calls.override_arguments(override, descriptor), hook, then, on_raise, asked)
        if kind in C_DATA and descriptor in REDUCTIONS and REDUCTIONS[descriptor](interp, [obj], {}, then, on_raise):
            return
    bind_in_c(interp, found, get, name, obj, owner, then, on_raise, asked, hook)


def bind_method(interp: Interpreter, function: Value, self: Value, then: Then) -> None:
    method = types.MethodType(function.real, self.real)
    interp.deliver(Value(method, Build(types.MethodType, (function.shadow, self.shadow)) if interp.tracking else None), then)


def _bind_not_callable(interp: Interpreter, found: Value, get: Any, owner: Value, then: Then, on_raise: Catch) -> None:
    """A class method of an object that cannot be called: its `__get__` makes a method of the object, which `types.MethodType`
    refuses."""
    def explain(result: Any) -> Shadow:
        raise Break("opaque-call", "a class method wraps what is not callable")
    perform(interp, Value(get, Const(get)), [found, NONE_VALUE, owner], explain, then, on_raise, lambda: None,
            resumable=on_raise is None)


def bind_in_c(interp: Interpreter, found: Value, get: Any, name: str, obj: Value | None, owner: Value, then: Then, on_raise: Catch,
              asked: Asked | None, hook: Value | None) -> None:
    """`get(found, obj, owner)`, where `get` is the `__get__` of a descriptor written in C."""
    if name == "__dict__" and obj is not None and (known := plain_questions.namespace(interp, obj, found.real)) is not None:
        return interp.deliver(Value(interp.real(get, found.real, obj.real, owner.real), known), then)
    args = [found, obj or NONE_VALUE, owner]
    if obj is not None and obj.real is None:        # which `__get__` takes for no object at all
        get, args = getattr, [obj, Value(name, Const(name))]

    def explain(result: Any) -> Shadow:
        if obj is None:
            return bound_to_class(interp, found, owner, result)
        return bound_by_c(interp, obj, name, found, result)

    def otherwise(exception: BaseException) -> bool:
        if is_a(exception, AttributeError) and asked is not None:
            if hook is not None:
                calls.call(interp, hook, [asked[0], Value(name, Const(name))], None, then, on_raise, asked)
                return True
            unwind.tell_attribute(interp, exception, *asked)
        return on_raise is not None and on_raise(exception)
    perform(interp, Value(get, Const(get)), args, explain, then, otherwise, lambda: refused(interp, obj, name, found),
            resumable=on_raise is None and hook is None)


def perform(interp: Interpreter, function: Value, args: list[Value], explain: Callable[[Any], Shadow] | None, then: Then,
            on_raise: Catch, on_missing: Callable[[], Any], resumable: bool) -> None:
    """One real call that finds an attribute. `explain(result)` gives the shadow, `on_missing()` guards an error. resumable: whether
    the trace may end before it."""
    real, reals = function.real, [arg.real for arg in args]
    try:
        if any(is_a(value, torch.Tensor) for value in reals):
            result = program_frames.in_place(interp, real, *reals)         # it may warn
        else:
            result = interp.real(real, *reals)
    except UserError as error:
        exception = error.exception
    else:
        if explain is None:
            shadow = None
        elif resumable and calls.is_resumable(then):
            shadow = interp.describe(lambda: explain(result), function, args, {}, result, then)
        else:
            shadow = interp.track(explain, result)
        return interp.deliver(Value(result, shadow), then)
    interp.track(on_missing)
    unwind.hand_on(interp, exception, on_raise)


def _call(interp: Interpreter, function: Value, args: list[Value], hook: Value | None, then: Then, on_raise: Catch,
          asked: Asked | None) -> None:
    """A call that finds the attribute of an object, or else leaves it to `hook`."""
    function, args = or_hooked(hook, asked, function, args)
    calls.call(interp, function, args, None, then, on_raise, asked)


def or_hooked(hook: Value | None, asked: Asked | None, function: Value, args: list[Value]) -> tuple[Value, list[Value]]:
    """The call of a function that computes an attribute, with the `__getattr__` that it is left to otherwise."""
    if hook is None or asked is None:
        return function, args
    return Value(or_hook, Const(or_hook)), [hook, asked[0], Value(asked[1], Const(asked[1])), function, *args]


# -- shadows -----------------------------------------------------------------------------------------------------------

def find(interp: Interpreter, cls: type, name: str, real: Any, obj: Value | None = None) -> Value:
    """What a class has under `name`, unbound. Guards its part in attribute access, and the type of `obj`, which led to the
    class."""
    def model() -> Shadow:
        if obj is not None:
            pin_type(interp, obj)
        return pin_kind(interp, cls, name, type(real))
    return Value(real, interp.track(model))


def pin_kind(interp: Interpreter, cls: type, name: str, kind: type) -> Shadow:
    """Guards that what a class has under `name` takes part in attribute access as it does now."""
    graph = interp.graph
    shadow = type_attr(graph, cls, name)[2]
    if graph.pinned_kinds.get((id(cls), name)) is shadow:
        return shadow
    graph.note_kind(cls, name, shadow)
    if isinstance(shadow, External):
        graph.require(shadow.source, "TYPE", kind)
    elif isinstance(shadow, RefNode):
        graph.touch(shadow)
    pin_special(graph, kind, "__get__", "__set__", "__delete__")
    return shadow


def pin_type(interp: Interpreter, obj: Value) -> None:
    if isinstance(obj.shadow, RefNode):
        interp.graph.touch(obj.shadow)
    elif isinstance(obj.shadow, External):
        interp.graph.require(obj.shadow.source, "TYPE", type(obj.real))


def class_of(interp: Interpreter, obj: Value) -> Shadow:
    if isinstance(obj.shadow, RefNode):
        interp.graph.touch(obj.shadow)
    elif isinstance(obj.shadow, External):
        interp.graph.require(obj.shadow.source, "TYPE", type(obj.real))
    return interp.graph.constant(type(obj.real))


def part(interp: Interpreter, owner: Value, name: str) -> Value:
    """A C-level part of a descriptor or other outside object."""
    real = getattr(owner.real, name)

    def model() -> Shadow:
        if isinstance(owner.shadow, RefNode) and owner.shadow.source is not None:
            return interp.graph.slot(owner.shadow, name, real)
        return interp.graph.constant(real)
    return Value(real, interp.track(model))


def absent(interp: Interpreter, obj: Value, name: str) -> Shadow:
    """Neither the class nor the instance has the attribute."""
    node, graph = obj.shadow, interp.graph
    if isinstance(node, RefNode):
        graph.touch(node)
        if not is_a(obj.real, type):
            type_attr(graph, type(obj.real), name)
            pin_special(graph, type(obj.real), "__getattr__")
        attrs = graph.attributes(node)
        if attrs is not None:
            graph.dict_get(attrs, name)
    elif isinstance(node, External):
        graph.require(node.source, "TYPE", type(obj.real))
    return ABSENT


def refused(interp: Interpreter, obj: Value | None, name: str, found: Value) -> Shadow:
    """A descriptor of C raised: it is of another class, or a slot that is empty."""
    node = None if obj is None else obj.shadow
    interp.graph.depend(found.shadow, found.real)
    if is_a(found.real, types.MemberDescriptorType) and not (isinstance(node, RefNode) and node.created):
        if not isinstance(node, RefNode):
            raise Break("opaque-call", f"the empty slot {name!r} was asked for")
        interp.graph.require(Computed(is_unset, (node.source, Literal(name))), "VALUE", True)
    return ABSENT if obj is None else absent(interp, obj, name)


def bound_to_class(interp: Interpreter, found: Value, owner: Value, result: Any) -> Shadow:
    """The shadow of what a descriptor of C gives when a class is asked for it."""
    if result is found.real:
        return found.shadow
    interp.graph.depend(found.shadow, found.real)
    if type(result) is types.MethodType and result.__self__ is owner.real:
        return Build(types.MethodType, (interp.graph.constant(result.__func__), owner.shadow))
    return class_builtin(interp, result)


def bound_by_c(interp: Interpreter, obj: Value, name: str, found: Value, result: Any) -> Shadow:
    """The shadow of an attribute that a descriptor of C code produced."""
    node, graph, descriptor = obj.shadow, interp.graph, found.real
    if is_a(obj.real, torch.Tensor) and isinstance(node, RefNode):
        return tensors.attribute(interp, obj, name, result)
    if isinstance(node, RefNode) and isinstance(node.state, HandleState):
        if name in leaf_functions.FACTS and not callable(result):
            graph.touch(node)
            return Const(result)
        if name == "next_functions":
            return autograd.edges(interp, obj, result)
        if callable(result):
            return Build(type(result), (Const(descriptor), node))
    if isinstance(node, RefNode) and not callable(result) and arrays.is_value(obj.real) and (
            node.source is not None or interp.recorder.arrays.is_computed(obj.real)):
        return interp.recorder.arrays.attribute(graph, node, obj.real, name, result, lambda item: shadow_of(interp, item, new=True))
    if isinstance(node, RefNode) and not callable(result) and arrays.is_dtype(obj.real):
        graph.depend(node, obj.real)
        return interp.recorder.arrays.fold(graph, result, lambda item: shadow_of(interp, item, new=True))
    if isinstance(node, RefNode) and not callable(result) and computed_arrays.is_repeated(node, obj.real):
        return computed_arrays.attribute(interp, obj, name, result)
    if is_a(descriptor, C_METHODS):
        bound = is_a(result, (types.BuiltinFunctionType, types.MethodWrapperType))
        if bound and getattr(result, "__self__", None) is obj.real:
            return Build(type(result), (Const(descriptor), obj.shadow))
        return class_builtin(interp, result)
    # Functions of Cython's, and pybind11's, which a shell binds.
    if type(result) is types.MethodType and result.__self__ is obj.real:
        if result.__func__ is descriptor:
            return Build(types.MethodType, (found.shadow, node))
        if result.__func__ is getattr(descriptor, "__func__", None) and not is_heap_type(type(descriptor)):
            return Build(types.MethodType, (graph.constant(result.__func__), node))
    if name == "__class__":
        return class_of(interp, obj)
    if name == "__dict__" and isinstance(node, RefNode):
        attrs = graph.attributes(node)
        if attrs is not None:
            return attrs
    if lookup_class(type(obj.real), name) is not descriptor:        # the path of this attribute leads to another one
        raise Break("opaque-call", f"{name_of(descriptor)} was read past what has its name")
    return external_c_attribute(interp, obj, name, result)
