"""Small callable objects that hold what they are made from: methods, partial functions, namespaces."""
from __future__ import annotations

import functools
import operator
import types
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import is_plain
from capture.interp.function_models.shadows import NONE, compose, depend_plain, node_of, shadow_of
from capture.refgraph.effects import Keywords
from capture.refgraph.identical import is_one_of
from capture.refgraph.lookup import args_of, arguments_of, func_of, keywords_of, lookup_class
from capture.refgraph.node import SCALARS, Build, Const, DictState, Expr, RefNode, Shadow
from capture.refgraph.source import Computed


@model(types.MethodType)
def make_method(interp: Interpreter, result: Any, function: Value, instance: Value) -> Shadow:
    """`MethodType(function, instance)`."""
    return Build(types.MethodType, (function.shadow, instance.shadow))


@model(slice)
def make_slice(interp: Interpreter, result: slice, *args: Value) -> Shadow:
    """`slice(start, stop, step)`."""
    parts = [NONE, args[0].shadow] if len(args) == 1 else [value.shadow for value in args]
    return Build(slice, (*parts, NONE)[:3])


# The value itself of an object of a subclass, past methods of its own.
EXACT: dict[type, Any] = {int: int.__index__, float: float.__float__, complex: complex.__complex__, str: str.__str__,
                          bytes: bytes.__bytes__}


@model(*(cls.__new__ for cls in EXACT),
       applies=lambda cls, *args, **kwargs: all(map(is_plain, args)))
def new_scalar(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`int.__new__(cls, x)` of a subclass: an object of fixed value."""
    for value in (cls, *args, *kwargs.values()):
        depend_plain(interp, value.shadow, value.real)
    if type(result) in SCALARS:
        return Const(result)
    base = next(base for base in type(result).__mro__ if base in SCALARS)
    return interp.graph.create(result, origin=Expr(base.__new__, (Const(cls.real), Const(EXACT[base](result)))))


@model(object, applies=lambda: True)
def make_object(interp: Interpreter, result: Any) -> Shadow:
    """`object()`."""
    return interp.graph.create(result)


@model(types.SimpleNamespace, applies=lambda **attributes: True)
def make_namespace(interp: Interpreter, result: Any, **attributes: Value) -> Shadow:
    """`SimpleNamespace(**attributes)`."""
    node = interp.graph.create(result, origin=Expr(types.SimpleNamespace, ()))
    state = DictState({name: value.shadow for name, value in attributes.items()}, complete=True)
    node.attrs = interp.graph.create(result.__dict__, state, origin=node)
    return node


@model(functools.partial)
def make_partial(interp: Interpreter, result: Any, function: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`partial(function, *args, **kwargs)`; partial functions of partial functions are merged, but of those with attributes."""
    graph, shadow = interp.graph, function.shadow
    first = [value.shadow for value in args]
    named = {name: value.shadow for name, value in kwargs.items()}
    inner = function.real
    if is_a(inner, functools.partial):
        if not isinstance(shadow, RefNode):
            raise Break("opaque-call", "a functools.partial of unknown origin was wrapped in another one")
        if shadow.source is not None:
            graph.require(Computed(is_merged, (graph.touch(shadow).source,)), "VALUE", is_merged(inner))
    if func_of(result) is not inner:
        assert isinstance(shadow, RefNode)
        before = graph.field(shadow, "args", args_of(inner))
        keywords = graph.field(shadow, "keywords", keywords_of(inner))
        shadow = graph.field(shadow, "func", func_of(inner))
        first = [*(before.items if isinstance(before, Build) else map(Const, args_of(inner))), *first]
        named = {**{name: graph.dict_get(keywords, name) for name in graph.dict_keys(keywords)},  # type: ignore[arg-type]
                 **named}
    args_shadow = compose(interp, result.args, first)
    keywords_node = graph.create(result.keywords, DictState(named, complete=True))
    origin = Expr(remake_partial, (shadow, args_shadow, keywords_node))
    node = graph.create(result, origin=origin)
    node.slots.update(func=shadow, args=args_shadow, keywords=keywords_node)
    return node


def is_merged(inner: Any) -> bool:
    """Whether C merges a partial function into those that are made of it: it has no instance dict, not even an empty one."""
    return functools.partial.__reduce__(inner)[2][3] is None


def remake_partial(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A partial function of these parts, for the mock function, whatever it wraps."""
    made: Any = functools.partial(remake_partial)
    made.__setstate__((function, args, keywords, None))
    return made


@model(*(cls.__reduce__ for cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller)))
def reduce_getter(interp: Interpreter, result: Any, getter: Value) -> Shadow:
    """The parts of an immutable getter."""
    interp.graph.depend(getter.shadow, getter.real)
    make, args = result
    if type(make) is not functools.partial:
        return shadow_of(interp, result)
    node = interp.graph.create(make)            # of a caller with keywords, one made for this call
    node.slots.update((name, shadow_of(interp, getattr(make, name))) for name in ("func", "args", "keywords"))
    return Build(tuple, (node, shadow_of(interp, args)))


WORDED_IN_C = (BaseException.__str__, KeyError.__str__, AttributeError.__str__, NameError.__str__)


def is_worded_in_c(*args: Any, **kwargs: Any) -> bool:
    """Whether the argument is an exception that shows its arguments and nothing else."""
    return len(args) == 1 and not kwargs and is_a(args[0], BaseException) and is_plain(arguments_of(args[0])) and (
        is_one_of(lookup_class(type(args[0]), "__str__"), *WORDED_IN_C)
        and lookup_class(type(args[0]), "__repr__") is BaseException.__repr__)


@model(str, repr, applies=is_worded_in_c)
def word_exception(interp: Interpreter, result: str, exception: Value) -> Shadow:
    """`str(exception)`."""
    node, args = node_of(exception), arguments_of(exception.real)
    interp.graph.touch(node)
    depend_plain(interp, interp.graph.field(node, "args", args), args)
    return Const(result)


@model(operator.itemgetter, operator.attrgetter, operator.methodcaller)
def make_getter(interp: Interpreter, result: Any, *args: Value, **kwargs: Value) -> Shadow:
    """`itemgetter(key)`, whose parts are constants."""
    for value in (*args, *kwargs.values()):
        interp.graph.depend(value.shadow, value.real)
    make = Keywords(type(result), tuple(kwargs)) if kwargs else type(result)
    origin = Expr(make, tuple(value.shadow for value in (*args, *kwargs.values())))
    return interp.graph.create(result, origin=origin)


@model(property.__new__)
def new_property(interp: Interpreter, result: Any, cls: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`property.__new__(cls)` of a subclass."""
    interp.graph.depend(cls.shadow, cls.real)
    return interp.graph.create(result)


@model(property.__init__)
def make_property(interp: Interpreter, result: None, self: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`property.__init__(self, fget, fset, fdel)`."""
    node = node_of(self)
    given = dict(zip(("fget", "fset", "fdel", "doc"), args)) | kwargs
    node.slots.update({name: given[name].shadow if name in given else NONE for name in ("fget", "fset", "fdel")})
    return NONE
