"""A part of `python -m tests.backends.aot.edits`: some operators in turn, and those whose gradients look at values."""
from __future__ import annotations

import pytest

pytest.importorskip("expecttest")       # torch's samples need it

from tests.aliasing.hunt import differences
from tests.aliasing.programs import Case
from tests.backends.aot.edits import OPERATORS, search
from tests.backends.native.end_to_end.engine import AT_ONCE

LOOKING = ("prod", "cumprod", "max.reduction_no_dim", "median", "norm.inf", "masked.prod",
           "masked.amin", "masked.logsumexp", "linalg.norm")


@pytest.mark.parametrize("names", [list(OPERATORS)[::30], LOOKING], ids=["some", "looking at values"])
def test_gradients_of_edited_operands_and_results(names: list[str]) -> None:
    outcome = search(names, edits=("scaled",))
    assert outcome.compared > 2 * len(names)
    assert not outcome.found, "\n".join(outcome.found)


@pytest.mark.parametrize("program", [
    "x.prod()", "x.prod(1)", "x.cumprod(0)", "x.max()", "torch.linalg.vector_norm(x, float('inf'))",
    "torch.masked.logsumexp(x, 0, keepdim=True, mask=y > 0)", "torch.masked.amin(x, 0, mask=y > 0)"])
def test_with_kernels(program: str) -> None:
    for edit in ("r[0].data.mul_(2)", "a[0].data.mul_(3)", "a[0].data[0].zero_()"):
        case = Case(("torch.randn(4, 4, requires_grad=True)", "torch.randn(4, 4)"), (f"return {program},",),
                    (edit, "r[0].sum().backward()"))
        assert not differences(case, **AT_ONCE)
