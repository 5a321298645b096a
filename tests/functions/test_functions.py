"""A small part of `python -m tests.functions`: functions of torch in turn, and all that is done with arrays, in one type."""
from __future__ import annotations

import pytest
import torch

from tests.functions.catalogue import CALLS, numpy_cases, torch_cases
from tests.functions.compare import Case, Finding, examine

pytest.importorskip("expecttest")       # torch's samples need it

EVERY = 40
# What ends a trace: a number that is computed after the graph decides, a truth or a Python number becomes a tensor; a list.
IN_PARTS = {"a.dtype", "a.tolist", "a.item", "a.all", "float", "np.allclose", "np.array_equal"}
# Given an object of options, which no graph holds.
WITH_OPTIONS = {f"nn.functional.linear_cross_entropy.{name}" for name in ("chunked", "chunked_none")}


def test_functions_of_torch() -> None:
    findings = [finding for case in torch_cases(1, EVERY) if (finding := examine(case)) is not None]
    assert not [finding for finding in findings if finding.kind != "break"]
    assert {finding.name.removesuffix(".gradients") for finding in findings} <= WITH_OPTIONS


def test_functions_of_numpy() -> None:
    cases = [case for case in numpy_cases() if plain(case.name) in CALLS and case.arguments[0].dtype is torch.float32]
    findings = [finding for case in cases[::3] if (finding := examine(case)) is not None]
    assert not [finding for finding in findings if finding.kind != "break"]
    assert {plain(finding.name) for finding in findings} <= IN_PARTS


def plain(name: str) -> str:
    """What is called, whatever becomes of the result."""
    return name.partition(" as tensor")[0].partition(" on the")[0]


def test_what_differs_is_found() -> None:
    calls: list[int] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + len(calls)

    def forgetful(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return program(x)
    x = torch.ones(3)
    assert examine(Case("sin", torch.sin, (x,))) is None
    found = examine(Case("decides", lambda x: x + 1 if x.sum() > 0 else x, (x,)))
    assert isinstance(found, Finding) and found.kind == "break"
    assert examine(Case("counts", forgetful, (x,))).kind == "wrong"         # each world goes on where the other has ended
