"""Attribute access, as `object.__getattribute__` and its siblings define it, on real values and shadows.

Code of the user's that an access runs (`__getattr__`, properties, descriptors, `__setattr__`) is inlined; everything
else is one real `getattr` whose outcome is then explained.
"""
from __future__ import annotations

import decimal
import types
from collections.abc import Callable
from typing import Any

import torch

from capture.errors import Break
from capture.interp import arrays, calls, leaves, natives, overrides, tensors, unwind, visible
from capture.interp.frame import Asked, Catch, Continuation, OnRaise, Then, UserError, Value, discard
from capture.interp.interpreter import Interpreter
from capture.interp.lookasides import autograd, computed_arrays, decimals
from capture.interp.lookasides.shadows import settled
from capture.interp.lookasides.weakrefs import behind, is_proxy
from capture.interp.members import (
    C_DATA,
    GENERIC_WRITE,
    Getter,
    class_builtin,
    class_data,
    delattr_of,
    external_c_attribute,
    getter_of,
    is_property,
    setattr_of,
)
from capture.interp.models import REDUCTIONS
from capture.interp.polyfills.objects import or_hook
from capture.interp.special import is_a
from capture.refgraph.class_attributes import pin_mro, pin_special, type_attr
from capture.refgraph.facts import is_unset, lacks
from capture.refgraph.lookup import MISSING, instance_dict, is_heap_type, is_mutable, lookup_class
from capture.refgraph.node import ABSENT, Build, ClassState, Const, External, FunctionState, HandleState, RefNode, Shadow
from capture.refgraph.source import Computed, Constant, Literal

FUNCTION_PARTS = {"__defaults__": "defaults", "__kwdefaults__": "kwdefaults"}
C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType, types.ClassMethodDescriptorType)


def runs_python(real: Any, name: str) -> bool:
    """Whether reading an attribute may run Python code: of a property or another descriptor, `__getattr__`, `__getattribute__`."""
    cls = type(real)
    if is_a(real, types.ModuleType) and "__getattr__" in real.__dict__:
        return True
    for owner in (cls, real) if is_a(real, type) else (cls,):
        found = lookup_class(owner, name, MISSING)
        if found is MISSING:
            continue
        if isinstance(found, property) or isinstance(lookup_class(type(found), "__get__"), types.FunctionType):
            return True
    return any(isinstance(lookup_class(cls, hook), types.FunctionType) for hook in ("__getattr__", "__getattribute__"))


def load(interp: Interpreter, obj: Value, name: str, then: Continuation | None = None, on_raise: OnRaise | None = None) -> None:
    """`obj.name`. The result goes to `then`, or on the stack. Raises UserError unless `on_raise` takes the exception."""
    if not interp.inlining:
        return native(interp, obj, name, None, then, on_raise)
    if is_proxy(obj.real):
        found = behind(interp, obj, on_raise)
        return None if found is None else load(interp, found, name, then, on_raise)
    real = obj.real
    cls = type(real)
    if issubclass(cls, super):
        return load_from_super(interp, obj, name, then, on_raise)
    if issubclass(cls, type):
        return load_from_class(interp, obj, name, then, on_raise)
    getter = lookup_class(cls, "__getattribute__")
    if isinstance(getter, types.FunctionType):
        method = Value(getter, interp.track(calls.class_attribute, interp, cls, "__getattribute__"))
        return _call(interp, method, [obj, Value(name, Const(name))], obj, name, hook_of(interp, obj), then, on_raise, (obj, name))
    if not isinstance(getter, types.WrapperDescriptorType):
        return native(interp, obj, name, lambda result: hooked(cls), then, on_raise, lambda: hooked(cls))
    interp.track(pin_special, interp.graph, cls, "__getattribute__")
    generic(interp, obj, name, then, on_raise)


def is_hook(found: Any) -> bool:
    """Whether what a class has for `__getattr__` or `__setattr__` is a function: of Python, or one of C that is known, such as
    `dict.__setitem__`."""
    known = isinstance(found, C_METHODS) and found not in GENERIC_WRITE and natives.is_modelled(found)
    return known or isinstance(found, types.FunctionType)


def hooked(cls: type) -> Shadow:
    """The shadow of an attribute that a `__getattribute__` computed which is no function."""
    raise Break("opaque-call", f"the __getattribute__ of {cls.__name__}")


