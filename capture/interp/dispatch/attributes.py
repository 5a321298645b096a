"""Attribute access, as `object.__getattribute__` and its siblings define it, on real values and shadows.

Code of the user's that an access runs (`__getattr__`, properties, descriptors, `__setattr__`) is inlined; everything
else is one real `getattr` whose outcome is then explained.
"""
from __future__ import annotations

import decimal
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import NONE_VALUE, Catch, Continuation, OnRaise, Then, Value, discard
from capture.interp.core.interpreter import Interpreter
from capture.interp.dispatch import callables, calls, overrides
from capture.interp.dispatch.c_attributes import (
    C_DATA,
    GENERIC_WRITE,
    Getter,
    class_builtin,
    class_data,
    delattr_of,
    external_c_attribute,
    is_property,
    is_told_by_origin,
    setattr_of,
)
from capture.interp.dispatch.descriptors import (
    C_METHODS,
    absent,
    bind,
    bound_to_class,
    class_of,
    find,
    or_hooked,
    part,
    perform,
    pin_type,
)
from capture.interp.function_models import computed_arrays, decimals
from capture.interp.function_models.weakrefs import behind, is_proxy
from capture.interp.polyfills.objects import asked_for_missing
from capture.interp.recording import tensors
from capture.refgraph.class_attributes import forget_namespace, pin_lacking, pin_mro, pin_precedence, pin_special, type_attr
from capture.refgraph.identical import place_of
from capture.refgraph.lookup import MISSING, instance_dict, is_mutable, lookup_class, mro_of, namespace_of
from capture.refgraph.memory import hides_methods
from capture.refgraph.node import ABSENT, Build, ClassState, Const, FunctionState, RefNode, Shadow
from capture.refgraph.source import Computed, Constant, Literal
from capture.refgraph.state_queries import lacks

FUNCTION_PARTS = {"__defaults__": "defaults", "__kwdefaults__": "kwdefaults"}
TYPE_GETTER = type.__getattribute__


def runs_python(real: Any, name: str) -> bool:
    """Whether reading an attribute may run Python code: of a property or another descriptor, `__getattr__`, `__getattribute__`."""
    cls = type(real)
    if is_a(real, types.ModuleType) and "__getattr__" in real.__dict__:
        return True
    for owner in (cls, real) if is_a(real, type) else (cls,):
        found = lookup_class(owner, name, MISSING)
        if found is MISSING:
            continue
        if is_a(found, property) or type(lookup_class(type(found), "__get__")) is types.FunctionType:
            return True
    return any(type(lookup_class(cls, hook)) is types.FunctionType for hook in ("__getattr__", "__getattribute__"))


def load(interp: Interpreter, obj: Value, name: str, then: Continuation | None = None, on_raise: OnRaise | None = None) -> None:
    """`obj.name`. The result goes to `then`, or on the stack. Raises UserError unless `on_raise` takes the exception."""
    if not interp.inlining:
        return native(interp, obj, name, None, then, on_raise)
    if is_proxy(obj.real):
        found = behind(interp, obj, on_raise)
        return None if found is None else load(interp, found, name, then, on_raise)
    real = obj.real
    cls = type(real)
    if is_told_by_origin(real, name):
        origin = real.__origin__
        obj = Value(origin, interp.track(external_c_attribute, interp, obj, "__origin__", origin))
        return load(interp, obj, name, then, on_raise)
    if issubclass(cls, super):
        return load_from_super(interp, obj, name, then, on_raise)
    getter = lookup_class(cls, "__getattribute__")
    if type(getter) is types.FunctionType:
        interp.track(pin_type, interp, obj)
        method = Value(getter, interp.track(callables.class_attribute, interp, cls, "__getattribute__"))
        function, args = or_hooked(hook_of(interp, obj), (obj, name), method, [obj, Value(name, Const(name))])
        return calls.call(interp, function, args, None, then, on_raise, (obj, name))
    if not is_a(getter, types.WrapperDescriptorType):
        return native(interp, obj, name, lambda result: hooked(cls), then, on_raise, lambda: hooked(cls))
    interp.track(pin_special, interp.graph, cls, "__getattribute__")
    if issubclass(cls, type):
        return load_from_class(interp, obj, name, then, on_raise)
    generic(interp, obj, name, then, on_raise)


