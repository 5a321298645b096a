"""Methods of C that programs store or pass on, each bound anew: which they are, and what they are bound to, decides."""
from __future__ import annotations

import collections
import datetime
import re
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capture.refgraph.lookup import methods_of
from tests.helpers import call, check

X = torch.arange(3.0)


class Ordered(collections.OrderedDict):
    pass


class Counted(dict):
    pass


OWNERS = {"OrderedDict": collections.OrderedDict(a=1), "subclass of it": Ordered(a=1), "class": datetime.datetime,
          "defaultdict": collections.defaultdict(int, a=1), "datetime": datetime.datetime(2020, 1, 2, 3), "list": [1],
          "KeyError": KeyError("a"), "bool": True, "int": 3}
# date.replace, given a datetime, reads past what there is; what timetuple returns is one object on all hits.
UNFIT = ("__init__", "__setstate__", "__getattribute__", "__reduce__", "__reduce_ex__", "clear", "popitem", "replace", "timetuple")
NAMESAKES = [pytest.param(owner, name, id=f"{kind}-{name}") for kind, owner in OWNERS.items() for name in dir(owner)
             if name not in UNFIT and len(methods_of(owner, name)) > 1]


@pytest.mark.parametrize(("owner", "name"), NAMESAKES)
@pytest.mark.parametrize("turn", [1, -1], ids=["own first", "hidden first"])
def test_a_method_that_a_subclass_hides_is_another(owner: Any, name: str, turn: int) -> None:
    def make():
        state = SimpleNamespace()
        return lambda x: (x + 1, state.method(*state.args)), state

    def bind(way, args):
        def change(state):
            place = (None, owner) if type(way) is types.ClassMethodDescriptorType else (owner, type(owner))
            state.method, state.args = way.__get__(*place), args
        return change
    ways = [(way, args) for args in ((), (owner,), (700000,))[:3 if isinstance(owner, type) else 2]
            for way in methods_of(owner, name)[::turn] if fits(way, owner, *args)]
    steps = [step for way in [*ways, *ways] for step in (bind(*way), call(X), bind(*way), call(X))]
    check(make, *steps, captures=None, fullgraph=False)


def fits(way: Any, *args: Any) -> bool:
    try:
        way(*args)
        return True
    except (TypeError, KeyError):
        return False


MAKERS = [("fromkeys", ("ab", 1)), ("from_bytes", (b"ab", "little")), ("fromhex", ("10",))]


@pytest.mark.parametrize("classes", [(dict, Counted), (int,), (bytes,), (float,)])
def test_a_class_method_that_is_passed_on_anew_is_a_hit(classes: tuple[type, ...]) -> None:
    name, args = next((name, args) for name, args in MAKERS if hasattr(classes[0], name))

    def program(x, way):
        return x + 1, way(*args), getattr(way.__self__, name)(*args), way.__self__
    check(lambda: program, *(call(X, getattr(cls, name)) for cls in (*classes, *classes)), captures=len(classes))


def test_a_method_that_asks_for_the_class_that_defines_it() -> None:
    """CPython crashes where it is bound without a class."""
    def program(x, pattern):
        search = pattern.search
        return x + 1, search, [search, pattern.sub][-1]
    check(lambda: program, *(call(X, re.compile(text)) for text in "aab"), captures=None)


def test_names_come_in_the_order_of_cpython() -> None:
    class Left:
        zeta = alpha = 1

    class Right:
        omega = alpha = 2

    class Both(Left, Right):
        middle = 3
    both = Both()
    both.y = both.b = 1

    def program(x):
        return x + 1, both.__dir__(), Both.__dir__(both), type.__dir__(Both), dir(both), object.__dir__(both)
    check(lambda: program, call(X), call(X))


def named(**attributes: Any) -> types.ModuleType:
    module = types.ModuleType("named")
    vars(module).update(attributes)
    return module


@pytest.mark.parametrize(("program", "fullgraph"), [
    pytest.param(lambda module, x: x * module.__getattribute__("number"), True, id="reads"),
    pytest.param(lambda module, x: (x + 1, module.__getattribute__), True, id="is returned"),
    pytest.param(lambda module, x: (x + 1, module.__repr__(), module.__dir__()), False, id="tells"),
    pytest.param(lambda module, x: (x + 1, module.__setattr__("number", module.number + 1)), False, id="writes")])
def test_of_a_module(program, fullgraph: bool) -> None:
    """Methods of modules are bound to them, as functions in C of a module are that are none of its methods."""
    def make():
        state = SimpleNamespace(module=named(number=2))
        return lambda x: program(state.module, x), state

    def replace(state):
        state.module = named(number=5)
    check(make, call(X), call(X), lambda state: setattr(state.module, "number", 7), call(X), replace, call(X), call(X),
          captures=None, fullgraph=fullgraph)


def test_of_a_module_stored() -> None:
    def make():
        state = SimpleNamespace(module=named(number=2))
        state.get = state.module.__getattribute__
        return lambda x: x * state.get("number"), state

    def replace(state):
        state.get = named(number=5).__getattribute__
    check(make, call(X), call(X), lambda state: setattr(state.module, "number", 7), call(X), replace, call(X), call(X),
          captures=None)
