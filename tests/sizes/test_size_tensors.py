"""Sizes that the program computes as tensors: of constants and of sizes of other tensors, as sizes of results."""
from __future__ import annotations

import pytest
import torch

import capture
from tests.helpers import call, check


def chunks(x):
    """Overlapping windows, as in Longformer."""
    count = torch.div(x.size(1), 4, rounding_mode="trunc")
    y = x.view(x.size(0), count, 4, x.size(2))
    size, stride = list(y.size()), list(y.stride())
    size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
    return y.as_strided(size=size, stride=stride) * 2


def sizes_in_a_tuple(x):
    count = torch.div(x.size(1), 4, rounding_mode="floor") + 1
    y = x.new_zeros((x.size(0), count, 3)) + 1
    return y, y.size(1)


def sizes_in_a_list(x):
    count = (torch.div(x.size(1) - 11, 3, rounding_mode="floor") + 5) * 2 - 1
    y = torch.full([x.shape[0], count], 2.0)
    return y + 1, tuple(y.shape)


def a_tensor_that_was_made(x):
    count = torch.tensor(x.size(1)) // 4
    return x.view(x.size(0), count, -1) * 2


def a_negative_dividend(x):
    """Rounding towards zero is not rounding down."""
    count = torch.div(x.size(1) - 11, 4, rounding_mode="trunc") + 3
    y = x.new_zeros(x.size(0), count)
    return y + 1, y.shape[1]


def a_tensor_that_is_written_to(x):
    count = torch.tensor(2)
    count += x.size(1)
    y = x.new_zeros(x.size(0), count)
    return y + 1


def a_flag_that_fills(x):
    return torch.full((x.size(0), 2), torch.tensor(True)), torch.full((x.size(0),), torch.tensor(3)), x + 1


def how_often(x):
    return x.repeat_interleave(torch.tensor(2), 1), x.tile(torch.tensor(2), torch.div(x.size(1), 4, rounding_mode="floor"), 1)


def from_values(x):
    count = (x > -100).sum()
    return x.new_zeros(count) + 1


# Captures after the first call, after one with other rows, with another length, and after all.
PROGRAMS = {
    chunks: (1, 2, 3, None), sizes_in_a_tuple: (1, 2, 3, 3), sizes_in_a_list: (1, 2, 3, 3), a_tensor_that_was_made: (1, 2, 3, 3),
    a_negative_dividend: None, a_tensor_that_is_written_to: None, a_flag_that_fills: (1, 2, 3, 3), how_often: None,
    from_values: None}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_sizes_that_are_tensors(program, backend) -> None:
    options = {"options": {"background": False}} if backend == "native" else {}
    shapes = (2, 8, 3), (2, 8, 3), (2, 8, 3), (3, 8, 3), (3, 8, 3), (2, 12, 3), (4, 16, 3), (4, 8, 3), (3, 12, 3)
    steps = [call(torch.randn(*shape)) for shape in shapes]
    expected = PROGRAMS[program]
    for count, captures in zip((3, 5, 6, 9), expected or (None,) * 4):
        stats = check(lambda: program, *steps[:count], captures=captures, backend=backend, tolerance=1e-6, **options)
        assert stats.breaks == 0 or expected is None


def test_kernels_compute_all_of_it() -> None:
    """No part of the graph is left to torch on account of a quotient that is known."""
    for program in (chunks, sizes_in_a_tuple, a_tensor_that_was_made):
        compiled = capture.compile(program, backend="native", options={"background": False})
        for _ in range(3):
            compiled(torch.randn(2, 8, 3))
        assert capture.wait(60)
        graph = capture.report(compiled).frames[0].entries[0].graph
        assert graph.compiled == graph.operations, (program.__name__, graph.state)
