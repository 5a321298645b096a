"""How an object is called, by its class: as a call of another object, as a frame of ours, or as a call of C."""
from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable
from typing import Any

from torch.nn import functional as F

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Args, Kwargs, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import (
    DISABLED,
    LAZY,
    MODELS,
    POLYFILLS,
    PURE,
    REDUCTIONS,
    SIDE_EFFECTS,
    exclusion,
    find_polyfill,
    hashable,
    recognise,
    recognise_class,
)
from capture.interp.dispatch import overrides, wrappers
from capture.interp.dispatch.call_kinds import is_bookkeeping, is_foldable, name_of
from capture.interp.dispatch.caller_frames import FRAME_READERS
from capture.interp.dispatch.debuggers import is_debugger
from capture.interp.function_models import autograd, computed_caches, lru_caches
from capture.interp.function_models.pinned_code import is_replaced, pin_modelled
from capture.interp.function_models.weakrefs import behind
from capture.interp.polyfills.functional import DISPATCH_CODE, call_cached, call_of_class
from capture.interp.polyfills.objects import instantiate
from capture.interp.recording import scripts, shape_rules, tensors
from capture.interp.recording.tensors import is_operation
from capture.refgraph.class_attributes import pin_special, type_attr
from capture.refgraph.entry_state import BOUND_IN_C
from capture.refgraph.identical import PROXIES, Classes
from capture.refgraph.lookup import descriptor_of, is_heap_type, lookup_class
from capture.refgraph.memory import is_handle
from capture.refgraph.node import Build, Const, RefNode, Shadow
from capture.refgraph.source import Attr

# Instances of C classes that are called without Python code of the user's class.
CALLABLES = Classes({lru_caches.WRAPPER, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType})
FUNCTIONS = (types.FunctionType, _C.CompiledFunction)   # they bind alike
NOT_CALLED = 1 << 7         # a flag of types (object.h): without a constructor


class How(enum.Enum):
    """How a call is made."""

    BEHIND = "as the call of another object, which this one stands for"
    INLINED = "in a frame of ours"
    NATIVE = "for real; a model, or a polyfill, says what it means"
    KNOWN = "not at all: the object is what it returns"


# How a call is made, of what, and with which arguments.
Reduced = tuple[How, Value, Args, Kwargs]
Handler = Callable[[Interpreter, Value, Args, Kwargs], Reduced]

# By the identity of the object's class: the hash of one of the program's may be Python code.
HANDLERS: dict[int, Handler] = {}
# … and for the instances of other classes that are derived from these.
DERIVED: list[tuple[type, Handler]] = []


def handler_of(cls: type) -> Handler:
    """What reduces calls of the instances of a class."""
    return HANDLERS.get(id(cls)) or next((handler for base, handler in DERIVED if issubclass(cls, base)), call_object)


def handles(*classes: type, derived: bool = False) -> Callable[[Handler], Handler]:
    """Registers what reduces calls of the instances of these classes. derived: and of classes derived from them."""
    def register(handler: Handler) -> Handler:
        HANDLERS.update((id(cls), handler) for cls in classes)
        DERIVED.extend((cls, handler) for cls in classes if derived)
        return handler
    return register