def is_hook(found: Any) -> bool:
    """Whether a class has a function as `__getattr__` or `__setattr__`: a Python function, or a known C function such as
    `dict.__setitem__`."""
    known = is_a(found, C_METHODS) and found not in GENERIC_WRITE and callables.is_modelled(found)
    return known or type(found) is types.FunctionType


def hooked(cls: type) -> Shadow:
    """The shadow of an attribute that a `__getattribute__` or `__getattr__` computed which is no function."""
    raise Break("opaque-call", f"attributes of a {cls.__name__} are computed by what is no function")


def generic(interp: Interpreter, obj: Value, name: str, then: Then, on_raise: Catch, getter: Getter = getattr) -> None:
    """`object.__getattribute__(obj, name)`, followed by `__getattr__` when `getter` is getattr."""
    real, cls, fallback = obj.real, type(obj.real), getter is getattr
    descriptor = lookup_class(cls, name, MISSING)
    found = Value(descriptor, None) if descriptor is MISSING else find(interp, cls, name, descriptor, obj)
    kind = type(descriptor)
    data = descriptor is not MISSING and is_data(kind)
    if not data:
        namespace = instance_dict(real)
        if namespace is not None and name in namespace:
            shadow = interp.track(instance_attribute, interp, obj, name) if not interp.graph.volatile or on_raise is not None or (
                not calls.is_resumable(then)) else read_anew(interp, obj, name, namespace[name], then)
            return interp.deliver(Value(namespace[name], shadow), then)
    if descriptor is MISSING:
        hook = lookup_class(cls, "__getattr__") if fallback else None
        if is_hook(hook):
            interp.track(absent, interp, obj, name)
            method = Value(hook, interp.track(callables.class_attribute, interp, cls, "__getattr__"))
            return calls.call(interp, method, [obj, Value(name, Const(name))], None, then, on_raise, (obj, name))
        if is_a(real, types.ModuleType) and fallback:
            return module_fallback(interp, obj, name, then, on_raise)
        return native(interp, obj, name, lambda result: external_c_attribute(interp, obj, name, result), then, on_raise,
                      lambda: absent(interp, obj, name), getter)
    if not data:
        interp.track(unshadowed, interp, obj, name)
    hook = hook_of(interp, obj) if fallback and not issubclass(kind, callables.FUNCTIONS) else None
    bind(interp, found, name, obj, then, on_raise, asked=(obj, name) if fallback else None, hook=hook)


def read_anew(interp: Interpreter, obj: Value, name: str, result: Any, then: Then) -> Shadow | None:
    """The shadow of an attribute of an object which a call that is repeated may have changed. Raises Cut where that is so: it is
    read between two traces."""
    model = functools.partial(instance_attribute, interp, obj, name)
    return interp.describe(model, Value(getattr, Const(getattr)), [obj, Value(name, Const(name))], {}, result, then)


def is_data(kind: type) -> bool:
    """Whether descriptors of this class come before the instance's own attributes."""
    return not issubclass(kind, callables.FUNCTIONS) and lookup_class(kind, "__get__") is not None and (
        lookup_class(kind, "__set__") is not None or lookup_class(kind, "__delete__") is not None)


