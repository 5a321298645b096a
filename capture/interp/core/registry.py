"""The registry of what C functions mean: models, pure functions, and polyfills.

To add a builtin, add one entry in `function_models/` or `polyfills/`, and one test.
"""
from __future__ import annotations

import collections
import inspect
import types
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.special import ARITHMETIC, BUILTIN_DATA
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import UNBOUND_IN_C, is_heap_type, lookup_class
from capture.refgraph.node import SCALARS, RefNode, Shadow

if TYPE_CHECKING:
    from capture.interp.core.frame import Value

# model(interp, result, *args: Value, **kwargs: Value) -> the shadow of `result`. It runs after the real call, and
# brings the shadow state of the arguments up to date.
Model = Callable[..., Shadow]
# prepare(interp, *args: Value, **kwargs: Value): runs before the real call, to look at what the call will overwrite,
# and to depend on what decides whether it raises.
Prepare = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Meaning:
    """How a C function is modelled.

    `applies(*reals, **reals)`: whether the model covers these arguments; it must make sure that the real call runs no Python code.
    None: always. `refuses(interp, *args: Value, **kwargs: Value)`: why the call must not be part of the trace as it is now, or
    None. `performing(interp, perform)`: how the real call is made, by `perform(function, *reals, **reals)`.
    """

    model: Model
    prepare: Prepare | None = None
    applies: Callable[..., bool] | None = None
    refuses: Callable[..., Break | None] | None = None
    performing: Callable[..., Callable[..., Any]] | None = None


MODELS: dict[Any, list[Meaning]] = {}
# C functions whose result follows from their arguments, when these are scalars, VALUES or composites of them, and which
# then run no Python code and change nothing.
PURE: set[Any] = set()
# C functions of scalars which are cheap to recompute, and so may stay lazy: an `Expr` in place of a guarded constant.
LAZY: set[Any] = set()
# C functions that act on the world: printing, clocks, random numbers, files …
SIDE_EFFECTS: set[Any] = set()
# … of which these look at the frames of their callers, besides builtins (`caller_frames.SENSITIVE`).
SEES_CALLERS: set[Any] = set()
# C functions that no trace holds -> the id of the break reason.
BREAKING: dict[Any, str] = {}
# Operations with a further condition for being recorded: refuse(interp, function, args, kwargs) -> why no trace holds this call, or
# None.
OPERATION_RULES: dict[Any, Callable[..., Break | None]] = {}
# Functions, methods and classes of libraries, known by name and not imported: (module, qualified name) -> what registers them …
NAMED_EFFECTS: dict[tuple[str, str], Callable[[Any], None]] = {}
# … and functions that find, for any other function that is met for the first time, the one that registers it, if there is one.
FAMILIES: list[Callable[[types.FunctionType], Callable[[Any], None] | None]] = []
# What to do when an instance of a class has died, and its finalizer has run: noted(interp, its node) -> whether the trace goes on.
# By the identity of the class, since its `__eq__` may be the program's; `SIDE_EFFECTS` keeps the class alive.
DEATHS: dict[int, Callable[[Any, RefNode], bool]] = {}
# Builtins that call back into Python: replaced by a Python function of the same meaning, which is inlined.
# Each entry is (applies(*reals, **reals), function); the first that applies is taken.
POLYFILLS: dict[Any, list[tuple[Callable[..., bool], Callable[..., Any]]]] = {}


# Builtins that are part of the interpreter itself (getattr, next …): reduction(interp, args, kwargs, then, on_raise)
# performs the call, and returns False to leave it to the rest of the mechanism.
REDUCTIONS: dict[Any, Callable[..., bool]] = {}

OWNERS = frozenset({list, tuple, set, frozenset, dict, collections.OrderedDict, collections.defaultdict, collections.deque, str,
                    bytes, bytearray})

# Functions that capture.disable excluded.
DISABLED: weakref.WeakSet[Any] = weakref.WeakSet()


def exclusion(function: Any) -> str | None:
    """Why a Python function is not captured: the user excluded it from capture or from torch.compile, or had it compiled by
    torch.compile. None for any other function."""
    if type(function) is not types.FunctionType:
        return None
    known = function.__dict__
    marked = known.get("_torchdynamo_wrapper_id", id(function)) == id(function)     # else `functools.wraps` has copied the marks
    if marked and "_torchdynamo_inline" in known:
        return "torch-compiled"
    return "disabled-call" if marked and "_torchdynamo_disable" in known or function in DISABLED else None


def exclusion_of_module(module: Any) -> str | None:
    """The same of a module. (Torch's classes are recognised by name: importing torch._dynamo takes seconds.)"""
    cls = type(module)
    if cls.__module__ == "torch._dynamo.eval_frame" and cls.__qualname__ == "OptimizedModule":
        return "disabled-call" if type(module.dynamo_ctx).__qualname__ == "DisableContext" else "torch-compiled"
    return None if module.__dict__.get("_compiled_call_impl") is None else "torch-compiled"


