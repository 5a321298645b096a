"""Our own programs: every one is a single graph, in eval and in train mode, or breaks for a reason that is listed here."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paritybench_subset.cases import Case, subset
from paritybench_subset.engines import Capture
from paritybench_subset.judge import MODES, Judge
from paritybench_subset.results import Result, Verdict

CASES = [(project.name, case) for project in subset() for case in project.load()]

# What they do is decided by the values of tensors, or by random numbers, anew in each call.
ACCEPTED = {
    "online_hard_examples": "data-dependent",                   # `if loss[n] > threshold`
    "greedy_decoder": "data-dependent",                         # `if done.all(): break`
    "early_exit": "data-dependent",                             # `if confidence.item() > threshold: break`, in eval mode
    "seq2seq_with_teacher_forcing": "changing-result",          # `random.random() < ratio`
    "curiosity": "uninitialized-tensor",                        # lazy modules
}
ALSO = {"opaque-call", "data-dependent", "escaping-object", "outside-iterator"}      # … of further breaks of a program that breaks


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The programs are too small for more, and the machine is not ours alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("theme, case", [pytest.param(theme, case, id=f"{theme}-{case.name}") for theme, case in CASES])
def test_in_one_graph(theme: str, case: Case) -> None:
    for mode in MODES:
        result: Result
        result, = Judge().judge(theme, case, mode, {"capture": Capture})
        expected = (Verdict.BREAKS, Verdict.ONE_GRAPH) if case.name in ACCEPTED else (Verdict.ONE_GRAPH,)
        assert result.verdict in expected, result.reasons
        assert {reason.id for reason in result.reasons} <= {ACCEPTED.get(case.name)} | ALSO, result.reasons
        assert result.missing == {} or result.verdict is Verdict.BREAKS


def test_there_are_a_hundred_of_them() -> None:
    assert len({case.name for _, case in CASES}) == len(CASES) >= 100


def test_every_exception_is_a_program() -> None:
    assert ACCEPTED.keys() <= {case.name for _, case in CASES}
