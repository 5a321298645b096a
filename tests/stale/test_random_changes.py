"""Random programs over one state, which random changes meet between the calls."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capture
from capture.config import RECAPTURE_LIMIT
from tests.helpers import Call, compare, run
from tests.stale.cases import X

Reader = Callable[[torch.Tensor, Any], torch.Tensor]


def make_state() -> types.SimpleNamespace:
    """Objects that refer to one another, and share parts."""
    class Base:
        scale = 2.0

        def apply(self, x):
            return x * self.scale

    class Derived(Base):
        pass

    class Other(Base):
        def apply(self, x):
            return x - self.scale
    box = Derived()
    box.value, box.items, box.table = 1.5, [1.0, 2.0], {"a": 1.0, "b": 2.0}
    factor = 3.0

    def helper(x, shift=1.0):
        return x * factor + shift
    state = types.SimpleNamespace(
        Base=Base, Derived=Derived, Other=Other, box=box, twin=Derived(), items=box.items, table={"a": 5.0}, flags={"on"}
        ,
        count=0, helper=helper, weight=torch.linspace(0, 1, 3), kind=Derived, name="relu", missing=None, pair=(1.0,
    "a"))
    state.cell = helper.__closure__[0]
    return state


def branch_on_value(x, s):
    return x + 1 if s.box.value > 1 else x - 1


def sum_of_items(x, s):
    return x + sum(s.box.items)


def loop_over_items(x, s):
    for item in s.items:
        x = x * item
    return x


def keys_in_order(x, s):
    for number, (key, value) in enumerate(s.box.table.items()):
        x = x + number * value + len(key)
    return x


def lookup(x, s):
    return x + s.table.get("b", 7.0)


def method(x, s):
    return s.box.apply(x)


def method_of_twin(x, s):
    return s.twin.apply(x)


def function(x, s):
    return s.helper(x)


def optional(x, s):
    return x if s.missing is None else x * s.missing


def absent(x, s):
    return x * getattr(s.box, "extra", 4.0)


def membership(x, s):
    return x + 1 if "on" in s.flags else x


def instance(x, s):
    return x + 1 if isinstance(s.box, s.kind) else x - 1


def by_name(x, s):
    return getattr(x, s.name)()


def tensor(x, s):
    return x + s.weight


def unpacked(x, s):
    number, text = s.pair
    return x * number + len(text)


def identity(x, s):
    return x + 1 if s.items is s.box.items else x


def counted(x, s):
    s.count += 1
    return x


def appended(x, s):
    s.box.items.append(float(len(s.box.items)))
    return x


def written(x, s):
    s.box.table["c"] = s.box.value
    return x


def replaced(x, s):
    s.box.value = -s.box.value
    return x


def weight_replaced(x, s):
    s.weight = s.weight * 2
    return x


def weight_written(x, s):
    s.weight.add_(1)
    return x


def table_written(x, s):
    s.table["b"] = 8.0
    return x


def item_written(x, s):
    s.items[-1] = s.items[0] + 1
    return x


def item_removed(x, s):
    return x * s.items.pop() if len(s.items) > 2 else x


def flag_written(x, s):
    s.flags ^= {"on"}
    return x


def twin_written(x, s):
    s.twin.value = 0.25
    return x + s.twin.value


def attribute_deleted(x, s):
    if hasattr(s.box, "extra"):
        try:
            del s.box.extra
        except AttributeError:
            return x * 2
    return x


def class_written(x, s):
    s.Base.scale = s.Base.scale + 1
    return x


def cell_written(x, s):
    s.cell.cell_contents += 1
    return x


def function_made(x, s):
    s.helper = lambda y, value=s.box.value: y * value
    return s.helper(x)


READERS = [table_written, item_written, item_removed, flag_written, twin_written, attribute_deleted, class_written,
           cell_written, function_made, branch_on_value, sum_of_items, loop_over_items, keys_in_order, lookup,
           method, method_of_twin, function, optional, absent, membership, instance, by_name, tensor, unpacked, identity,
           counted, appended, written, replaced, weight_replaced, weight_written]


def order_changes(s):
    first = next(iter(s.box.table))
    s.box.table[first] = s.box.table.pop(first)


def default_changes(s):
    if isinstance(s.helper, types.FunctionType):
        s.helper.__defaults__ = (2.0,)


def code_changes(s):
    if isinstance(s.helper, types.FunctionType) and s.helper.__closure__:
        s.helper.__code__ = make_state().helper.__code__.replace(co_name="other")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda s: None,
    "value": lambda s: setattr(s.box, "value", 0.5), "value again": lambda s: setattr(s.box, "value", 2.5),
    "value is an int": lambda s: setattr(s.box, "value", 2), "item": lambda s: s.box.items.__setitem__(0, 4.0),
    "append": lambda s: s.box.items.append(3.0), "pop": lambda s: len(s.box.items) > 1 and s.box.items.pop(),
    "list replaced": lambda s: setattr(s.box, "items", [1.0, 2.0]), "list shared": lambda s: setattr(s,
    "items", s.box.items),
    "list unshared": lambda s: setattr(s, "items", [2.0]), "order": order_changes,
    "new key": lambda s: s.box.table.update(z=9.0), "key gone": lambda s: s.box.table.pop("z", None),
    "key appears": lambda s: s.table.update(b=3.0), "key disappears": lambda s: s.table.pop("b", None),
    "table shared": lambda s: setattr(s, "table", s.box.table), "class attribute": lambda s: setattr(s.Base,
    "scale", 3.0),
    "derived attribute": lambda s: setattr(s.Derived, "scale", 5.0),
    "method patched": lambda s: setattr(s.Base, "apply", lambda self, x: x + self.scale),
    "method on instance": lambda s: setattr(s.box, "apply", lambda x: x * 7),
    "method restored": lambda s: vars(s.box).pop("apply", 0),
    "class replaced": lambda s: setattr(s.box, "__class__", s.Other), "class back": lambda s: setattr(s.box,
    "__class__", s.Derived),
    "bases": lambda s: setattr(s.Derived, "__bases__", (s.Other,)), "bases back": lambda s: setattr(s.Derived,
    "__bases__", (s.Base,)),
    "twin is box": lambda s: setattr(s, "twin", s.box), "cell": lambda s: setattr(s.cell, "cell_contents", 4.0),
    "default": default_changes, "code": code_changes,
    "helper replaced": lambda s: setattr(s, "helper", torch.tanh), "flag off": lambda s: s.flags.discard("on"),
    "flag on": lambda s: s.flags.add("on"), "other flag": lambda s: s.flags.add("off"),
    "missing appears": lambda s: setattr(s, "missing", 2.0),
    "missing is a tensor": lambda s: setattr(s, "missing", torch.ones(3)), "missing again": lambda s: setattr(s,
    "missing", None),
    "extra": lambda s: setattr(s.box, "extra", 2.0), "extra on class": lambda s: setattr(s.Base, "extra", 3.0),
    "kind": lambda s: setattr(s, "kind", s.Other), "name": lambda s: setattr(s, "name", "tanh"),
    "weight": lambda s: setattr(s, "weight", torch.ones(3)), "weight shape": lambda s: setattr(s,
    "weight", torch.ones(1)),
    "weight dtype": lambda s: setattr(s, "weight", torch.ones(3, dtype=torch.float64)),
    "weight written": lambda s: s.weight.zero_(),
    "missing is weight": lambda s: setattr(s, "missing", s.weight), "pair": lambda s: setattr(s, "pair", (2.0, "bb")),
    "getattr": lambda s: setattr(s.Base,
    "__getattr__", lambda self, name: 6.0 if name == "extra" else object.__getattribute__(self, name)),
}


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(READERS), min_size=1, max_size=5),
       st.lists(st.sampled_from(sorted(CHANGES)), min_size=2, max_size=8))
def test_random_changes(readers: list[Reader], changes: list[str]) -> None:
    def make():
        state = make_state()

        def program(x):
            for reader in readers:
                x = reader(x, state)
            return x
        return program, state
    steps: list[Any] = []
    for change in changes:
        steps += [Call(lambda _: ((X.clone(),), {})), CHANGES[change]]
    steps.append(Call(lambda _: ((X.clone(),), {})))
    with RECAPTURE_LIMIT.set(32):
        problems = compare(run(make, tuple(steps)), run(make, tuple(steps), capture.compile))
    assert not problems, "\n".join([f"readers: {[r.__name__ for r in readers]}, changes: {changes}", *problems[:10]])