def load_from_class(interp: Interpreter, cls: Value, name: str, then: Continuation | None, on_raise: OnRaise | None) -> None:
    """`cls.name` for a class, by `type.__getattribute__`."""
    real, meta = cls.real, type(cls.real)
    interp.track(callables.pin, interp, cls)
    in_meta, own = lookup_class(meta, name, MISSING), lookup_class(real, name, MISSING)
    if in_meta is not MISSING:
        of_meta = find(interp, meta, name, in_meta)
    elif is_mutable(meta):
        interp.track(type_attr, interp.graph, meta, name)
    found = Value(own, None) if own is MISSING else find(interp, real, name, own)
    if is_a(in_meta, C_DATA):
        return native(interp, cls, name, lambda result: class_data(interp, real, name, result), then, on_raise,
                      lambda: type_attr(interp.graph, real, name)[2])
    if in_meta is not MISSING and is_data(type(in_meta)):
        return bind(interp, of_meta, name, cls, then, on_raise, asked=(cls, name), hook=hook_of(interp, cls))
    if own is not MISSING:
        if lookup_class(meta, "__getattribute__") is TYPE_GETTER:
            return bind(interp, found, name, None, then, on_raise, cls, (cls, name), hook_of(interp, cls))
        return native(interp, cls, name, lambda result: bound_to_class(interp, found, cls, result), then, on_raise)
    interp.track(type_attr, interp.graph, real, name)
    hook = hook_of(interp, cls)
    if in_meta is not MISSING:
        return bind(interp, of_meta, name, cls, then, on_raise, asked=(cls, name), hook=hook)
    if hook is not None:
        return calls.call(interp, hook, [cls, Value(name, Const(name))], None, then, on_raise, (cls, name))
    native(interp, cls, name, lambda result: class_data(interp, real, name, result), then, on_raise)


def load_from_super(interp: Interpreter, obj: Value, name: str, then: Continuation | None, on_raise: OnRaise | None) -> None:
    """`super(cls, self).name`."""
    start, self, self_type = obj.real.__thisclass__, obj.real.__self__, obj.real.__self_class__
    if self_type is None:           # it has not been initialised
        return generic(interp, obj, name, then, on_raise)
    mro = mro_of(self_type)
    bases = mro[place_of(start, mro) + 1:]
    base = None if name == "__class__" else next((base for base in bases if name in namespace_of(base)), None)
    parts = interp.track(parts_of_super, interp, obj, self_type)
    passed = bases if base is None else bases[:place_of(base, bases)]
    first, count = mro_of(bases[0]) if bases else (), len(passed) + 1
    if bases and list(map(id, first[:count])) == list(map(id, bases[:count])):      # one look-up goes the same way
        passed = ()
        if base is not None:
            base = bases[0]
        else:
            interp.track(type_attr, interp.graph, bases[0], name)
    interp.track(pin_lacking, interp.graph, passed, name)
    if base is None:
        return native(interp, obj, name, lambda result: class_builtin(interp, result), then, on_raise)
    found = find(interp, base, name, lookup_class(base, name))
    target = Value(self, parts[1] if parts else None)
    of_class = self is self_type            # super() in a class method or `__new__`
    owner = target if of_class else Value(self_type, interp.track(class_of, interp, target))
    bind(interp, found, name, None if of_class else target, then, on_raise, owner, (obj, name))


def parts_of_super(interp: Interpreter, obj: Value, self_type: type) -> tuple[Shadow, Shadow]:
    """The class and the object that a `super` was made of. Guards where it looks for attributes."""
    graph = interp.graph
    if isinstance(obj.shadow, Build):
        cls, self = obj.shadow.items
    elif isinstance(obj.shadow, RefNode):
        cls, self = (graph.slot(obj.shadow, name, getattr(obj.real, name)) for name in ("__thisclass__", "__self__"))
    else:
        raise Break("opaque-call", "a super() of unknown origin was asked")
    if isinstance(cls, RefNode):
        graph.depend(cls, obj.real.__thisclass__)
    if isinstance(self, RefNode):
        graph.touch(self)
    pin_mro(graph, self_type)
    return cls, self


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
        interp.track(callables.touch, interp, obj)
        method = Value(hook, interp.track(callables.class_attribute, interp, type(obj.real), special))
        calls.call(interp, method, [obj, Value(name, Const(name)), *rest], None, then or discard)
    elif interp.inlining and (is_a(hook, C_METHODS) and hook in GENERIC_WRITE or is_a(obj.real, torch.Tensor)):
        interp.track(pin_special, interp.graph, type(obj.real), special)
        generic_write(interp, obj, name, value, then)
    else:
        write_by_unknown(interp, obj, name, value, then or discard)


