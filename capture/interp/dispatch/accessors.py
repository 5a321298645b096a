"""The builtins that access attributes: `getattr`, `hasattr`, `vars`, `object.__setattr__` and their siblings."""
from __future__ import annotations

import types

import torch

from capture._C import is_a
from capture.interp.core import unwind
from capture.interp.core.frame import NONE_VALUE, Args, Catch, Continuation, Kwargs, Resume, Then, Value, resuming
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import reduction
from capture.interp.core.special import comparison_method, decline, special_method
from capture.interp.dispatch import attributes, callables, calls, descriptors, overrides
from capture.interp.function_models.effect_callbacks import is_own_code
from capture.interp.function_models.torch_legacy import is_volatile
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.lookup import instance_attributes, lookup_class
from capture.refgraph.node import Const


def is_name(name: Value) -> bool:
    """Whether a value can name an attribute: a string, or a member of an enumeration that is looked up as one."""
    cls = type(name.real)
    return is_a(name.real, str) and lookup_class(cls, "__hash__") is str.__hash__ and lookup_class(cls, "__eq__") is str.__eq__


def is_read(obj: Value, name: Value) -> bool:
    """Whether a value names an attribute to read. (Code of the program would be given plain text in the place of a member.)"""
    if not is_name(name) or type(name.real) is str:
        return is_name(name)
    hooks = [lookup_class(type(obj.real), hook) for hook in ("__getattribute__", "__getattr__")]
    return not any(map(is_own_code, [*hooks, instance_attributes(obj.real).get("__getattr__")]))


def is_written(obj: Value, name: Value, special: str | None = None) -> bool:
    """Whether a value names an attribute to assign to or delete, by a special method if one is said. (Plain text would be given to
    code in Python, or become a key of the object's `__dict__`, in the place of a member.)"""
    if not is_name(name) or type(name.real) is str:
        return is_name(name)
    cls, held = type(obj.real), instance_attributes(obj.real)
    known = is_a(obj.real, type) or name.real in held or lookup_class(cls, name.real) is not None
    return known and (special is None or type(lookup_class(cls, special)) is not types.FunctionType)


def constant_name(interp: Interpreter, name: Value) -> str:
    interp.during_call(True, interp.track, callables.pin, interp, name)
    if type(name.real) is not str:
        interp.track(pin_special, interp.graph, type(name.real), "__hash__", "__eq__")
    return str.__str__(name.real)


def returning_none(interp: Interpreter, then: Continuation | None) -> Continuation:
    """A continuation that passes None to `then`, whatever the call returns."""
    def returned(_: Value) -> None:
        interp.deliver(NONE_VALUE, then)
    known = Resume.NONE if then is None else getattr(then, "resume", None)
    return resuming(returned, known) if known in (Resume.NONE, Resume.DISCARD) else returned


@reduction(getattr)
def _getattr(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or not 2 <= len(args) <= 3 or not is_read(*args[:2]):
        return False
    if len(args) == 3 and attributes.runs_python(args[0].real, args[1].real):
        return False

    def default(exception: BaseException) -> bool:
        if is_a(exception, AttributeError):
            interp.deliver(args[2], then)
            return True
        return on_raise is not None and on_raise(exception)
    attributes.load(interp, args[0], constant_name(interp, args[1]), then, default if len(args) == 3 else on_raise)
    return True


@reduction(hasattr)
def _hasattr(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 2 or not is_read(*args) or attributes.runs_python(args[0].real, args[1].real):
        return False

    def no(exception: BaseException) -> bool:
        if is_a(exception, AttributeError):
            interp.deliver(Value(False, Const(False)), then)
            return True
        return on_raise is not None and on_raise(exception)

    def yes(_: Value) -> None:
        interp.deliver(Value(True, Const(True)), then)
    attributes.load(interp, args[0], constant_name(interp, args[1]), yes, no)
    return True


@reduction(setattr)
def _setattr(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 3 or not is_written(args[0], args[1], "__setattr__"):
        return False
    attributes.write(interp, args[0], constant_name(interp, args[1]), args[2], "__setattr__", returning_none(interp, then))
    return True


@reduction(delattr)
def _delattr(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 2 or not is_written(args[0], args[1], "__delattr__"):
        return False
    attributes.write(interp, args[0], constant_name(interp, args[1]), None, "__delattr__", returning_none(interp, then))
    return True


def _generic_get(getter: attributes.Getter) -> None:
    @reduction(getter)
    def get(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
        if kwargs or len(args) != 2 or not is_name(args[1]) or is_a(args[0].real, type):
            return False
        attributes.generic(interp, args[0], constant_name(interp, args[1]), then, on_raise, getter)
        return True


_generic_get(object.__getattribute__)
_generic_get(types.ModuleType.__getattribute__)


@reduction(object.__setattr__)
def _generic_set(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 3 or not is_written(args[0], args[1]) or is_a(args[0].real, type):
        return False
    attributes.generic_write(interp, args[0], constant_name(interp, args[1]), args[2], returning_none(interp, then))
    return True


@reduction(object.__delattr__)
def _generic_delete(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 2 or not is_name(args[1]) or is_a(args[0].real, type):
        return False
    attributes.generic_write(interp, args[0], constant_name(interp, args[1]), None, returning_none(interp, then))
    return True


@reduction(torch.Tensor.volatile)  # type: ignore[attr-defined]
def _volatile(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    calls.call(interp, Value(is_volatile, Const(is_volatile)), args, None, then, on_raise)
    return True


@reduction(vars)
def _vars(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 1:
        return False

    def without_dict(exception: BaseException) -> bool:
        missing = is_a(exception, AttributeError)
        error = TypeError("vars() argument must have __dict__ attribute") if missing else exception
        if on_raise is not None and on_raise(error):
            return True
        return unwind.throw(error) if missing else False
    attributes.load(interp, args[0], "__dict__", then, without_dict)
    return True


@reduction(type.__setattr__)
def _class_set(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 3 or not is_name(args[1]) or not is_a(args[0].real, type):
        return False
    attributes.generic_write(interp, args[0], constant_name(interp, args[1]), args[2], returning_none(interp, then))
    return True


@reduction(type.__delattr__)
def _class_delete(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 2 or not is_name(args[1]) or not is_a(args[0].real, type):
        return False
    attributes.generic_write(interp, args[0], constant_name(interp, args[1]), None, returning_none(interp, then))
    return True


@reduction(overrides.GETTER)
def _get_attribute_of_tensor(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) < 2 or not overrides.is_attribute_of_tensors(args[0].real) or not is_a(args[1].real, torch.Tensor):
        return False
    found, obj = args[0], args[1]
    descriptors.bind(interp, found, found.real.__name__, obj, then, on_raise)
    return True


@reduction(overrides.SETTER)
def _set_attribute_of_tensor(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    if kwargs or len(args) != 3 or not overrides.is_attribute_of_tensors(args[0].real) or not is_a(args[1].real, torch.Tensor):
        return False
    attributes.set_through(interp, args[0].real, args[1], args[2], returning_none(interp, then))
    return True


@reduction(special_method)
def _special_method(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    obj, name = args[0], args[1].real
    cls = type(obj.real)
    descriptors.bind(interp, descriptors.find(interp, cls, name, lookup_class(cls, name), obj), name, obj, then, on_raise)
    return True


@reduction(comparison_method)
def _comparison_method(interp: Interpreter, args: Args, kwargs: Kwargs, then: Then, on_raise: Catch) -> bool:
    def dropped(exception: BaseException) -> bool:
        interp.deliver(Value(decline, Const(decline)), then)
        return True
    return _special_method(interp, args, kwargs, then, dropped)
