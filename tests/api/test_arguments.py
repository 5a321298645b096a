"""Every argument of every public function, with values that it cannot use: one sentence that names it, and no bare error."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture
from capture.errors import ArgumentError, BackendError


class Hostile:
    """Raises whatever it is asked."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")


VALUES = [True, 0, 1, -1, 65, 2.5, math.nan, math.inf, 10**400, "", "x", b"x", [], [1], {}, {"x": 1}, {1: 2}, {"background": 1}, (),
          (1, 2), set(), object(), Hostile(), torch.ones(3), torch.ones(()), int, len, ..., 1j]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def compiled_with(argument: str, **others: Any) -> Callable[[Any], Any]:
    return lambda value: capture.compile(double, **{"backend": "eager", **others, argument: value})


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{argument: compiled_with(argument) for argument in (
        "fullgraph dynamic backend mode options name disable recompile_limit isolate_recompiles shapes_spec "
        "dynamic_shapes".split())},
    **{f"{backend} {argument}": compiled_with(argument, backend=backend)
       for backend in ("native", "aot_eager", "inductor") for argument in ("mode", "options")},
    "model": lambda value: capture.compile(value, backend="eager"),
    "stats": capture.stats, "explain": capture.explain, "report": capture.report, "disable": capture.disable, "wait": capture.wait,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_value_is_taken_or_refused_in_a_sentence(function: str) -> None:
    refused = 0
    for value in VALUES:
        try:
            FUNCTIONS[function](value)
        except (ArgumentError, BackendError) as error:
            assert len(str(error)) > 20
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("value", [value for value in VALUES if not isinstance(value, str)], ids=lambda value: type(value).__name__)
def test_a_report_is_written_to_a_path(value: Any) -> None:
    with pytest.raises(ArgumentError, match="write takes the path of a file"):
        capture.report().write(value)


@pytest.mark.parametrize("timeout", [None, True, 0, 0.0, -1, 2.5, math.inf, 10**400])
def test_any_number_of_seconds_is_a_timeout(timeout: Any) -> None:
    assert capture.wait(timeout)


@pytest.mark.parametrize("timeout, sentence", [("x", "got str: 'x'"), (math.nan, "got float: nan"), (Hostile(), "its repr raises")])
def test_anything_else_is_none(timeout: Any, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"timeout must be a number of seconds or None, .*{sentence}"):
        capture.wait(timeout)


def test_at_the_most_entries_nothing_is_said_of_raising_the_limit(recwarn: pytest.WarningsRecorder) -> None:
    compiled = capture.compile(lambda x, k: x.repeat(1, k), backend="eager", fullgraph=True, dynamic=False, recompile_limit=100)
    for k in range(1, 67):
        compiled(torch.ones(2), k)
    text = next(str(each.message) for each in recwarn if "64 entries" in str(each.message))
    assert text.endswith("it can have no more.") and "recompile_limit" not in text
