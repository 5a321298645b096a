"""Functions which the interpreter calls without being told to, by a special method, a hook or a builtin: what they are made of may
change between two calls."""
from __future__ import annotations

import collections
import contextlib
import copy
import functools
import itertools
import logging
import operator
import os
import re
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.helpers import call, check

X = torch.tensor([1.0, 2.0])
Programs = dict[str, tuple[str, str, Callable[[Any], Any]]]


def function(parameters: str, result: str, log: list[Any]) -> Any:
    """A function with defaults, a variable of the enclosing function, and a constant in its code, which logs them all."""
    scope: dict[str, Any] = {"torch": torch, "log": log}
    body = f"log.append((p, q, variable, 10))\n  return {result}"
    source = f"def outer(variable):\n def f({parameters}, *, q=2):\n  {body}\n return f"
    exec(compile(source, __file__, "exec"), scope)
    return scope["outer"](3)


def other_code(f: types.FunctionType) -> None:
    code = f.__code__
    f.__code__ = code.replace(co_consts=tuple(11 if constant == 10 else constant for constant in code.co_consts))


def cell_of(f: Any) -> Any:
    return f.__closure__[f.__code__.co_freevars.index("variable")]


def other_cell(f: Any) -> None:
    cell_of(f).cell_contents = 5


CHANGES: dict[str, Callable[[Any], None]] = {
    "defaults": lambda f: setattr(f, "__defaults__", (*f.__defaults__[:-1], 7)),
    "no defaults": lambda f: setattr(f, "__defaults__", None),
    "keyword defaults": lambda f: setattr(f, "__kwdefaults__", {"q": 8}),
    "no keyword defaults": lambda f: setattr(f, "__kwdefaults__", None),
    "code": other_code, "variable": other_cell}


def owner(name: str, f: Any, base: type = object, **more: Any) -> Any:
    return type("Owner", (base,), {name: f, **more})


PROGRAMS: Programs = {}     # name -> parameters, result, and from the function to the program


def program(name: str, parameters: str, result: str) -> Callable[[Any], Any]:
    def register(make: Callable[[Any], Any]) -> Any:
        PROGRAMS[name] = f"{parameters}, p=1".removeprefix(", "), result, make
        return make
    return register


def of_instance(name: str, parameters: str, result: str, act: Callable[[Any, Any], Any], base: type = object, **more: Any) -> None:
    """A program that makes something with an instance of a class with this method."""
    @program(name, parameters, result)
    def make(f: Any) -> Any:
        instance = owner(name, f, base, **more)()
        return lambda x: act(instance, x)