def generic(interp: Interpreter, obj: Value, name: str, then: Then, on_raise: Catch, getter: Getter = getattr) -> None:
    """`object.__getattribute__(obj, name)`, followed by `__getattr__` when `getter` is getattr."""
    real, cls, fallback = obj.real, type(obj.real), getter is getattr
    descriptor = lookup_class(cls, name, MISSING)
    kind = type(descriptor)
    is_data = descriptor is not MISSING and kind not in calls.FUNCTIONS and lookup_class(kind, "__get__") is not None and (
        lookup_class(kind, "__set__") is not None or lookup_class(kind, "__delete__") is not None)
    if descriptor is not MISSING:
        interp.track(pin_kind, interp, cls, name, kind)
    if not is_data:
        namespace = instance_dict(real)
        if namespace is not None and name in namespace:
            return finish(interp, namespace[name], interp.track(instance_attribute, interp, obj, name), then)
    if descriptor is MISSING:
        hook = lookup_class(cls, "__getattr__") if fallback else None
        if is_hook(hook):
            interp.track(absent, interp, obj, name)
            method = Value(hook, interp.track(calls.class_attribute, interp, cls, "__getattr__"))
            return calls.call(interp, method, [obj, Value(name, Const(name))], None, then, on_raise, (obj, name))
        if is_a(real, types.ModuleType) and fallback:
            return module_fallback(interp, obj, name, then, on_raise)
        return native(interp, obj, name, lambda result: external_c_attribute(interp, obj, name, result), then, on_raise,
                      lambda: absent(interp, obj, name), getter)
    if not is_data:
        interp.track(unshadowed, interp, obj, name)
    hook = hook_of(interp, obj) if fallback and kind not in calls.FUNCTIONS else None
    bind(interp, obj, cls, name, descriptor, then, on_raise, hook=hook, getter=getter, asked=(obj, name) if fallback else None)


def bind(interp: Interpreter, obj: Value, cls: type, name: str, descriptor: Any, then: Continuation | None,
         on_raise: OnRaise | None, found: Value | None = None, hook: Value | None = None, getter: Getter = getattr,
         asked: Asked | None = None) -> None:
    """Binds what a class has under `name` to an instance."""
    kind = type(descriptor)
    if found is None:
        found = Value(descriptor, interp.track(through_class, interp, obj, cls, name))
    if kind in calls.FUNCTIONS:
        return finish(interp, types.MethodType(descriptor, obj.real), build(interp, types.MethodType, found, obj), then)
    if is_property(kind):
        if descriptor.fget is not None:
            get = Value(descriptor.fget, interp.track(part, interp, found, "fget", descriptor.fget))
            return _call(interp, get, [obj], obj, name, hook, then, on_raise, asked)
    elif kind is staticmethod:
        return finish(interp, descriptor.__func__, interp.track(part, interp, found, "__func__", descriptor.__func__), then)
    elif kind is classmethod:
        function = descriptor.__func__
        if isinstance(function, types.FunctionType):
            is_owner = is_a(obj.real, type) and cls is obj.real
            owner = obj if is_owner else Value(type(obj.real), interp.track(class_of, interp, obj))
            inner = Value(function, interp.track(part, interp, found, "__func__", function))
            return finish(interp, types.MethodType(function, owner.real), build(interp, types.MethodType, inner, owner), then)
    else:
        get = lookup_class(kind, "__get__")
        if isinstance(get, types.FunctionType):
            method = Value(get, interp.track(calls.class_attribute, interp, kind, "__get__"))
            owner = Value(type(obj.real), interp.track(class_of, interp, obj))
            return _call(interp, method, [found, obj, owner], obj, name, hook, then, on_raise, asked)
        if overrides.is_attribute_of_tensors(descriptor) and overrides.is_overridden(interp, [obj], {}):
            question = overrides.about_attribute(interp, descriptor, "__get__", [obj])
            if question is not None:
                return _call(interp, *calls.asking(question, descriptor), obj, name, hook, then, on_raise, asked)
        if kind in C_DATA and descriptor in REDUCTIONS and REDUCTIONS[descriptor](interp, [obj], {}, then, on_raise):
            return
    native(interp, obj, name, lambda result: bound_by_c(interp, obj, name, descriptor, found, result), then, on_raise,
           lambda: unset(interp, obj, name, descriptor), getter)