def write_by_unknown(interp: Interpreter, obj: Value, name: str, value: Value | None, then: Continuation) -> None:
    """An assignment or deletion by what is neither C code that we know nor a function of Python."""
    interp.real(delattr if value is None else setattr, obj.real, name, *([] if value is None else [value.real]))
    interp.track(unknown_write, obj, name)
    interp.deliver(NONE_VALUE, then)


def unknown_write(obj: Value, name: str) -> Shadow:
    raise Break("untracked-mutation", f"attribute {name!r} of a {type(obj.real).__name__} was assigned by code of its own")


def generic_write(interp: Interpreter, obj: Value, name: str, value: Value | None, then: Continuation | None = None) -> None:
    """`object.__setattr__(obj, name, value)`, or `object.__delattr__` when `value` is None."""
    cls = type(obj.real)
    descriptor = lookup_class(cls, name, MISSING) if not is_a(obj.real, type) else MISSING
    special = "__delete__" if value is None else "__set__"
    after = then or discard
    if interp.inlining and descriptor is not MISSING:
        setter = lookup_class(type(descriptor), special)
        if is_property(type(descriptor)):
            which = "fdel" if value is None else "fset"
            setter = getattr(descriptor, which)
        elif setter is not None and type(setter) is not types.FunctionType and not is_a(setter, C_METHODS):
            return write_by_unknown(interp, obj, name, value, after)
        elif type(setter) is not types.FunctionType:
            setter = None
        if setter is not None:
            found = find(interp, cls, name, descriptor, obj)
            rest = [] if value is None else [value]
            if is_property(type(descriptor)):
                return calls.call(interp, part(interp, found, which), [obj, *rest], None, after)
            method = Value(setter, interp.track(callables.class_attribute, interp, type(descriptor), special))
            return calls.call(interp, method, [found, obj, *rest], None, after)
    if value is not None and overrides.is_attribute_of_tensors(descriptor):
        return set_through(interp, descriptor, obj, value, after)
    interp.track(before_write, interp, obj, name, value is None, descriptor)
    interp.about_to_change(obj.real)
    if value is None:
        interp.real(delattr_of(obj.real), obj.real, name)
    else:
        interp.real(setattr_of(obj.real), obj.real, name, value.real)
    interp.track(written, interp, obj, name, value, descriptor)
    interp.deliver(NONE_VALUE, after)


def set_through(interp: Interpreter, descriptor: Any, obj: Value, value: Value, then: Continuation) -> None:
    """`descriptor.__set__(obj, value)` of an attribute of tensors, about which a class may be asked."""
    if interp.inlining and overrides.is_overridden(interp, [obj, value], {}):
        override = overrides.about_attribute(interp, descriptor, "__set__", [obj, value])
        if override is not None:
            return calls.call(interp, *calls.override_arguments(override, descriptor), None, then)
    name = descriptor.__name__
    interp.track(before_write, interp, obj, name, False, descriptor)
    interp.about_to_change(obj.real)
    interp.real(descriptor.__set__, obj.real, value.real)
    interp.track(written, interp, obj, name, value, descriptor)
    interp.deliver(NONE_VALUE, then)


# -- shadows -----------------------------------------------------------------------------------------------------------

def native(interp: Interpreter, obj: Value, name: str, explain: Callable[[Any], Shadow] | None, then: Continuation | None,
           on_raise: OnRaise | None, on_missing: Callable[[], Any] | None = None, getter: Getter = getattr) -> None:
    """One real `getter(obj, name)`; `explain(result)` gives the shadow, `on_missing()` guards an AttributeError."""
    perform(interp, Value(getter, Const(getter)), [obj, Value(name, Const(name))], explain, then, on_raise,
            on_missing or (lambda: absent(interp, obj, name)), on_raise is None)


def hook_of(interp: Interpreter, obj: Value) -> Value | None:
    """The `__getattr__` of an object's class, which is asked where an attribute turns out to be missing."""
    cls = type(obj.real)
    hook = lookup_class(cls, "__getattr__", MISSING)
    if is_hook(hook):
        return Value(hook, interp.track(callables.class_attribute, interp, cls, "__getattr__"))
    if hook is not MISSING:
        return Value(asked_for_missing, Const(asked_for_missing))
    interp.track(pin_special, interp.graph, cls, "__getattr__")
    return None