def attempt(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except TypeError as error:
        return str(error)


def assigned(instance: Any, x: Any) -> Any:
    instance.name = 1
    return x


def deleted(instance: Any, x: Any) -> Any:
    del instance.name
    return x


def stored(instance: Any, x: Any) -> Any:
    instance[0] = 1
    return x


def removed(instance: Any, x: Any) -> Any:
    del instance[0]
    return x


def entered(instance: Any, x: Any) -> Any:
    with instance:
        return x + 1


def in_place(instance: Any, x: Any) -> Any:
    instance += 1
    return x * instance


of_instance("__getattr__", "self, name", "4", lambda instance, x: x * instance.missing)
of_instance("__getattribute__", "self, name", "4", lambda instance, x: x * instance.missing)
of_instance("__setattr__", "self, name, value", "None", assigned)
of_instance("__delattr__", "self, name", "None", deleted)
of_instance("__call__", "self, x", "x * 2", lambda instance, x: instance(x))
of_instance("__bool__", "self", "False", lambda instance, x: x if instance else -x)
of_instance("__len__", "self", "2", lambda instance, x: x * len(instance))
of_instance("__iter__", "self", "iter((1, 2))", lambda instance, x: [x * item for item in instance])
of_instance("__next__", "self", "4", lambda instance, x: x * next(instance))
of_instance("__reversed__", "self", "iter((1, 2))", lambda instance, x: [x * item for item in reversed(instance)])
of_instance("__getitem__", "self, key", "4", lambda instance, x: x * instance[0])
of_instance("__setitem__", "self, key, value", "None", stored)
of_instance("__delitem__", "self, key", "None", removed)
of_instance("__contains__", "self, item", "True", lambda instance, x: x if 3 in instance else -x)
of_instance("__eq__", "self, other", "True", lambda instance, x: x if instance == 3 else -x)
of_instance("__ne__", "self, other", "True", lambda instance, x: x if instance != 3 else -x)
of_instance("__lt__", "self, other", "True", lambda instance, x: [x, sorted([instance, instance])[0] is instance])
of_instance("__hash__", "self", "1", lambda instance, x: [x, {instance: 2}[instance]])
of_instance("__index__", "self", "1", lambda instance, x: x[instance] + (5, 6)[instance])
of_instance("__int__", "self", "4", lambda instance, x: x * int(instance))
of_instance("__float__", "self", "4.0", lambda instance, x: x * float(instance))
of_instance("__add__", "self, other", "4", lambda instance, x: x * (instance + 1))
of_instance("__radd__", "self, other", "4", lambda instance, x: x * (1 + instance))
of_instance("__rmul__", "self, other", "other * 2", lambda instance, x: x * instance)
of_instance("__iadd__", "self, other", "4", in_place)
of_instance("__neg__", "self", "4", lambda instance, x: x * -instance)
of_instance("__str__", "self", "'text'", lambda instance, x: (x, str(instance), f"{instance}"))
of_instance("__repr__", "self", "'text'", lambda instance, x: (x, repr(instance), f"{[instance]}"))
of_instance("__format__", "self, spec", "'text'", lambda instance, x: (x, f"{instance:3}"))
of_instance("__length_hint__", "self", "3", lambda instance, x: x * operator.length_hint(instance))
of_instance("__missing__", "self, key", "4", lambda instance, x: x * instance["name"], dict)
of_instance("__enter__", "self", "None", entered, __exit__=lambda *args: None)
of_instance("__exit__", "self, kind, error, trace", "None", entered, __enter__=lambda self: None)
of_instance("__copy__", "self", "4", lambda instance, x: x * copy.copy(instance))
of_instance("__deepcopy__", "self, memo", "4", lambda instance, x: x * copy.deepcopy(instance))
of_instance("__fspath__", "self", "'a'", lambda instance, x: (x, os.fspath(instance)))
of_instance("__class_getitem__", "cls, item", "4", lambda instance, x: x * type(instance)[3])
of_instance("__abs__", "self", "4", lambda instance, x: x * abs(instance))
of_instance("__round__", "self, digits", "4", lambda instance, x: x * round(instance, 1))
of_instance("__matmul__", "self, other", "4", lambda instance, x: x * (instance @ 1))
of_instance("forward", "self, x", "x * 2", lambda instance, x: instance(x), nn.Module)
of_instance("extra_repr", "self", "'text'", lambda instance, x: (x, repr(instance)), nn.Module)


def of_class(name: str, parameters: str, result: str, act: Callable[[Any, Any], Any]) -> None:
    """A program that makes something with such a class."""
    @program(f"class {name}", parameters, result)
    def make(f: Any) -> Any:
        cls = owner(name, f)
        return lambda x: act(cls, x)


of_class("__init__", "self", "None", lambda cls, x: (x, cls() is None))
of_class("__new__", "cls", "object.__new__(cls)", lambda cls, x: (x, cls() is None))
of_class("__init_subclass__", "cls", "None", lambda cls, x: (x, type("Sub", (cls,), {}).__name__))
of_class("__set_name__", "self, owner, name", "None", lambda cls, x: (x, type("Sub", (), {"a": cls()}).__name__))
of_class("__post_init__", "self", "None", lambda cls, x: (x, cls.__post_init__(cls())))
of_class("__get__", "self, instance, owner", "4", lambda cls, x: x * type("Holder", (), {"a": cls()})().a)


def of_descriptor(name: str, wrap: Callable[[Any], Any], parameters: str, result: str, act: Callable[[Any, Any], Any]) -> None:
    """A program that uses the attribute `name` of an instance of a class."""
    @program(f"descriptor {name}", parameters, result)
    def make(f: Any) -> Any:
        instance = owner("name", wrap(f))()
        return lambda x: act(instance, x)


of_descriptor("fget", property, "self", "4", lambda instance, x: x * instance.name)
of_descriptor("fset", lambda f: property(None, f), "self, value", "None", assigned)
of_descriptor("fdel", lambda f: property(None, None, f), "self", "None", deleted)
of_descriptor("__get__", lambda f: owner("__get__", f)(), "self, instance, owner", "4", lambda instance, x: x * instance.name)
of_descriptor("__set__", lambda f: owner("__set__", f)(), "self, instance, value", "None", assigned)
of_descriptor("__delete__", lambda f: owner("__delete__", f)(), "self, instance", "None", deleted)
of_descriptor("static", staticmethod, "x", "x * 2", lambda instance, x: instance.name(x))
of_descriptor("of a class", classmethod, "cls, x", "x * 2", lambda instance, x: instance.name(x))
of_descriptor("partial", functools.partialmethod, "self, x", "x * 2", lambda instance, x: instance.name(x))
of_descriptor("dispatching", functools.singledispatchmethod, "self, x", "x * 2", lambda instance, x: instance.name(x))


@program("cached property", "self", "4")
def cached(f):
    cls = owner("name", functools.cached_property(f))
    cls.name.__set_name__(cls, "name")
    return lambda x: x * cls().name


def of_metaclass(name: str, parameters: str, result: str, act: Callable[[Any, Any], Any]) -> None:
    @program(f"metaclass {name}", parameters, result)
    def make(f: Any) -> Any:
        meta = type("Meta", (type,), {name: f})
        cls = type.__new__(meta, "Owner", (), {})
        return lambda x: act(cls, x)


of_metaclass("__call__", "cls", "4", lambda cls, x: x * cls())
of_metaclass("__getattr__", "cls, name", "4", lambda cls, x: x * cls.missing)
of_metaclass("__instancecheck__", "cls, instance", "True", lambda cls, x: x if isinstance(3, cls) else -x)
of_metaclass("__subclasscheck__", "cls, other", "True", lambda cls, x: x if issubclass(int, cls) else -x)
of_metaclass("__len__", "cls", "2", lambda cls, x: x * len(cls))
of_metaclass("__iter__", "cls", "iter((1, 2))", lambda cls, x: [x * item for item in cls])
of_metaclass("__contains__", "cls, item", "True", lambda cls, x: x if 3 in cls else -x)
of_metaclass("__getitem__", "cls, item", "4", lambda cls, x: x * cls[3])


def of_function(name: str, parameters: str, result: str, act: Callable[[Any, Any], Any]) -> None:
    @program(name, parameters, result)
    def make(f: Any) -> Any:
        return lambda x: act(f, x)


def with_hook(register: str) -> Callable[[Any, Any], Any]:
    def act(f: Any, x: Any) -> Any:
        module = nn.Identity()
        getattr(module, register)(f)
        return module(x)
    return act


def gradient(act: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def run(f: Any, x: Any) -> Any:
        leaf = x.detach().clone().requires_grad_()
        act(f, leaf).sum().backward()
        return leaf.grad
    return run


def hooked(f: Any, x: Any) -> Any:
    y = x * 2
    y.register_hook(f)
    return y


def of_autograd(name: str, parameters: str) -> None:
    """A program that applies an autograd function of which this is one part, and asks for gradients."""
    @program(f"autograd {name}", f"ctx, {parameters}", f"{parameters} * 2")
    def make(f: Any) -> Any:
        parts = {"forward": lambda ctx, x: x * 2, "backward": lambda ctx, grad: grad * 2, name: f}
        cls: Any = type("Doubling", (torch.autograd.Function,), {part: staticmethod(one) for part, one in parts.items()})
        return lambda x: gradient(lambda f, leaf: cls.apply(leaf))(f, x)


of_autograd("forward", "x")
of_autograd("backward", "grad")


def managed(f: Any, x: Any) -> Any:
    with contextlib.contextmanager(f)():
        return x + 1


of_function("sorted", "item", "-item", lambda f, x: [x, sorted([1, 2], key=f)])
of_function("max", "item", "-item", lambda f, x: [x, max([1, 2], key=f)])
of_function("sort", "item", "-item", lambda f, x: [x, [1, 2].sort(key=f)])
of_function("map", "item", "-item", lambda f, x: [x, *map(f, [1, 2])])
of_function("filter", "item", "item > 1", lambda f, x: [x, *filter(f, [1, 2])])
of_function("reduce", "a, b", "a + b", lambda f, x: x * functools.reduce(f, [1, 2]))
of_function("accumulate", "a, b", "a + b", lambda f, x: [x, *itertools.accumulate([1, 2], f)])
of_function("takewhile", "item", "item < 2", lambda f, x: [x, *itertools.takewhile(f, [1, 2])])
of_function("groupby", "item", "item < 2", lambda f, x: [x, [key for key, _ in itertools.groupby([1, 2], f)]])
of_function("starmap", "a, b", "a + b", lambda f, x: [x, *itertools.starmap(f, [(1, 2)])])
of_function("partial", "x", "x * 2", lambda f, x: functools.partial(f, x)())
of_function("iter", "", "4", lambda f, x: [x, *itertools.islice(iter(f, 5), 2)])
of_function("cmp_to_key", "a, b", "b - a", lambda f, x: [x, sorted([1, 2], key=functools.cmp_to_key(f))])
of_function("defaultdict", "", "4", lambda f, x: x * collections.defaultdict(f)["a"])
of_function("sub", "match", "'b'", lambda f, x: (x, re.sub("a", f, "aa")))
of_function("lru_cache", "x", "x * 2", lambda f, x: x * functools.lru_cache(f)(3))
of_function("singledispatch", "x", "x * 2", lambda f, x: functools.singledispatch(f)(x))
of_function("wraps", "x", "x * 2", lambda f, x: functools.wraps(f)(lambda x: f(x))(x))
of_function("contextmanager", "", "(yield)", managed)
of_function("generator", "x", "(yield x)", lambda f, x: list(f(x)))
of_function("forward hook", "module, args, result", "result * 2", with_hook("register_forward_hook"))
of_function("pre-hook", "module, args", "(args[0] * 2,)", with_hook("register_forward_pre_hook"))
of_function("tensor hook", "grad", "grad * 2", gradient(hooked))
of_function("checkpoint", "x", "x * x", gradient(lambda f, x: checkpoint(f, x, use_reentrant=False)))
of_function("vmap", "x", "x * 2", lambda f, x: torch.func.vmap(f)(x))
of_function("grad", "x", "x * 2", lambda f, x: torch.func.grad(f)(x[0]))
of_function("tree_map", "x", "x * 2", lambda f, x: torch.utils._pytree.tree_map(f, [x, 1]))
of_function("exec", "x", "x * 2", lambda f, x: eval("f(x)", {"f": f, "x": x}))


@program("__torch_function__", "cls, func, types, args=(), kwargs=None",
         "super(cls, cls).__torch_function__(func, types, args, kwargs)")
def of_tensors(f):
    cls = owner("__torch_function__", classmethod(f), torch.Tensor)
    return lambda x: x.as_subclass(cls).sum().item() + len(torch.cat([x.as_subclass(cls)]))


@program("torch function mode", "self, func, types, args=(), kwargs=None", "func(*args, **(kwargs or {}))")
def of_modes(f):
    cls = owner("__torch_function__", f, torch.overrides.TorchFunctionMode)

    def run(x):
        with cls():
            return torch.cat([x]) + 1
    return run


@program("module __getattr__", "name", "4")
def of_modules(f):
    module = types.ModuleType("generated")
    module.__getattr__ = f  # type: ignore[method-assign]
    return lambda x: x * module.missing


@program("log filter", "record", "True")
def of_filters(f):
    logger = logging.Logger("generated")
    logger.addFilter(f)
    logger.addHandler(logging.NullHandler())

    def run(x):
        logger.error("text")
        return x + 1
    return run


@program("optimizer hook", "optimizer, args, kwargs", "None")
def of_optimizers(f):
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    optimizer.register_step_post_hook(f)

    def run(x):
        weight.grad = x
        optimizer.step()
        return weight * 1
    return run


@program("scheduler", "step", "0.5")
def of_schedulers(f):
    def run(x):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5)
        return x * torch.optim.lr_scheduler.LambdaLR(optimizer, f).get_last_lr()[0]
    return run


@program("parametrization", "self, x", "x * 2")
def of_parametrizations(f):
    linear = nn.Linear(2, 2)
    nn.init.ones_(linear.weight)
    nn.init.ones_(linear.bias)
    nn.utils.parametrize.register_parametrization(linear, "weight", owner("forward", f, nn.Module)())
    return linear.forward


def restored(f: types.FunctionType) -> Callable[[], None]:
    """Has a function be again what it is now."""
    parts = {name: getattr(f, name) for name in ("__code__", "__defaults__", "__kwdefaults__")}

    def restore() -> None:
        for name, part in parts.items():
            setattr(f, name, part)
        cell_of(f).cell_contents = 3
    return restore


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_an_implicitly_called_function_is_made_of(name: str) -> None:
    parameters, result, build = PROGRAMS[name]

    def make():
        log: list[Any] = []
        f = function(parameters, result, log)
        act = build(f)
        return lambda x: attempt(lambda: act(x)), SimpleNamespace(f=f, log=log, restore=restored(f))
    steps = [step for change in CHANGES.values() for step in (
        lambda state, change=change: change(state.f), call(X), call(X), lambda state: state.restore(), call(X))]
    check(make, call(X), call(X), *steps, captures=None, fullgraph=False)


class Noting:
    """A callable object of the program's in the place of a function, which notes all that it is asked."""

    def __init__(self, f: Any, log: list[Any], takes_self: bool) -> None:
        vars(self).update(f=f, log=log, takes_self=takes_self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.log.append("call")
        return self.f(*[None] * self.takes_self, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        self.log.append("eq")
        return True

    def __hash__(self) -> int:
        self.log.append("hash")
        return 1

    def __bool__(self) -> bool:
        self.log.append("bool")
        return True

    def __getattr__(self, name: str) -> Any:
        self.log.append(name)
        raise AttributeError(name)


class Binding(Noting):
    """It is bound as functions are."""

    def __get__(self, instance: Any, cls: Any) -> Any:
        self.log.append("get")
        return self if instance is None else types.MethodType(self, instance)


GETTERS: dict[str, Callable[[Any], Any]] = {
    "__getattribute__": lambda hook: owner("__getattribute__", lambda self, name: object.__getattribute__(self, name),
                                           __getattr__=hook)(),
    "property": lambda hook: owner("__getattr__", hook, missing=property(lambda self: {}.text))(),  # type: ignore[attr-defined]
    "nothing": lambda hook: owner("__getattr__", hook)(),
    "slot": lambda hook: owner("__getattr__", hook, __slots__=("missing",))(),
    "metaclass": lambda hook: type.__new__(type("Meta", (type,), {"__getattr__": hook}), "Owner", (), {}),
    "metaclass with a property": lambda hook: type.__new__(type("Meta", (type,), {
        "__getattr__": hook, "missing": property(lambda cls: {}.text)}), "Owner", (), {})}  # type: ignore[attr-defined]


@pytest.mark.parametrize("getter", GETTERS)
def test_an_object_in_the_place_of_getattr(getter: str) -> None:
    """It is asked for what is missing, whatever finds that out."""
    def make():
        log: list[Any] = []
        hooks = [Noting(lambda name: 3, log, False), Binding(lambda name: 4, log, False), staticmethod(lambda name: 5),
                 functools.partial(lambda name: 6)]
        objects = [GETTERS[getter](hook) for hook in hooks]
        log.clear()

        def program(x):
            found = [attempt(lambda one=one: one.missing) for one in objects]
            return x, found, [getattr(one, "other", 0) for one in objects], [hasattr(one, "third") for one in objects]
        return program, SimpleNamespace(log=log)
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)


def kinds(name: str) -> list[type[Noting]]:
    """Torch asks for a `__torch_function__`, and binds it, more often than it calls it."""
    return [Noting] if "torch" in name else [Noting, Binding]


@pytest.mark.parametrize("name, kind", [(name, kind) for name in PROGRAMS for kind in kinds(name)])
def test_an_object_in_the_place_of_a_function_is_asked_as_often_as_in_eager_mode(name: str, kind: type[Noting]) -> None:
    parameters, result, build = PROGRAMS[name]

    def make():
        log: list[Any] = []
        f = function(parameters, result, log)
        act = build(kind(f, log, kind is Noting and parameters.startswith(("self", "cls"))))
        log.clear()
        return lambda x: attempt(lambda: act(x)), SimpleNamespace(log=log)
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)