def load_from_class(interp: Interpreter, cls: Value, name: str, then: Continuation | None, on_raise: OnRaise | None) -> None:
    """`cls.name` for a class, by `type.__getattribute__`."""
    real, meta = cls.real, type(cls.real)
    interp.track(calls.pin, interp, cls)
    interp.track(pin_special, interp.graph, meta, "__getattribute__")
    getattribute = lookup_class(meta, "__getattribute__")
    in_meta = lookup_class(meta, name, MISSING)
    own = lookup_class(real, name, MISSING)
    if in_meta is MISSING and is_mutable(meta):
        interp.track(type_attr, interp.graph, meta, name)
    if isinstance(getattribute, types.FunctionType) or own is MISSING or (
            in_meta is not MISSING and lookup_class(type(in_meta), "__set__") is not None):
        hook = lookup_class(meta, "__getattr__")
        if own is MISSING and in_meta is not MISSING and not isinstance(in_meta, C_DATA):
            interp.track(type_attr, interp.graph, real, name)
            found = Value(in_meta, interp.track(through_class, interp, cls, meta, name))
            return bind(interp, cls, meta, name, in_meta, then, on_raise, found, asked=(cls, name))
        if own is MISSING and in_meta is MISSING and isinstance(hook, types.FunctionType):
            interp.track(lambda: type_attr(interp.graph, real, name)[2])
            method = Value(hook, interp.track(calls.class_attribute, interp, meta, "__getattr__"))
            return calls.call(interp, method, [cls, Value(name, Const(name))], None, then, on_raise, (cls, name))
        return native(interp, cls, name, lambda result: class_data(interp, real, name, result), then, on_raise,
                      lambda: type_attr(interp.graph, real, name)[2])
    found = Value(own, interp.track(through_class, interp, cls, real, name))
    kind = type(own)
    interp.track(pin_special, interp.graph, kind, "__get__")
    if kind in calls.FUNCTIONS:
        return finish(interp, own, found.shadow, then)
    if kind is staticmethod:
        return finish(interp, own.__func__, interp.track(part, interp, found, "__func__", own.__func__), then)
    if kind is classmethod and isinstance(own.__func__, types.FunctionType):
        inner = Value(own.__func__, interp.track(part, interp, found, "__func__", own.__func__))
        return finish(interp, types.MethodType(own.__func__, real), build(interp, types.MethodType, inner, cls), then)
    getter = lookup_class(kind, "__get__")
    if isinstance(getter, types.FunctionType):
        method = Value(getter, interp.track(calls.class_attribute, interp, kind, "__get__"))
        return calls.call(interp, method, [found, Value(None, Const(None)), cls], None, then, on_raise, (cls, name))
    native(interp, cls, name, lambda result: found.shadow if result is own else class_builtin(interp, result), then, on_raise)


def load_from_super(interp: Interpreter, obj: Value, name: str, then: Continuation | None, on_raise: OnRaise | None) -> None:
    """`super(cls, self).name`."""
    start, self, self_type = obj.real.__thisclass__, obj.real.__self__, obj.real.__self_class__
    if self_type is None:           # it has not been initialised
        return generic(interp, obj, name, then, on_raise)
    shadows = obj.shadow.items if isinstance(obj.shadow, Build) else (None, None)
    mro = self_type.__mro__
    for index, base in enumerate(mro[mro.index(start) + 1:], mro.index(start) + 1):
        if name not in base.__dict__ or name == "__class__":
            continue
        descriptor = base.__dict__[name]

        def model(index: int = index) -> Shadow:
            found = ABSENT
            if isinstance(shadows[0], RefNode):
                interp.graph.depend(shadows[0], start)
            if isinstance(shadows[1], RefNode):
                interp.graph.touch(shadows[1])
            pin_mro(interp.graph, self_type)
            for between in mro[mro.index(start) + 1:index + 1]:     # none of them may come to define it
                found = type_attr(interp.graph, between, name)[2]  # type: ignore[assignment]
            return found
        found = Value(descriptor, interp.track(model))
        target = Value(self, shadows[1])
        if self is self_type or (isinstance(self, type) and self_type is self):     # super() in a classmethod or __new__
            if type(descriptor) is staticmethod:
                return finish(interp, descriptor.__func__, interp.track(part, interp, found, "__func__", descriptor.__func__), then)
            if type(descriptor) is classmethod:
                inner = Value(descriptor.__func__, interp.track(part, interp, found, "__func__", descriptor.__func__))
                method = types.MethodType(descriptor.__func__, self)
                return finish(interp, method, build(interp, types.MethodType, inner, target), then)
            if isinstance(descriptor, types.FunctionType):
                return finish(interp, descriptor, found.shadow, then)
            return native(interp, obj, name, lambda result: class_builtin(interp, result), then, on_raise)
        if isinstance(descriptor, C_METHODS):
            result = interp.real(getattr, obj.real, name)
            return finish(interp, result, build(interp, type(result), found, target), then)
        if lookup_class(type(descriptor), "__get__") is None:
            return finish(interp, descriptor, found.shadow, then)
        return bind(interp, target, base, name, descriptor, then, on_raise, found, getter=getter_of(descriptor), asked=(obj, name))
    native(interp, obj, name, lambda result: class_builtin(interp, result), then, on_raise)