def model(*functions: Any, prepare: Prepare | None = None,
          applies: Callable[..., bool] | None = None,
          refuses: Callable[..., Break | None] | None = None,
          performing: Callable[..., Callable[..., Any]] | None = None) -> Callable[[Model], Model]:
    """Registers what the C functions `functions` mean (method descriptors, as `list.append`, with self first)."""
    def register(fn: Model) -> Model:
        for function in functions:
            MODELS.setdefault(function, []).append(Meaning(fn, prepare, applies, refuses, performing))
        return fn
    return register


def polyfill(*functions: Any, applies: Callable[..., bool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the Python function that stands for the C functions `functions` where `applies`."""
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            POLYFILLS.setdefault(function, []).append((applies, fn))
        return fn
    return register


def find_model(function: Any, reals: list[Any], kwargs: dict[str, Any]) -> Meaning | None:
    """The meaning of a C function for these arguments, or None."""
    for meaning in MODELS.get(function, ()) if belongs(function, reals) else ():
        if meaning.applies is None or covers(meaning.applies, reals, kwargs):
            return meaning
    return None


def recognise(function: types.FunctionType) -> None:
    """Registers a function that is known by its name, or by the class that it is of, when it is first met."""
    if function in MODELS or function in POLYFILLS:
        return
    register = NAMED_EFFECTS.get((function.__module__, function.__qualname__))
    for family in FAMILIES if register is None else ():
        register = family(function)
    if register is not None:
        register(function)


def recognise_class(cls: type) -> None:
    """Registers a class that is known by its name."""
    names = type.__getattribute__(cls, "__module__"), type.__getattribute__(cls, "__qualname__")
    register = NAMED_EFFECTS.get(names) if all(type(name) is str for name in names) else None
    if register is not None and cls not in MODELS:
        register(cls)


def covers(applies: Callable[..., bool], reals: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether `applies` accepts these arguments. Its signature is the function's. Arguments that do not fit, in number or type, are
    left to the real call, and so are proxies of dead objects, which raise at any question."""
    try:
        return applies(*reals, **kwargs)
    except (TypeError, AttributeError, ReferenceError):
        return False


# Callables hashed by C, whatever they hold.
HASHED = Classes({types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type})


def methods_beside(function: Any, args: Collection[Any]) -> Collection[str]:
    """Special methods that a pure function does not ask of builtin data: those of operators, if it is one itself (polyfills have
    looked at its operands), if it only makes a number or text, or if it is a method of such data."""
    of_data = function in LAZY and all(is_a(x, BUILTIN_DATA) for x in args) or getattr(function, "__objclass__", None) in SCALARS
    return ARITHMETIC if of_data else ()


def hashable(function: Any) -> bool:
    """Whether a callable can be looked up in the registry, and no Python code is asked for that. (A weak reference asks the object
    it refers to.)"""
    cls = type(function)
    if cls in HASHED:
        return True
    if not callable(function) or issubclass(cls, weakref.ref) or is_heap_type(cls) and any(
            type(lookup_class(cls, name)) is not types.WrapperDescriptorType for name in ("__hash__", "__eq__")):
        return False
    try:
        hash(function)
    except TypeError:
        return False
    return True


def belongs(function: Any, args: Collection[Any]) -> bool:
    """Whether a method of a builtin container or of text is called on one; C refuses all else."""
    owner = getattr(function, "__objclass__", None) if type(function) in UNBOUND_IN_C else None
    return owner not in OWNERS or bool(args) and is_a(next(iter(args)), owner)


def find_polyfill(function: Any, args: list[Value], kwargs: dict[str, Value]) -> Callable[..., Any] | None:
    """The Python function to inline in place of `function`, or None."""
    entries = POLYFILLS.get(function) if hashable(function) else None
    if not entries:
        return None
    reals, named = [arg.real for arg in args], {name: value.real for name, value in kwargs.items()}
    for applies, fn in entries if belongs(function, reals) else ():
        if covers(applies, reals, named) and takes(fn, len(args), kwargs):
            return fn
    return None


def takes(function: Any, count: int, names: Collection[str]) -> bool:
    """Whether a Python function, or the `__init__` of a class, can be called with so many positional arguments, and keywords of
    these names. If not, C's own error says why."""
    if isinstance(function, type):
        function, count = lookup_class(function, "__init__"), count + 1
    if type(function) is not types.FunctionType:
        return True
    code = function.__code__
    most, parameters = code.co_argcount, code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    placed, by_name = set(parameters[:min(count, most)]), set(names).intersection(parameters[code.co_posonlyargcount:])
    if count > most and not code.co_flags & inspect.CO_VARARGS or not placed.isdisjoint(by_name):
        return False
    if len(by_name) < len(names) and not code.co_flags & inspect.CO_VARKEYWORDS:
        return False
    needed = {*parameters[:most - len(function.__defaults__ or ())], *parameters[most:]} - (function.__kwdefaults__ or {}).keys()
    return needed <= placed | by_name


def reduction(*functions: Any) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Registers how the interpreter itself performs the C functions `functions`."""
    def register(fn: Callable[..., bool]) -> Callable[..., bool]:
        for function in functions:
            REDUCTIONS[function] = fn
        return fn
    return register
