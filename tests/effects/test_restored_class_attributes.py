"""Attributes of classes that a call sets for a while, and puts back: a hit need not touch them, unless somebody may look."""
from __future__ import annotations

from typing import Any

import pytest
import torch

import capture

Outcome = tuple[Any, ...]


class Meta(type):
    of_all = 4


class Base(metaclass=Meta):
    inherited = 1
    lost = 2


class Holder(Base):
    active: Any = None


def restores(x, value):
    old = Holder.active
    Holder.active = value
    y = x * 2
    Holder.active = old
    return y


def looks_inside(x, value):
    old = Holder.active
    Holder.active = value
    y = x * 2 if Holder.active == 3 else x * 3
    Holder.active = old
    return y


def prints_inside(x, value):
    old = Holder.active
    Holder.active = value
    print("inside")
    Holder.active = old
    return x * 2


def restores_another(x, value):
    old = Holder.active
    Holder.active = value
    y = x * 2
    Holder.active = 7 if value == 3 else old
    return y


def sets_twice(x, value):
    old = Holder.active
    Holder.active = old
    Holder.active = value
    return x * 2


def restores_what_is_inherited(x, value):
    old = Holder.inherited
    Holder.inherited = value
    y = x * 2
    Holder.inherited = old
    return y


def restores_what_a_base_loses(x, value):
    old = Holder.lost
    del Base.lost
    Holder.lost = old
    return x * 2


def sets_what_the_metaclass_has(x, value):
    Holder.of_all = Holder.of_all
    return x * 2


OWN = frozenset(("inherited", "lost", "of_all"))       # what the class itself may get
PROGRAMS = [restores, looks_inside, prints_inside, restores_another, sets_twice, restores_what_is_inherited,
            restores_what_a_base_loses, sets_what_the_metaclass_has]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_classes_hold_what_they_hold_in_eager_mode(program, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes: list[list[Outcome]] = []
    for engine in (lambda function: function, lambda function: capture.compile(function, backend="eager")):
        function, found = engine(program), []
        for active, value in ((None, 3), (None, 3), (5, 3), (5, 4), (6, 4), (6, 3)):
            Holder.active, Base.lost = active, 2
            for name in OWN & vars(Holder).keys():
                delattr(Holder, name)
            result = function(torch.ones(2), value)
            found.append((result.tolist(), {name: vars(Holder).get(name) for name in ("active", *OWN)}, "lost" in vars(Base),
                          capsys.readouterr().out))
        outcomes.append(found)
        Holder.active = None
    assert outcomes[0] == outcomes[1]
    assert capture.stats(function).hits >= 1


def test_a_hit_does_not_touch_the_class() -> None:
    """It would have all guards on the class looked at again, each time."""
    class Watched:
        active = None

    def program(x):
        old = Watched.active
        Watched.active = x
        y = x * 2
        Watched.active = old
        return y
    function = capture.compile(program, backend="eager")
    for _ in range(3):
        assert torch.equal(function(torch.ones(2)), torch.full((2,), 2.0)) and Watched.active is None
    assert "__setattr__" not in capture.explain(function)
    assert capture.stats(function).hits == 2
