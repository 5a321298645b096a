"""Values that are stored, counted or passed along without being looked at never cost a second capture."""
from __future__ import annotations

import types

import pytest
import torch

import capture
from tests.helpers import call, check
from tests.stale.cases import X

CALLS = 20
PROGRAMS: list = []


def lazy(make):
    """Registers a factory of (program, change): `change(i)` is made before call `i`."""
    PROGRAMS.append(pytest.param(make, id=make.__name__))
    return make


@pytest.mark.parametrize("make", PROGRAMS)
def test_one_capture_over_many_calls(make) -> None:
    def world():
        program, change = make()
        return program, types.SimpleNamespace(program=program, change=change)
    steps = []
    for number in range(CALLS):
        steps += [lambda state, number=number: state.change(number), call(X)]
    stats = check(world, *steps, captures=1)
    assert stats.hits == CALLS - 1


def unchanged(number):
    return None


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        self.step += 1
        return self.linear(x)


@lazy
def counter_attribute():
    return Counter(), unchanged


@lazy
def counter_attribute_set_from_outside():
    net = Counter()
    return net, lambda number: setattr(net, "step", number * 1000)


@lazy
def counter_grows_beyond_a_machine_word():
    box = types.SimpleNamespace(count=2**60)

    def program(x):
        box.count *= 3
        return x + 1
    return program, unchanged


@lazy
def counter_in_a_list_and_a_dict():
    counts, table = [0], {"calls": 0}

    def program(x):
        counts[0] += 1
        table["calls"] = table["calls"] + 2
        return x + 1, counts[0], table
    return program, unchanged


@lazy
def counter_in_a_cell():
    count = 0

    def program(x):
        nonlocal count
        count += 1
        return x + 1, count
    return program, unchanged


@lazy
def counter_on_a_class():
    class Owner:
        calls = 0

    def program(x):
        Owner.calls += 1
        return x + 1, Owner.calls
    return program, unchanged


@lazy
def counter_of_a_function():
    def program(x):
        program.calls += 1
        return x + 1
    program.calls = 0
    return program, unchanged


@lazy
def float_is_stored():
    box = types.SimpleNamespace(rate=0.1, last=None)

    def program(x):
        box.last = box.rate
        return x + 1
    return program, lambda number: setattr(box, "rate", number / 3)


@lazy
def float_is_returned():
    box = types.SimpleNamespace(rate=0.1)
    return lambda x: (x + 1, box.rate, {"rate": box.rate}), lambda number: setattr(box, "rate", number / 3)


@lazy
def running_average():
    box = types.SimpleNamespace(loss=0.0, rate=1.0)

    def program(x):
        box.loss = 0.9 * box.loss + 0.1 * box.rate
        return x + 1
    return program, lambda number: setattr(box, "rate", number / 3)


@lazy
def string_is_passed_along():
    box = types.SimpleNamespace(name="", names=[])

    def helper(name, x):
        return {"name": name, "x": x}

    def program(x):
        box.names.append(box.name)
        return helper(box.name, x + 1)
    return program, lambda number: setattr(box, "name", f"step {number}")


@lazy
def strings_are_joined():
    box = types.SimpleNamespace(name="")
    return lambda x: (x + 1, "model " + box.name), lambda number: setattr(box, "name", f"step {number}")


@lazy
def history_grows():
    box = types.SimpleNamespace(rate=0.0, history=[])

    def program(x):
        box.history.append(box.rate)
        return x + 1
    return program, lambda number: setattr(box, "rate", number / 3)


@lazy
def history_of_tensors():
    box = types.SimpleNamespace(history=[])

    def program(x):
        box.history.append(x.detach())
        return x + 1
    return program, unchanged


@lazy
def object_is_passed_along():
    box = types.SimpleNamespace(item=None, last=None)

    def program(x):
        box.last = box.item
        return x + 1, box.item
    return program, lambda number: setattr(box, "item", [None, 1, "a", {}, [], object, torch.ones(number)][number % 7])


@lazy
def numbers_of_several_types():
    box = types.SimpleNamespace(item=None, last=None)
    items = [0, 0.0, -0.0, False, True, 1, 1.0, 2**70, None, 1j]

    def program(x):
        box.last = box.item
        return x + 1, (box.item, [box.item])
    return program, lambda number: setattr(box, "item", items[number % 10])


@lazy
def previous_and_current_value():
    box = types.SimpleNamespace(now=torch.zeros(()), before=None)

    def program(x):
        box.before, box.now = box.now, x.sum()
        return box.now - box.before
    return program, unchanged


@lazy
def tensor_state_is_replaced():
    box = types.SimpleNamespace(hidden=torch.zeros(2, 3))

    def program(x):
        box.hidden = torch.tanh(box.hidden + x)
        return box.hidden
    return program, unchanged


@lazy
def default_is_passed_along():
    def program(x, name="a"):
        return x + 1, name

    def change(number):
        program.__defaults__ = (f"name {number}",)
    return program, change


def test_a_changing_argument_that_is_only_returned() -> None:
    steps = [call(X, value, name=f"name {value}") for value in range(CALLS)]
    check(lambda: (lambda x, value, name: (x + 1, value, name)), *steps, captures=1)


def test_a_changing_argument_that_is_only_stored() -> None:
    def make():
        box = types.SimpleNamespace(value=None)

        def program(x, value):
            box.value = value
            return x + 1
        return program, box
    check(make, *(call(X, value / 7) for value in range(CALLS)), captures=1)


def test_a_changing_number_is_a_new_capture_only_where_it_decides() -> None:
    def program(x, number):
        return (x + 1 if number > 3 else x - 1), number
    compiled = capture.compile(program, fullgraph=True)
    for number in (1, 4, 1, 4):
        result, same = compiled(X, number)
        assert torch.equal(result, program(X, number)[0]) and same == number
    assert capture.stats(compiled).captures == 2
