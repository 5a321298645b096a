"""Calls with keywords that are no strings: functions of C may take them, all others refuse them, as in CPython."""
from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from tests.helpers import call, check

X = torch.ones(2)


class Plain:
    def method(self, **kwargs: Any) -> Any:
        return kwargs


def plain(**kwargs: Any) -> Any:
    return kwargs


def handled(x: torch.Tensor) -> Any:
    y = x + 1
    try:
        return "{a}".format(**{3: 1}), y
    except KeyError as error:
        return str(error), y * 2


def refused_and_handled(x: torch.Tensor) -> Any:
    y = x + 1
    try:
        return plain(**{3: 1}), y
    except TypeError as error:
        return str(error), y * 2


@pytest.mark.parametrize("program", [
    lambda x: ("{a}".format(**{3: 1}), x + 1), lambda x: ("{a}{0}".format(*[1], **{3: 1, "a": x.shape}), x + 1),
    lambda x: (collections.OrderedDict(**{3: 1}), x + 1), lambda x: (dict(**{3: 1}), x + 1), lambda x: (Plain(**{3: 1}), x + 1),
    lambda x: (Plain().method(**{3: 1}), x + 1), lambda x: (plain(**{3: 1}), x + 1), handled, refused_and_handled])
def test_keywords_that_are_no_strings(program: Any) -> None:
    check(lambda: program, call(X), call(X), call(X * 2), captures=None, fullgraph=False)
