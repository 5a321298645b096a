"""A part of `python -m tests.backends.aot.edits`: some operators in turn, and those whose gradients look at values."""
from __future__ import annotations

import pytest

pytest.importorskip("expecttest")       # torch's samples need it

from tests.aliasing.hunt import CHANGED, Traced, differences
from tests.aliasing.programs import Case
from tests.backends.aot.edits import IN_PLACE, OPERATORS, search
from tests.backends.native.end_to_end.engine import AT_ONCE

LOOKING = ("prod", "cumprod", "max.reduction_no_dim", "median", "norm.inf", "masked.prod",
           "masked.amin", "masked.logsumexp", "linalg.norm")


@pytest.mark.parametrize("names", [list(OPERATORS)[::30], LOOKING], ids=["some", "looking at values"])
def test_gradients_of_edited_operands_and_results(names: list[str]) -> None:
    outcome = search(names, edits=("scaled", "counted"))
    assert outcome.compared > 2 * len(names)
    assert not outcome.found, "\n".join(outcome.found)


def test_gradients_of_edited_tensors_of_which_a_part_was_written_to() -> None:
    """What such an operation saves only the node knows that autograd has for the whole."""
    outcome = search([*IN_PLACE[::8], "exp", "nn.functional.relu", "sigmoid"], edits=("scaled", "counted"), parts=True)
    assert outcome.compared > 60
    assert not outcome.found, "\n".join(outcome.found)


def test_gradients_of_gradients_of_edited_operands_and_results() -> None:
    outcome = search(list(OPERATORS)[7::60], edits=("scaled",), again=True)
    assert outcome.compared > 20
    assert not outcome.found, "\n".join(outcome.found)


def test_gradients_of_gradients_of_edited_statistics() -> None:
    """They count as written to where they are only read."""
    outcome = search(["_native_batch_norm_legit"], samples=6, edits=("scaled",), again=True)
    assert outcome.refused > 10 and not outcome.found, "\n".join(outcome.found)


@pytest.mark.parametrize("program", [
    "return (x * y).sin()", "h = (x * y).sin(); return h, (h * 2).cos()", "h = x * y; return h.t(), h.t().sin().sum()",
    "y.mul_(2); return (x * y).sin()", "return F.dropout(x * y).sin()",
    "return torch.linalg.cholesky(x @ x.T + y * 0 + 1e-3 * torch.eye(4)).sin()"])
@pytest.mark.parametrize("edit", [
    "", "a[0].data.mul_(3)", "a[1].data[0].zero_()", "a[0].data = torch.ones(2, 2)", "r[0].data.mul_(2)",
    "a[0].data.fill_(torch.nan)"])
def test_gradients_of_gradients_follow_no_edit_unseen(program: str, edit: str) -> None:
    """They are eager mode's, or there is an error."""
    again = "g = torch.autograd.grad(r[-1].sum(), a[0], create_graph=True)", "g[0].sin().sum().backward()"
    inputs = "torch.randn(4, 4, requires_grad=True)", "torch.randn(4, 4)"
    case = Case(inputs, tuple(program.split("; ")), (*filter(None, [edit]), *again))
    for compile in ({"backend": Traced()}, AT_ONCE):
        found = differences(case, **compile)
        assert not found or edit and all(CHANGED in line for line in found), found


@pytest.mark.parametrize("program", [
    "x.prod()", "x.prod(1)", "x.cumprod(0)", "x.max()", "torch.linalg.vector_norm(x, float('inf'))",
    "torch.masked.logsumexp(x, 0, keepdim=True, mask=y > 0)", "torch.masked.amin(x, 0, mask=y > 0)"])
def test_with_kernels(program: str) -> None:
    for edit in ("r[0].data.mul_(2)", "a[0].data.mul_(3)", "a[0].data[0].zero_()"):
        case = Case(("torch.randn(4, 4, requires_grad=True)", "torch.randn(4, 4)"), (f"return {program},",),
                    (edit, "r[0].sum().backward()"))
        assert not differences(case, **AT_ONCE)
