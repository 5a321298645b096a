"""A small part of `python -m tests.sizes`: operators in turn, and random programs, called with sizes at random."""
from __future__ import annotations

import warnings

import pytest
import torch

from tests.sizes import at_random, operators, subset, users

pytest.importorskip("expecttest")       # torch's samples need it


@pytest.mark.parametrize("dynamic", [True, None])
def test_operators(dynamic: bool | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in operators.cases(1, 5, 0, every=40):
            operators.examine(case, dynamic=dynamic)


@pytest.mark.parametrize("seed", range(12))
def test_programs(seed: int) -> None:
    at_random.examine(at_random.generate(seed, 7, 8), dynamic=seed % 2 == 0 or None)


@pytest.mark.parametrize("seed", [1, 4])
def test_compiled_programs(seed: int) -> None:
    native = {"backend": "native", "options": {"background": False}, "tolerance": 1e-4}
    at_random.examine(at_random.generate(seed, 5, 5), **native)


@pytest.mark.parametrize("seed", range(6))
def test_programs_of_users(seed: int) -> None:
    users.examine(users.generate(seed, 7, 8), dynamic=seed % 2 == 0 or None)


def test_a_compiled_program_of_users() -> None:
    """Images whose channels are last, beside sizes that the backward pass needs."""
    users.examine(users.generate(8113, 7, 8), backend="native", options={"background": False}, tolerance=1e-4)


def test_programs_of_the_subset_with_other_sizes() -> None:
    """A part of `python -m tests.sizes --subset`."""
    chosen = [one for one in subset.varied() if one.first and one.case.name not in subset.BY_SIZE][5::20]
    counts = {str(one): found for one in chosen if (found := subset.examine(one)) is not None}
    assert len(counts) > 5 and all(several <= 2 * alone for alone, several in counts.values()), counts


def test_what_differs_is_found_and_made_smaller() -> None:
    lines = "t2 = x * 2", "k3 = len(x)", "t4 = wrong(x)", "t5 = y + 1"
    program = at_random.Program(lines, ((2, 3, 4, 5), (3, 3, 4, 5)), False, 0)

    def fails(made: at_random.Program) -> bool:
        return "wrong" in made.text and made.sizes[-1][0] == 3 if made.sizes else False
    assert at_random.shrunk(program, fails).lines == ("t4 = wrong(x)",)


def test_sizes_are_changed_wherever_they_occur() -> None:
    chance = operators.random.Random(1)
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    for _ in range(20):
        one, other = operators.resized((x, y), chance)
        assert one.shape[1] == other.shape[0]