def instance_attribute(interp: Interpreter, obj: Value, name: str) -> Shadow:
    """The value in the instance's own `__dict__`."""
    node = obj.shadow
    graph = interp.graph
    if not isinstance(node, RefNode):
        raise Break("opaque-call", f"attribute {name!r} of a {type(obj.real).__name__} of unknown origin was read")
    graph.touch(node)
    cls = type(obj.real)
    if not is_a(obj.real, types.ModuleType):
        pin_precedence(graph, cls, name)
    return graph.dict_get(graph.attributes(node), name)  # type: ignore[arg-type]


def unshadowed(interp: Interpreter, obj: Value, name: str) -> Shadow:
    """The class has the attribute; guards that an outside instance's own `__dict__` does not come to hide it."""
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


def module_fallback(interp: Interpreter, obj: Value, name: str, then: Continuation | None, on_raise: OnRaise | None) -> None:
    """A module without the attribute: its own `__getattr__`, or the error. The import system's submodules are data."""
    hook = obj.real.__dict__.get("__getattr__")

    def model() -> Shadow:
        absent(interp, obj, name)
        return interp.graph.dict_get(interp.graph.attributes(obj.shadow), "__getattr__")  # type: ignore[arg-type]
    if type(hook) is not types.FunctionType:
        return native(interp, obj, name, None, then, on_raise, model)
    calls.call(interp, Value(hook, interp.track(model)), [Value(name, Const(name))], None, then, on_raise, (obj, name))


def before_write(interp: Interpreter, obj: Value, name: str, deleting: bool, descriptor: Any) -> Shadow:
    """Before an instance or class is changed: notes the keys at entry of an instance, and that an attribute which is about to be
    deleted exists. Objects that cannot be changed are known by their type."""
    node, graph = obj.shadow, interp.graph
    if not is_a(obj.real, torch.Tensor):
        class_of(interp, obj)
    computed_arrays.require_own(node)
    if not is_a(obj.real, (type, types.ModuleType)) and not (is_a(obj.real, torch.Tensor) and is_a(descriptor, C_DATA)):
        pin_precedence(graph, type(obj.real), name)
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
    if is_a(obj.real, torch.Tensor) and descriptor is not MISSING and is_a(descriptor, C_DATA):
        return tensors.assign(interp, obj, name, value)
    if is_a(obj.real, type):
        if name in ("__name__", "__qualname__", "__bases__"):
            if name == "__bases__" and isinstance(node.state, ClassState):
                node.state.bases = value.shadow  # type: ignore[union-attr]
            elif not node.created or value is None or not isinstance(value.shadow, Const):
                raise Break("untracked-mutation", f"{name} of class {obj.real.__qualname__} was assigned")
            return ABSENT       # kept in C, where the mock function looks for it
        forget_namespace(graph, obj.real)
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
    if is_a(obj.real, decimal.Context):
        return decimals.assign(interp, node, value)
    if is_a(descriptor, C_DATA):
        if value is None:
            raise Break("untracked-mutation", f"slot {name!r} was deleted")
        if isinstance(node.state, FunctionState) and name in FUNCTION_PARTS:
            setattr(node.state, FUNCTION_PARTS[name], value.shadow)
            return ABSENT
        if name == "__code__":
            if not isinstance(node.state, FunctionState):
                raise Break("untracked-mutation", "the code of a function was assigned")
            graph.depend(value.shadow, value.real)              # calls of it are inlined
        graph.set_slot(node, name, value.shadow)
        return ABSENT
    attrs = graph.attributes(node)
    if attrs is None:
        raise Break("untracked-mutation", f"attribute {name!r} of a {type(obj.real).__name__} was assigned")
    if is_a(obj.real, torch.Tensor) and hides_methods(obj.real):
        raise Break("unsupported-tensor", f"attribute {name!r} of a tensor was assigned, in the place of a method")
    if value is None:
        graph.dict_delete(attrs, name)
    else:
        graph.dict_set(attrs, name, value.shadow)
    return ABSENT