@handles(types.FunctionType)
def call_function(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """A Python function is inlined, unless more is known of it."""
    real = function.real
    if is_debugger(real):
        return How.NATIVE, function, args, kwargs
    if is_ordinary(real):
        return How.INLINED, function, args, kwargs
    if (mark := wrappers.in_recursion(interp, function, args)) is not None:
        return How.KNOWN, mark, args, kwargs
    if (wrapped := wrappers.wrapped(interp, function, args)) is not None:
        return How.BEHIND, *wrapped, kwargs
    meant = find_polyfill(real, args, kwargs) is not None or (
        is_modelled(real) and not is_left_to_python(real, [*args, *kwargs.values()]))
    meant = meant and not is_replaced(real)
    if meant:
        interp.track(pin_modelled, interp.graph, real)
    if meant or real in REDUCTIONS:         # its own code, which would be guarded, does not run
        interp.track(pin, interp, function)
    if real in REDUCTIONS:
        return How.NATIVE, function, args, kwargs
    operation = is_operation(real)
    in_python = operation and (overrides.is_overridden(interp, args, kwargs) or sizes_are_lost(interp, real, args, kwargs))
    native = operation or exclusion(real) or meant
    return How.NATIVE if native and not in_python else How.INLINED, function, args, kwargs


@handles(types.MethodType)
def call_method(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """A bound method: its function is called with its object."""
    real, part = function.real, interp.track(composite, function, 2) or (None, None)
    return How.BEHIND, Value(real.__func__, part[0]), [Value(real.__self__, part[1]), *args], kwargs


@handles(_C.CompiledFunction)
def call_compiled(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """A compiled function: the original."""
    real = function.real
    interp.track(pin, interp, function)
    if real.current is not None:
        return How.BEHIND, Value(call_of_class, Const(call_of_class)), args, kwargs
    return How.BEHIND, Value(real.__wrapped__, interp.track(interp.graph.constant, real.__wrapped__)), args, kwargs


@handles(type, derived=True)
def call_class(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """A class: what its metaclass does; of a class with a constructor in Python, `__new__` and `__init__`."""
    real, cls = function.real, type(function.real)
    metacall = lookup_class(cls, "__call__")
    interp.track(pin_special, interp.graph, cls, "__call__")
    if type(metacall) is types.FunctionType and not is_modelled(real):
        return How.BEHIND, Value(metacall, interp.track(class_attribute, interp, cls, "__call__")), [function, *args], kwargs
    if is_a(metacall, type):                    # which binds to nothing
        return How.BEHIND, Value(metacall, interp.track(class_attribute, interp, cls, "__call__")), args, kwargs
    if is_modelled(real) or find_polyfill(real, args, kwargs) or not (
            has_python_constructor(real) and is_a(metacall, types.WrapperDescriptorType)):
        return How.NATIVE, function, args, kwargs
    interp.track(pin, interp, function)
    return How.BEHIND, Value(instantiate, Const(instantiate)), [function, *args], kwargs


@handles(*BOUND_IN_C, derived=True)
def call_bound_in_c(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """A method of C that is bound to an object: the class's descriptor is called with the object."""
    bound = unbind(interp, function)
    return (How.NATIVE, function, args, kwargs) if bound is None else (How.BEHIND, bound[0], [bound[1], *args], kwargs)


@handles(*PROXIES)
def call_proxy(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """A weak proxy: its object is called. Raises UserError if that is dead."""
    found = behind(interp, function) or function
    return How.BEHIND if interp.inlining else How.NATIVE, found, args, kwargs


@handles(functools.partial)
def call_partial(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """A functools.partial: the function that it wraps is called."""
    expanded = wrappers.expand_partial(interp, function, args, kwargs)
    return (How.NATIVE, function, args, kwargs) if expanded is None else (How.BEHIND, *expanded)


@handles(scripts.METHOD)
def call_script(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """A method of TorchScript: the function that calls it with what it reads."""
    return How.BEHIND, Value(scripts.call_method, Const(scripts.call_method)), [function, *args], kwargs


@handles(lru_caches.WRAPPER)
def call_cache(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """An `lru_cache`. If it is given sizes that change, what it keeps is known from what its function computes."""
    computing = computed_caches.computing_function(interp, function.real, args, kwargs)
    if computing is None:
        return How.NATIVE, function, args, kwargs
    known = Value(computing, interp.track(interp.graph.constant, computing))
    return How.BEHIND, Value(call_cached, Const(call_cached)), [function, known, *args], kwargs


def call_object(interp: Interpreter, function: Value, args: Args, kwargs: Kwargs) -> Reduced:
    """Any other object: the `__call__` of its class."""
    real, cls = function.real, type(function.real)
    method = None if cls in CALLABLES or is_operation(real) else lookup_class(cls, "__call__")
    if is_a(method, types.WrapperDescriptorType) and (
            is_modelled(method) or find_polyfill(method, [function, *args], kwargs)):
        return How.BEHIND, Value(method, Const(method)), [function, *args], kwargs
    if not is_a(method, FUNCTIONS):
        return How.NATIVE, function, args, kwargs
    interp.track(touch, interp, function)
    return How.BEHIND, Value(method, interp.track(class_attribute, interp, cls, "__call__")), [function, *args], kwargs


# -- helpers -----------------------------------------------------------------------------------------------------------

def is_modelled(function: Any) -> bool:
    """Whether the registry, or torch's own tables, say what a function or class means."""
    if type(function) is types.FunctionType:
        recognise(function)
    elif type(function) is type:
        recognise_class(function)
    return hashable(function) and (
        function in MODELS or function in REDUCTIONS or function in PURE or function in LAZY or function in SIDE_EFFECTS
        or function in FRAME_READERS or function in tensors.MODE_GETTERS or function in tensors.PROCESS_FACTS
        or is_bookkeeping(function))


def is_left_to_python(function: types.FunctionType, values: list[Value]) -> bool:
    """Whether a Python function whose calls are usually folded is inlined this time, because an argument is more than plain
    data."""
    return function in PURE and not is_foldable(function, values)


def unbind(interp: Interpreter, function: Value) -> tuple[Value, Value] | None:
    """`(descriptor, self)` for a builtin method bound to an object, or to a class by whose class method it is known; None for a
    plain builtin function."""
    real, owner, descriptor = function.real, function.real.__self__, descriptor_of(function.real)
    if descriptor is None or type(descriptor) is types.ClassMethodDescriptorType and (
            is_modelled(real) or descriptor not in POLYFILLS and descriptor not in MODELS):
        return None
    method: Any = autograd.OF_NODES.get(descriptor.__name__, descriptor) if is_handle(owner) else descriptor
    own = function.shadow.items[1] if isinstance(function.shadow, Build) else interp.track(owner_shadow, interp, function, owner)
    return Value(method, Const(method)), Value(owner, own)


def owner_shadow(interp: Interpreter, function: Value, owner: Any) -> Shadow:
    """The shadow of the object that a stored builtin method is bound to."""
    if isinstance(function.shadow, Const):
        return interp.graph.constant(owner)
    if isinstance(function.shadow, RefNode) and function.shadow.source is not None:
        return interp.graph.external(owner, Attr(function.shadow.source, "__self__"))
    raise Break("opaque-call", f"a bound {name_of(function.real)} of unknown origin was called")


def is_ordinary(function: types.FunctionType) -> bool:
    """Whether nothing is known of a Python function, as of most: whatever wraps or marks a function leaves a trace in its
    `__dict__`."""
    return not (function.__dict__ or function.__code__ is DISPATCH_CODE
                or is_modelled(function) or function in POLYFILLS
                or is_operation(function) or function in DISABLED)


def sizes_are_lost(interp: Interpreter, function: types.FunctionType, args: Args, kwargs: Kwargs) -> bool:
    """Whether a function of `torch.nn.functional` would fix sizes that change, because it has no rule for the sizes of its results,
    while the functions that it calls do."""
    return (function.__module__ == F.__name__ and interp.recorder.sizes.are_free([*args, *kwargs.values()])
            and shape_rules.rule_of(function) is None)


def composite(value: Value, n: int) -> tuple[Shadow, ...]:
    """The shadows of the parts of a composite such as a bound method."""
    if isinstance(value.shadow, Build) and len(value.shadow.items) == n:
        return value.shadow.items
    raise Break("opaque-call", f"a {type(value.real).__name__} of unknown origin was called")


def class_attribute(interp: Interpreter, cls: type, name: str) -> Shadow:
    """The shadow of what a class, or one of its bases, has under a name."""
    return type_attr(interp.graph, cls, name)[2]


def touch(interp: Interpreter, value: Value) -> Shadow:
    """Depends on the class of an object."""
    if isinstance(value.shadow, RefNode):
        interp.graph.touch(value.shadow)
    return value.shadow


def pin(interp: Interpreter, value: Value) -> Shadow:
    """Guards which object, or value, it is."""
    interp.graph.depend(value.shadow, value.real)
    return value.shadow


def has_python_constructor(cls: type) -> bool:
    """Whether creating an instance may run Python code, or makes a plain instance of a Python class."""
    return is_heap_type(cls) and not type.__getattribute__(cls, "__flags__") & NOT_CALLED