def load_super(interp: Interpreter, cls: Value, self: Value, name: str) -> None:
    """LOAD_SUPER_ATTR: `super(cls, self).name`."""
    real = interp.real(super, cls.real, self.real)
    shadow = Build(super, (cls.shadow, self.shadow)) if interp.tracking else None
    load(interp, Value(real, shadow), name)


def load_method(interp: Interpreter, obj: Value, name: str) -> None:
    """LOAD_METHOD: pushes NULL and the bound attribute. (Calls take the method apart again, so nothing is lost.)"""
    interp.frame.push(None)  # type: ignore[union-attr]
    load(interp, obj, name)


def store(interp: Interpreter, obj: Value, name: str, value: Value) -> None:
    """`obj.name = value`."""
    write(interp, obj, name, value, "__setattr__")


def delete(interp: Interpreter, obj: Value, name: str) -> None:
    """`del obj.name`."""
    write(interp, obj, name, None, "__delattr__")


def write(interp: Interpreter, obj: Value, name: str, value: Value | None, special: str, then: Continuation | None = None) -> None:
    """Assignment or deletion, by way of the class's `__setattr__` or `__delattr__`."""
    if interp.inlining and is_proxy(obj.real):
        obj = behind(interp, obj) or obj
    hook = lookup_class(type(obj.real), special)
    rest = [] if value is None else [value]
    if interp.inlining and is_hook(hook):
        interp.track(calls.touch, interp, obj)
        method = Value(hook, interp.track(calls.class_attribute, interp, type(obj.real), special))
        calls.call(interp, method, [obj, Value(name, Const(name)), *rest], None, then or discard)
    elif interp.inlining and (hook in GENERIC_WRITE or is_a(obj.real, torch.Tensor)):
        generic_write(interp, obj, name, value, then)
    else:
        interp.real(delattr if value is None else setattr, obj.real, name, *[v.real for v in rest])
        interp.track(unknown_write, obj, name)
        interp.deliver(Value(None, Const(None)), then or discard)


def unknown_write(obj: Value, name: str) -> Shadow:
    raise Break("untracked-mutation", f"attribute {name!r} of a {type(obj.real).__name__} was assigned by code of its own")


def generic_write(interp: Interpreter, obj: Value, name: str, value: Value | None, then: Continuation | None = None) -> None:
    """`object.__setattr__(obj, name, value)`, or `object.__delattr__` when `value` is None."""
    cls = type(obj.real)
    descriptor = lookup_class(cls, name, MISSING) if not is_a(obj.real, type) else MISSING
    special = "__delete__" if value is None else "__set__"
    after = then or discard
    if interp.inlining and descriptor is not MISSING:
        setter = None
        if is_property(type(descriptor)):
            which = "fdel" if value is None else "fset"
            setter = getattr(descriptor, which)
        elif isinstance(lookup_class(type(descriptor), special), types.FunctionType):
            setter = lookup_class(type(descriptor), special)
        if setter is not None:
            found = Value(descriptor, interp.track(through_class, interp, obj, cls, name))
            rest = [] if value is None else [value]
            if is_property(type(descriptor)):
                function = Value(setter, interp.track(part, interp, found, which, setter))
                return calls.call(interp, function, [obj, *rest], None, after)
            method = Value(setter, interp.track(calls.class_attribute, interp, type(descriptor), special))
            return calls.call(interp, method, [found, obj, *rest], None, after)
    interp.track(pin_special, interp.graph, cls, "__setattr__" if value is not None else "__delattr__")
    if value is not None and overrides.is_attribute_of_tensors(descriptor):
        return set_through(interp, descriptor, obj, value, after)
    interp.track(before_write, interp, obj, name, value is None)
    if value is None:
        interp.real(delattr_of(obj.real), obj.real, name)
    else:
        interp.real(setattr_of(obj.real), obj.real, name, value.real)
    interp.track(written, interp, obj, name, value, descriptor)
    interp.deliver(Value(None, Const(None)), after)


