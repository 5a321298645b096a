"""What signatures, and parameters of them, hold: objects of any kind, callable or not, of the call or from outside."""
from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest
import torch

from tests.programs import NATIVE, run

X = torch.tensor([1.0, -2.0, 3.0])


class Caller:
    def __call__(self) -> int:
        return 1


class Meta(type):
    pass


class OfMeta(metaclass=Meta):
    pass


HELD = {"a generic alias": typing.Sequence[int], "a union": typing.Union[int, None], "a function": lambda: 3,     # noqa: UP007
        "a callable object": Caller(), "a class": OfMeta, "an operator": torch.relu, "a bound method of C": [1].append,
        "a list": [1], "a dict": {"a": 1}, "a number": 3}


def annotated(held: Any) -> Any:
    def function(y=held):
        return y
    function.__annotations__ = {"y": held, "return": held}
    return function


def make(held: Any) -> Any:
    """A program that reads signatures from outside, and one that it makes itself."""
    function = annotated(held)
    outside = inspect.signature(function)
    parameter = outside.parameters["y"]

    def program(x):
        own = inspect.Parameter("y", inspect.Parameter.KEYWORD_ONLY, default=held, annotation=held)
        found = inspect.signature(function)
        parts = [own.default, own.annotation, own.replace(default=None).annotation, parameter.default, parameter.annotation,
                 outside.return_annotation, found.return_annotation, found.parameters["y"].default]
        return x + 1, parts, [part is held for part in parts]
    return program


@pytest.mark.parametrize("kind", HELD)
def test_parts_of_signatures(kind):
    run(lambda: make(HELD[kind]), (X,), NATIVE)


def test_a_parameter_holds_what_the_call_has_made():
    def program(x):
        def function(y):
            return y + x
        made = [inspect.Parameter("y", inspect.Parameter.KEYWORD_ONLY, default=default) for default in (function, [x], x + 1)]
        return made[0].default(x), made[1].default, made[2].default
    run(lambda: program, (X,), {})
