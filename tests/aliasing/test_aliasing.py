"""A small budget of random programs of views, writes and saved tensors; `python -m tests.aliasing` runs as many as one likes."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from capture import config
from tests.aliasing.hooks import make_hooked, make_numbered
from tests.aliasing.hunt import Traced, differences
from tests.aliasing.programs import Case, make
from tests.aliasing.wide import make_wide

BATCHES = 3
pytestmark = pytest.mark.usefixtures("as_in_the_compiling_process")


@pytest.fixture
def as_in_the_compiling_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORIFY_PYTHON_SCALARS", "0")


def check(first: int, count: int, make: Callable[[int], Case] = make, **compile: Any) -> None:
    for seed in range(first, first + count):
        case = make(seed)
        found = differences(case, **compile)
        assert not found, "\n".join([f"python -m tests.aliasing --seed {seed} --count 1 # {make.__name__}", str(case), *found])


@pytest.mark.parametrize("batch", range(BATCHES))
def test_traced_graphs(batch: int) -> None:
    traced = Traced()
    check(20 * batch, 20, backend=traced)
    assert traced.compiled > traced.graphs / 2


@pytest.mark.parametrize("batch", range(BATCHES))
def test_graphs_as_they_are(batch: int) -> None:
    check(30 * batch, 30, backend="eager")


@pytest.mark.filterwarnings("ignore")
def test_traced_graphs_of_all_words() -> None:
    check(0, 25, make_wide, backend=Traced())


def test_hooks() -> None:
    check(0, 30, make_hooked, backend=Traced())


def test_numbers_that_change() -> None:
    traced = Traced()
    check(0, 20, make_numbered, backend=traced)
    assert traced.numbers > 5


def test_sizes_that_change() -> None:
    traced = Traced()
    check(0, 4, lambda seed: replace(make(seed), sized=True), backend=traced)
    assert traced.sized > 2


def test_kernels() -> None:
    with config.TRIAL_CALLS.set(0):
        check(60, 10, backend="native", options={"background": False})


@pytest.mark.parametrize("seed", [7902, 8147])
def test_rounding_that_a_program_amplifies_is_no_difference(seed: int) -> None:
    """Eager mode's own results move as much where an input changes in its last bit."""
    check(seed, 1, backend=Traced())


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_a_wrong_value_is_a_difference(seed: int) -> None:
    def wrong(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            return [result if not isinstance(result, torch.Tensor) or not result.is_floating_point() else result * 1.001
                    for result in gm(*given)]
        return run
    assert differences(make(seed), backend=wrong)


def test_the_same_number_makes_the_same_case() -> None:
    assert make(7) == make(7) != make(8)