def set_through(interp: Interpreter, descriptor: Any, obj: Value, value: Value, then: Continuation) -> None:
    """`descriptor.__set__(obj, value)` of an attribute of tensors, about which a class may be asked."""
    if interp.inlining and overrides.is_overridden(interp, [obj, value], {}):
        question = overrides.about_attribute(interp, descriptor, "__set__", [obj, value])
        if question is not None:
            return calls.call(interp, *calls.asking(question, descriptor), None, then)
    name = descriptor.__name__
    interp.track(before_write, interp, obj, name, False)
    interp.real(descriptor.__set__, obj.real, value.real)
    interp.track(written, interp, obj, name, value, descriptor)
    interp.deliver(Value(None, Const(None)), then)


# -- shadows -----------------------------------------------------------------------------------------------------------

def finish(interp: Interpreter, real: Any, shadow: Shadow | None, then: Continuation | None) -> None:
    interp.deliver(Value(real, shadow), then)


def build(interp: Interpreter, cls: type, *values: Value) -> Shadow | None:
    return Build(cls, tuple(v.shadow for v in values)) if interp.tracking else None


def native(interp: Interpreter, obj: Value, name: str, explain: Callable[[Any], Shadow] | None, then: Continuation | None,
           on_raise: OnRaise | None, on_missing: Callable[[], Any] | None = None, getter: Getter = getattr) -> None:
    """One real `getter(obj, name)`; `explain(result)` gives the shadow, `on_missing()` guards an AttributeError."""
    try:
        if issubclass(type(obj.real), torch.Tensor):
            result = visible.in_place(interp, getter, obj.real, name)       # it may warn
        else:
            result = interp.real(getter, obj.real, name)
    except UserError as error:
        exception = error.exception
    else:
        return finish(interp, result, _explained(interp, obj, name, result, explain, then, on_raise), then)
    interp.track(on_missing or (lambda: absent(interp, obj, name)))
    unwind.settle(interp, exception, on_raise)


def _explained(interp: Interpreter, obj: Value, name: str, result: Any, explain: Callable[[Any], Shadow] | None,
               then: Continuation | None, on_raise: OnRaise | None) -> Shadow | None:
    if explain is None:
        return None
    if on_raise is None and calls.is_resumable(then):
        args = [obj, Value(name, Const(name))]
        return interp.describe(lambda: explain(result), Value(getattr, Const(getattr)), args, {}, result, then)
    return interp.track(explain, result)


def hook_of(interp: Interpreter, obj: Value) -> Value | None:
    """The `__getattr__` of an object's class, which is asked where an attribute turns out to be missing."""
    cls = type(obj.real)
    hook = lookup_class(cls, "__getattr__")
    if is_hook(hook):
        return Value(hook, interp.track(calls.class_attribute, interp, cls, "__getattr__"))
    interp.track(pin_special, interp.graph, cls, "__getattr__")
    return None


def _call(interp: Interpreter, function: Value, args: list[Value], obj: Value, name: str, hook: Value | None,
          then: Continuation | None, on_raise: OnRaise | None, asked: Asked | None) -> None:
    """A call that finds the attribute of an object, or else leaves it to `hook`."""
    if hook is not None:
        function, args = Value(or_hook, Const(or_hook)), [hook, obj, Value(name, Const(name)), function, *args]
    calls.call(interp, function, args, None, then, on_raise, asked)


def through_class(interp: Interpreter, obj: Value, cls: type, name: str) -> Shadow:
    """What the class of an object, whose type thereby matters, has under `name`."""
    if isinstance(obj.shadow, RefNode):
        interp.graph.touch(obj.shadow)
    elif isinstance(obj.shadow, External):
        interp.graph.require(obj.shadow.source, "TYPE", type(obj.real))
    return type_attr(interp.graph, cls, name)[2]


