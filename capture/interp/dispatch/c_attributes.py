"""What reading an attribute that C keeps or computes means: slots, parts of builtin objects, properties of tensors and classes; and
what writes attributes as C does."""
from __future__ import annotations

import _thread
import decimal
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.dispatch.kind_handlers import depend_deep
from capture.interp.function_models.shadows import is_constant, shadow_of
from capture.refgraph.class_attributes import namespace_node, pin_mro, pin_told, type_attr
from capture.refgraph.entry_state import BOUND_IN_C, PINNED, VALUES
from capture.refgraph.identical import BOUNDS
from capture.refgraph.lookup import is_mutable, lookup_class
from capture.refgraph.node import Build, Const, Expr, External, FunctionState, RefNode, Shadow
from capture.refgraph.publishing import CHAIN
from capture.refgraph.value_types import DERIVED

GENERIC_WRITE = (object.__setattr__, object.__delattr__, type.__setattr__, type.__delattr__, types.SimpleNamespace.__setattr__,
                 types.SimpleNamespace.__delattr__, BaseException.__setattr__, BaseException.__delattr__,
                 types.ModuleType.__setattr__, types.ModuleType.__delattr__,
                 functools.partial.__setattr__, functools.partial.__delattr__, _thread._local.__setattr__,
                 _thread._local.__delattr__, decimal.Context.__setattr__)
WRITING = type, _thread._local, decimal.Context, object     # each writes attributes in a way of its own; the more special first

Getter = Callable[[Any, str], Any]          # getattr, or one of these
# Descriptors of C types: reading through them runs no Python code.
C_DATA = (types.GetSetDescriptorType, types.MemberDescriptorType)


class _Origin:
    """What a generic alias is made of here, to see which attributes it asks of that."""

    def __getattribute__(self, name: str) -> Any:
        return _Origin


_alias: Any = types.GenericAlias(_Origin(), ())  # type: ignore[arg-type]


def is_told_by_origin(x: Any, name: str) -> bool:
    """Whether an attribute of `x`, a generic alias such as `list[int]`, is the one that its `__origin__` has."""
    return is_a(x, types.GenericAlias) and getattr(_alias, name, None) is _Origin and (
        lookup_class(type(x), "__getattribute__") is types.GenericAlias.__getattribute__)


def external_c_attribute(interp: Interpreter, obj: Value, name: str, result: Any) -> Shadow:
    """A C-level attribute (slot, getset) of an object."""
    node, graph = obj.shadow, interp.graph
    if isinstance(node, (Const, External, Expr)) or is_a(obj.real, (*VALUES, torch.dtype, *DERIVED)):
        depend_deep(interp, node, obj.real)
        if is_constant(result) or is_a(result, PINNED):
            return shadow_of(interp, result, new=True)
        if is_a(result, BOUND_IN_C):
            return Build(type(result), (Const(lookup_class(type(obj.real), name)), node))
        if is_a(obj.real, DERIVED) and not (callable(result) and isinstance(node, RefNode) and node.created):
            return shadow_of(interp, result)
    if isinstance(node, Build):
        if is_a(obj.real, types.MethodType):
            index = {"__func__": 0, "__self__": 1}.get(name)
            if index is not None:
                return node.items[index]
            return graph.slot(node.items[0], name, result) if isinstance(node.items[0], RefNode) else graph.constant(result)
        if is_a(obj.real, BOUND_IN_C):
            return node.items[1] if name == "__self__" else shadow_of(interp, result, new=True)
        if is_a(obj.real, slice):
            return node.items[BOUNDS.index(name)]
        if is_a(obj.real, tuple):
            for item, real in zip(node.items, tuple.__iter__(obj.real)):       # a field of a namedtuple or structseq
                if real is result:
                    return item
    if isinstance(node, RefNode):
        if isinstance(node.state, FunctionState):
            return function_attribute(interp, node, name, result)
        if node.created and is_a(obj.real, decimal.Context) and is_constant(result):
            return Const(result)
        if node.created and name in CHAIN and is_a(obj.real, BaseException):
            return exception_part(interp, name, result)
        return graph.slot(node, name, result)
    raise Break("opaque-call", f"attribute {name!r} of a {type(obj.real).__name__} was read")


def exception_part(interp: Interpreter, name: str, result: Any) -> Shadow:
    """The cause or context of an exception that the trace made."""
    node = interp.graph.find(result)
    if node is None and not is_a(result, (bool, types.NoneType)):
        raise Break("opaque-call", f"the {name} of an exception, a {type(result).__name__}, is of unknown origin")
    return node or Const(result)


def function_attribute(interp: Interpreter, node: RefNode, name: str, result: Any) -> Shadow:
    """A C-level attribute of a function which the trace made."""
    state: FunctionState = node.state
    if name in node.slots:
        return node.slots[name]
    known = {"__defaults__": state.defaults, "__kwdefaults__": state.kwdefaults, "__globals__": state.globals}
    if name in known:
        return known[name]
    if is_constant(result):
        return Const(result)
    if name == "__annotations__":
        node.slots[name] = shadow_of(interp, result, new=True)
        return node.slots[name]
    return interp.graph.constant(result) if name == "__code__" else interp.graph.create(result)


def class_data(interp: Interpreter, cls: type, name: str, result: Any) -> Shadow:
    """`__name__`, `__mro__`, `__dict__` … of a class. Its identity determines what of these cannot be assigned."""
    if type(lookup_class(type(cls), name)) is types.GetSetDescriptorType:
        pin_told(interp.graph, cls, name, result)
    if is_a(result, types.MappingProxyType) and is_mutable(cls) and not interp.graph.is_made(cls):
        return namespace_of(interp, cls, result)
    if is_constant(result):
        return Const(result)
    if name in ("__mro__", "__bases__", "__base__"):
        pin_mro(interp.graph, cls)
    if is_a(result, PINNED) or callable(result):
        return class_builtin(interp, result)
    if is_a(result, tuple):
        return shadow_of(interp, result, new=True)
    if name in cls.__dict__:
        return type_attr(interp.graph, cls, name)[2]
    raise Break("opaque-call", f"attribute {name!r} of class {cls.__qualname__} was read")


def namespace_of(interp: Interpreter, cls: type, proxy: types.MappingProxyType[str, Any]) -> Shadow:
    """`cls.__dict__`: a new proxy of a dict from outside."""
    graph = interp.graph
    node = graph.create(proxy, origin=Expr(type.__getattribute__, (graph.constant(cls), Const("__dict__"))))
    node.slots["mapping"] = namespace_node(graph, cls)
    return node


def class_builtin(interp: Interpreter, result: Any) -> Shadow:
    """A builtin method or other C object that a class, already guarded, leads to."""
    # A class method of C is bound anew each time.
    if is_constant(result) or is_a(result, types.BuiltinFunctionType):
        return Const(result)
    return interp.graph.constant(result)


def is_property(cls: type) -> bool:
    """Whether a descriptor is a property, and no subclass with an access of its own."""
    return issubclass(cls, property) and all(
        lookup_class(cls, name) is property.__dict__[name] for name in ("__get__", "__set__", "__delete__"))


def setattr_of(real: Any) -> Callable[..., Any]:
    return setattr if is_a(real, torch.Tensor) else next(cls for cls in WRITING if is_a(real, cls)).__setattr__


def delattr_of(real: Any) -> Callable[..., Any]:
    return delattr if is_a(real, torch.Tensor) else next(cls for cls in WRITING if is_a(real, cls)).__delattr__
