"""Numbers and strings that change from call to call, compared with what is neither: the answer follows from types or is guarded."""
from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import operator
import re
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import call, call_with, check

X = torch.arange(3.0)


class Mode(enum.IntEnum):
    TRAIN = 1
    TEST = 2


class Text(str):
    pass


class Agreeing:
    def __eq__(self, other):
        return True
    __hash__ = None


UNLIKE = [len, torch.relu, F.relu, [].append, torch.nn.Linear(2, 2).forward, torch.device("cpu"), torch.float32, re.compile("a"),
          collections.deque(), array.array("i"), SimpleNamespace(), datetime.date(2020, 1, 1), datetime.timedelta(1), (1,), None]
CHANGING = {"strings": ["a", "b", "cpu", "relu"], "ints": [1, 2, 3, 4], "floats": [0.5, 1.5, 2.5, 3.5]}


def asking(ask, other):
    return lambda x, value: x + 1 if ask(value, other) else x - 1


@pytest.mark.parametrize("values", CHANGING)
@pytest.mark.parametrize("ask", [operator.eq, operator.ne, lambda value, other: other == value],
                         ids=["equal", "unequal", "reflected"])
@pytest.mark.parametrize("other", UNLIKE, ids=lambda other: type(other).__name__)
def test_what_is_never_equal_needs_one_capture(other, ask, values) -> None:
    program = asking(ask, other)
    check(lambda: program, *[call(X, value) for value in CHANGING[values]])
    either = (CHANGING[values][0], other, other)
    check(lambda: program, *[call_with(lambda state, value=value: (X.clone(), value)) for value in either], captures=None,
          fullgraph=False)


@pytest.mark.parametrize("other", [Mode.TEST, decimal.Decimal(2), Text("a")], ids=lambda other: type(other).__name__)
@pytest.mark.parametrize("values", [[1, 2, 3], ["b", "a", "c"]])
def test_what_may_be_equal_is_guarded(other, values) -> None:
    for ask in (operator.eq, operator.ne, lambda value, other: other == value, lambda value, other: value in (other, None)):
        program = asking(ask, other)
        check(lambda program=program: program, *[call(X, value) for value in values for _ in range(2)], captures=None)


def test_members_of_enums_leave_comparisons_to_the_other_operand() -> None:
    for number in (Mode.TEST, True, 2, Text("a")):
        def program(x, value, number=number):
            return x + 1 if number == value else x - 1, number in (value,), number != value
        check(lambda program=program: program, *[call_with(lambda state: (X.clone(), Agreeing()))] * 2)