def class_of(interp: Interpreter, obj: Value) -> Shadow:
    if isinstance(obj.shadow, RefNode):
        interp.graph.touch(obj.shadow)
    return interp.graph.constant(type(obj.real))


def part(interp: Interpreter, owner: Value, name: str, real: Any) -> Shadow:
    """A C-level part of a descriptor or other outside object."""
    if isinstance(owner.shadow, RefNode) and owner.shadow.source is not None:
        return interp.graph.slot(owner.shadow, name, real)
    return interp.graph.constant(real)


def instance_attribute(interp: Interpreter, obj: Value, name: str) -> Shadow:
    """The value in the instance's own `__dict__`."""
    node = obj.shadow
    graph = interp.graph
    if not isinstance(node, RefNode):
        raise Break("opaque-call", f"attribute {name!r} of a {type(obj.real).__name__} of unknown origin was read")
    graph.touch(node)
    cls = type(obj.real)
    if not is_a(obj.real, types.ModuleType):
        type_attr(graph, cls, name)          # no data descriptor may come to hide it
    return graph.dict_get(graph.attributes(node), name)  # type: ignore[arg-type]


def pin_kind(interp: Interpreter, cls: type, name: str, kind: type) -> Shadow:
    """Guards that what a class has under `name` takes part in attribute access as it does now."""
    graph = interp.graph
    shadow = type_attr(graph, cls, name)[2]
    if isinstance(shadow, External):
        graph.require(shadow.source, "TYPE", kind)
    elif isinstance(shadow, RefNode):
        graph.touch(shadow)
    pin_special(graph, kind, "__get__", "__set__", "__delete__")
    return shadow


def unshadowed(interp: Interpreter, obj: Value, name: str) -> Shadow:
    """The class has the attribute, and an outside instance's own `__dict__` must not come to hide it."""
    node = obj.shadow
    if isinstance(node, RefNode) and node.source is not None:
        if is_a(obj.real, torch.Tensor):          # whether it has attributes at all is one of its properties
            interp.graph.touch(node)
            if not node.state.properties.has_attributes:
                return ABSENT
        attrs = interp.graph.attributes(node)
        if attrs is not None and attrs.source is not None:
            interp.graph.dict_get(attrs, name)
    return ABSENT


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


def unset(interp: Interpreter, obj: Value, name: str, descriptor: Any) -> Shadow:
    """A descriptor of C has nothing to give: an empty slot."""
    node = obj.shadow
    if isinstance(descriptor, types.MemberDescriptorType) and not (isinstance(node, RefNode) and node.created):
        if not isinstance(node, RefNode):
            raise Break("opaque-call", f"the empty slot {name!r} of a {type(obj.real).__name__} was asked for")
        interp.graph.require(Computed(is_unset, (node.source, Literal(name))), "VALUE", True)
    return absent(interp, obj, name)


def bound_by_c(interp: Interpreter, obj: Value, name: str, descriptor: Any, found: Value, result: Any) -> Shadow:
    """The shadow of an attribute that a descriptor of C code produced."""
    node, graph = obj.shadow, interp.graph
    if is_a(obj.real, torch.Tensor) and isinstance(node, RefNode):
        return tensors.attribute(interp, obj, name, result)
    if isinstance(node, RefNode) and isinstance(node.state, HandleState):
        if name in leaves.FACTS and not callable(result):
            graph.touch(node)
            return Const(result)
        if name == "next_functions":
            return autograd.edges(interp, obj, result)
        if callable(result):
            return Build(type(result), (Const(descriptor), node))
    if isinstance(node, RefNode) and not callable(result) and arrays.is_value(obj.real) and (
            node.source is not None or interp.recorder.arrays.is_computed(obj.real)):
        return interp.recorder.arrays.attribute(graph, node, obj.real, name, result, lambda item: settled(interp, item, new=True))
    if isinstance(node, RefNode) and not callable(result) and arrays.is_dtype(obj.real):
        graph.depend(node, obj.real)
        return interp.recorder.arrays.fold(graph, result, lambda item: settled(interp, item, new=True))
    if isinstance(node, RefNode) and not callable(result) and computed_arrays.is_repeated(node, obj.real):
        return computed_arrays.repeat(interp, getattr, [obj, Value(name, Const(name))], {}, result)
    if result is descriptor:                            # a plain class attribute
        return found.shadow
    if isinstance(descriptor, C_METHODS):
        bound = isinstance(result, (types.BuiltinFunctionType, types.MethodWrapperType))
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
    return external_c_attribute(interp, obj, name, result)


