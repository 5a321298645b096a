"""The model of what a GPU's dropout draws (`tests/gpu/philox.py`), without one: known answers, and the loops of ATen's kernels."""
from __future__ import annotations

import pytest
import torch

from tests.gpu import philox


@pytest.mark.parametrize("seed, offset, subsequence, expected", [
    (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (-1, -1, -1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, "d16cfe09 94fdcceb 5001e420 24126ea1"),
])
def test_known_answers(seed: int, offset: int, subsequence: int, expected: str) -> None:
    """Those that come with Random123, the generator's first implementation."""
    signed = [value - (1 << 64) if value >= 1 << 63 else value for value in (offset, subsequence)]
    words, = philox.philox(seed, *(torch.tensor([value]) for value in signed)).tolist()
    assert " ".join(f"{word:08x}" for word in words) == expected


def test_numbers_are_above_0_and_up_to_1() -> None:
    assert philox.uniform(torch.tensor([0, 0xFFFFFFFF, 1 << 31])).tolist() == [2.0**-33, 1.0, 0.5]


@pytest.mark.parametrize("width, elements", [(1, 5000), (2, 5002), (4, 9000), (8, 9000), (8, 8), (1, 1)])
def test_what_the_loops_of_the_kernels_draw(width: int, elements: int, seed: int = 77, offset: int = 12) -> None:
    resident = 3 * philox.BLOCK
    threads = philox.threads_of(elements, resident)
    expected = torch.full((elements,), -1.0)
    places = torch.meshgrid(torch.arange(8) + offset // 4, torch.arange(threads), indexing="ij")
    numbers = philox.uniform(philox.philox(seed, *places)).transpose(0, 1).tolist()     # of each thread, of each of its draws
    for thread in range(threads):
        draws = iter(numbers[thread])
        if width == 1:
            rounded = ((elements - 1) // (threads * 4) + 1) * threads * 4
            for first in range(thread, rounded, threads * 4):
                for number, value in enumerate(next(draws)):
                    if first + threads * number < elements:
                        expected[first + threads * number] = value
        else:
            for first in range(thread * width, elements, threads * width):
                values = [value for _ in range(-(-width // 4)) for value in next(draws)]
                expected[first:first + width] = torch.tensor(values[:width])
    assert torch.equal(philox.drawn(elements, seed, offset, resident, width), expected)