def module_fallback(interp: Interpreter, obj: Value, name: str, then: Continuation | None, on_raise: OnRaise | None) -> None:
    """A module without the attribute: its own `__getattr__`, or the error. The import system's submodules are data."""
    hook = obj.real.__dict__.get("__getattr__")

    def model() -> Shadow:
        absent(interp, obj, name)
        return interp.graph.dict_get(interp.graph.attributes(obj.shadow), "__getattr__")  # type: ignore[arg-type]
    if not isinstance(hook, types.FunctionType):
        return native(interp, obj, name, None, then, on_raise, model)
    calls.call(interp, Value(hook, interp.track(model)), [Value(name, Const(name))], None, then, on_raise, (obj, name))


def before_write(interp: Interpreter, obj: Value, name: str, deleting: bool) -> Shadow:
    """Notes, of an instance about to be changed, the keys at entry; and that what is about to be deleted was there, of a class as
    well."""
    node, graph = obj.shadow, interp.graph
    if isinstance(node, RefNode) and is_a(obj.real, type):
        if deleting and not node.created and name not in node.slots:
            graph.require(Computed(lacks, (Constant(obj.real), Literal(name))), "VALUE", lacks(obj.real, name))
    elif isinstance(node, RefNode):
        attrs = graph.attributes(node)
        if attrs is not None:
            graph.dict_prepare(attrs)
            if deleting:
                graph.dict_get(attrs, name)
    return ABSENT


def written(interp: Interpreter, obj: Value, name: str, value: Value | None, descriptor: Any) -> Shadow:
    """Brings the shadow state up to date after a real assignment or deletion."""
    node, graph = obj.shadow, interp.graph
    if not isinstance(node, RefNode):
        raise Break("untracked-mutation", f"attribute {name!r} of a {type(obj.real).__name__} was assigned")
    graph.touch(node)
    if is_a(obj.real, torch.Tensor) and descriptor is not MISSING and isinstance(descriptor, C_DATA):
        return tensors.assign(interp, obj, name, value)
    if is_a(obj.real, type):
        if name in ("__name__", "__qualname__", "__bases__"):
            if name == "__bases__" and isinstance(node.state, ClassState):
                node.state.bases = value.shadow  # type: ignore[union-attr]
            elif not node.created or value is None or not isinstance(value.shadow, Const):
                raise Break("untracked-mutation", f"{name} of class {obj.real.__qualname__} was assigned")
            return ABSENT       # kept in C, where the mock function looks for it
        if value is None and node.created:
            node.slots.pop(name, None)
        elif value is None:
            node.slots[name] = ABSENT
            graph.effect(type.__delattr__, node, Const(name))
        if value is None:
            return ABSENT
        node.slots[name] = value.shadow
        graph.effect(type.__setattr__, node, Const(name), value.shadow)
        return ABSENT
    if isinstance(obj.real, decimal.Context):
        return decimals.assign(interp, node, value)
    if isinstance(descriptor, C_DATA):
        if value is None:
            raise Break("untracked-mutation", f"slot {name!r} was deleted")
        if isinstance(node.state, FunctionState) and name in FUNCTION_PARTS:
            setattr(node.state, FUNCTION_PARTS[name], value.shadow)
            return ABSENT
        if name == "__code__":
            raise Break("untracked-mutation", "the code of a function was assigned")
        type_attr(graph, type(obj.real), name)
        graph.set_slot(node, name, value.shadow)
        return ABSENT
    type_attr(graph, type(obj.real), name) if not is_a(obj.real, types.ModuleType) else None
    attrs = graph.attributes(node)
    if attrs is None:
        raise Break("untracked-mutation", f"attribute {name!r} of a {type(obj.real).__name__} was assigned")
    if value is None:
        graph.dict_delete(attrs, name)
    else:
        graph.dict_set(attrs, name, value.shadow)
    return ABSENT
