"""Tensors that are parts of larger ones, of other sizes from call to call: how far apart their elements lie is not guarded."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import capture
from capture import _C
from capture.config import TRIAL_CALLS
from tests.helpers import call, check

NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}
LENGTHS = (5, 6, 7, 9, 12, 3, 8, 5, 12, 12, 9)
PARTS: dict[str, Callable[[int], torch.Tensor]] = {
    "last": lambda n: torch.randn(3, n, 4)[:, -1], "first": lambda n: torch.randn(3, n, 4)[:, :2],
    "column": lambda n: torch.randn(30, n)[:, 0], "last column": lambda n: torch.randn(3, n)[:, -1:],
    "transposed": lambda n: torch.randn(4, n)[:, :3].t(), "several": lambda n: torch.randn(n, n + 2, 4)[:, 1:],
    "every second": lambda n: torch.randn(n, 4, 6)[:, ::2, :3], "one row": lambda n: torch.randn(1, n, 4)[:, :2]}


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["graph", "kernels"])
@pytest.mark.parametrize("part", PARTS)
def test_two_captures(part: str, options: dict[str, Any]) -> None:
    def program(x: torch.Tensor) -> Any:
        y = torch.relu(x * 2 + 1)
        return y.sum(-1), x.shape, x.reshape(-1) + 1, len(x), y.shape, y.numel(), y.amax().item()
    with TRIAL_CALLS.set(0):
        stats = check(lambda: program, *(call(PARTS[part](n)) for n in LENGTHS), captures=2, **options)
    assert not options or stats.compiled and not stats.compile_errors


QUESTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "copied": lambda x: x.contiguous() + 1, "the same": lambda x: x.contiguous() is x, "strides": lambda x: x.stride(),
    "stride": lambda x: x.stride(0) * 2, "dense": lambda x: x.is_contiguous(), "written": lambda x: x.contiguous().add_(1),
    "flat": lambda x: x.reshape(-1).mul_(2), "in place": lambda x: x.add_(1), "kept": lambda x: x.clone().stride(),
    "offset": lambda x: x[1:].storage_offset(), "viewed": lambda x: x.view(x.shape), "like": lambda x: torch.empty_like(x).stride(),
    "array": lambda x: (x * 2).numpy().strides, "bytes": lambda x: x.untyped_storage().nbytes(),
    "strided": lambda x: x.as_strided((2,), (1,)) + 1,
    "again": lambda x: x[..., :2].contiguous().sum()}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_follows_from_strides(question: str) -> None:
    """Where the program goes by them, they are guarded."""
    for part in PARTS.values():
        for lengths in (LENGTHS[:6], (4, 2, 3, 4, 1, 2)):
            steps = [call(part(n)) for n in lengths]
            check(lambda: lambda x: (QUESTIONS[question](x), x * 2), *steps, captures=None, fullgraph=False, recompile_limit=60)


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["graph", "kernels"])
def test_strides_that_follow_from_sizes_take_no_capture_each(options: dict[str, Any]) -> None:
    """Another one where a size is 1: there a stride may be any."""
    def program(x: torch.Tensor) -> Any:
        swapped = x.transpose(1, 2)
        heads = (x @ torch.ones(8, 6)).unflatten(-1, (2, 3)).transpose(1, 2)
        assert heads.stride(-1) == 1 and heads.stride()[-2] == 6
        x = x + x.stride(0)
        single = x[None].stride(-1), x[None].stride(1), x[None].transpose(0, 2).stride(0)
        return x, swapped.stride(), (swapped * 2).stride(), heads.stride(), x.unsqueeze(1).expand(-1, 3, -1, -1).stride(), single
    steps = [call(torch.randn(n + 1, n, 8)) for n in (5, 7, 9, 3, 12, 2, 4, 1, 8)]
    with TRIAL_CALLS.set(0):
        stats = check(lambda: program, *steps, captures=3, **options)
    assert not options or stats.compiled and not stats.compile_errors


def test_whether_a_tensor_is_contiguous_is_so_for_all_sizes() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x if x.is_contiguous() else x * 2
        return y + 1, y.is_contiguous(), x.t().is_contiguous()
    lengths = (5, 6, 7, 9, 12, 3, 2)
    for part in (lambda n: torch.randn(4, n), lambda n: torch.randn(n, 4).t(), lambda n: torch.randn(n, 30)[:, :7]):
        stats = check(lambda: program, *(call(part(n)) for n in lengths), captures=None)
        assert stats.captures == 2, stats.misses
    for part in (lambda n: torch.randn(4, n), lambda n: torch.randn(n, 4).t(), lambda n: torch.randn(8, 30)[:, :n]):
        check(lambda: program, *(call(part(n)) for n in (5, 30, 6, 1, 0, 3, 1, 2, 30, 0)), captures=None, recompile_limit=20)


def test_strides_of_gradients() -> None:
    layer = nn.Linear(4, 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        return layer(x).relu()
    with TRIAL_CALLS.set(0):
        steps = [call(torch.randn(3, n, 4)[:, -1].requires_grad_()) for n in LENGTHS]
        check(lambda: program, *steps, captures=2, backward=True, **NATIVE)


def test_gradients_of_gradients() -> None:
    layer = nn.Linear(4, 3)
    with TRIAL_CALLS.set(0):
        function = capture.compile(lambda x: torch.tanh(layer(x)), backend="native", options={"background": False})
        for n in (5, 6, 6, 6, 7, 7):
            x = torch.randn(3, n, 4)[:, -1].requires_grad_()
            found = []
            for called in (function, lambda x: torch.tanh(layer(x))):
                gradient, = torch.autograd.grad(called(x).sum(), x, create_graph=True)
                found.append(torch.autograd.grad(gradient.square().sum(), x)[0])
            torch.testing.assert_close(*found)


def test_what_lies_around() -> None:
    """A stride that is open is one around what lies within; not one that lets elements overlap, or lie in another order."""
    expected = _C.tensor_properties(torch.zeros(3, 8, 4)[:, :2]).with_free([], [0])
    assert expected.open_sizes and expected.shape == (3, 2, 4)
    for fits, x in [(True, torch.zeros(3, 2, 4)), (True, torch.zeros(3, 90, 4)[:, 5:7]),
                    (False, torch.zeros(3, 1, 4).expand(3, 2, 4)),
                    (False, torch.zeros(1, 2, 4).expand(3, 2, 4)), (False, torch.zeros(2, 3, 4).transpose(0, 1)),
                    (False, torch.zeros(3, 2, 8)[..., ::2]), (False, torch.zeros(30).as_strided((3, 2, 4), (7, 4, 1)))]:
        assert expected.matches(x) is fits, x.stride()
    innermost = _C.tensor_properties(torch.zeros(5, 3)[:, 0]).with_free([0], [0])
    assert innermost.matches(torch.zeros(7)) and not innermost.matches(torch.zeros(1).expand(7))
    assert "around" in repr(expected) and "any" in repr(innermost)
    for wrong in ([3], [-1], ["x"]):
        with pytest.raises((ValueError, OverflowError, TypeError)):
            expected.with_free([], wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["eager", "native"])
def test_a_stride_that_grows_beyond_one_that_does_not(options: dict[str, Any]) -> None:
    """Then the dimensions lie in another order in memory, and so do results."""
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y.t().contiguous().mul_(3)            # y itself, or a copy

    def part(step: int) -> torch.Tensor:
        return torch.arange(2000.).unfold(0, 700, 100)[:3, ::step][:, :2].t()
    with TRIAL_CALLS.set(0):
        check(lambda: program, *(call(part(step)) for step in (5, 6, 300, 7, 300, 300, 400, 8)), captures=None, **options)


def test_the_last_ones_of_few_and_of_many() -> None:
    """A slice that takes all there is, where that is less: one capture is for both, once fewer were met."""
    def program(x: torch.Tensor) -> Any:
        y = torch.cat([x, x[:, :1]], 1)[:, -7:]
        return y * 2, y.shape
    few, many = (3, 4, 6, 9, 5, 12, 7, 2, 8, 6, 1), (8, 12, 9, 6, 5, 12, 7, 2, 8, 6, 1)
    with TRIAL_CALLS.set(0):
        for lengths, captures in ((few, 2), ((3, *many), 2), (many, 3)):
            for options in ({}, NATIVE):
                check(lambda: program, *(call(torch.randn(2, n, 4)) for n in lengths), captures=captures, **options)


def test_rows_of_one_batch_are_as_those_of_several() -> None:
    """What is laid out as it is wanted, or turned, is that with a single row as well."""
    class Heads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, c = x.shape
            q = x.view(b, t, 2, c // 2).transpose(1, 2)
            both = [q.transpose(1, 2).contiguous().view(b, t, c), q.contiguous().view(b, t, c)]
            return torch.cat(both, 1) * x.contiguous().mean()
    with TRIAL_CALLS.set(0):
        for options in ({}, NATIVE):
            stats = check(Heads, *(call(torch.randn(b, t, 8)) for b, t in ((2, 4), (3, 5), (1, 6), (1, 7), (4, 3), (1, 6), (1, 2))),
                          captures=None, **options)
            assert stats.captures == 2, stats.misses


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.size(0), x.size(1), 2, -1).transpose(1, 2)


# What is asked to be contiguous, and how many captures it takes to hold for one row, the first call's, and for several.
OF_ONE_ROW: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "as it is": (lambda x: x, 1), "made": (lambda x: x.relu(), 1), "a product": (lambda x: x @ x.mT, 1),
    "turned and back": (lambda x: heads(x * 2).transpose(1, 2), 1),
    "attention": (lambda x: F.scaled_dot_product_attention(*[heads(x)] * 3).transpose(1, 2), 1),
    "of a part": (lambda x: x[..., :4] * 2, 1),
    "channels first": (lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0).relu(), 1),
    "of what is expanded": (lambda x: x[:1].mean(0, True).expand(x.size(0), -1, -1) + 1, 1),
    "attention, in its own shape": (lambda x: F.scaled_dot_product_attention(*[q := heads(x)] * 3).reshape(
        x.size(0), -1, x.size(1), q.size(-1)).transpose(1, 2), 1),
    "attention to parts": (lambda x: F.scaled_dot_product_attention(
        *map(heads, torch.cat([x, x, x], 2).split(x.size(2), 2))).transpose(1, 2), 1),
    "in its own shape, turned": (lambda x: heads(x * 2).view(x.size(0), 2, x.size(1), -1).movedim(2, 1), 1),
    "turned by name": (lambda x: (x * 2).mT.reshape(x.size(0), x.size(2), -1).mT, 1),
    # What lies otherwise, or may, for several rows:
    "expanded": (lambda x: x[:1].mean(0, True).expand(x.size(0), -1, -1), 2), "a part": (lambda x: x[:, :2], 2),
    "a part, viewed": (lambda x: x[:, 0][:, :4].view(x.size(0), 4), 2),
    "time first": (lambda x: (x.reshape(x.size(1), x.size(0), -1) + 0).transpose(0, 1), 2),
    "time first, in its own shape": (
        lambda x: (x.reshape(x.size(1), x.size(0), -1) + 0).transpose(0, 1).reshape(x.shape), 2),
    "channels last, in its own shape": (lambda x: F.relu((x[:, None] * 2).contiguous(memory_format=torch.channels_last).expand(
        -1, 2, -1, -1).contiguous(memory_format=torch.channels_last).view(x.size(0), 2, x.size(1), 8)), 2),
    "made of time first": (lambda x: (x.reshape(x.size(1), x.size(0), -1) + 0).transpose(0, 1).relu(), 2),
    "gathered time first": (lambda x: x.transpose(0, 1)[torch.arange(x.size(1))].transpose(0, 1), 2)}


# What is a copy for some sizes, and a view for others, and so contiguous or not.
COPIED_OR_NOT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda x: x.permute(2, 1, 0).flatten(1), "flat, then more": lambda x: x.permute(2, 1, 0).flatten(1).relu(),
    "of a part": lambda x: x[:, :2].reshape(x.size(0), -1), "flattened part": lambda x: x[:, :1, :1].flatten(),
    "other shape": lambda x: x.permute(2, 1, 0).reshape(x.size(1), x.size(2), -1),
    "twice": lambda x: x.permute(2, 1, 0).flatten(1).reshape(-1, x.size(2)), "ravel": lambda x: x[:, :1, :1].ravel()}


@pytest.mark.parametrize("made", COPIED_OR_NOT)
def test_copied_or_viewed(made: str) -> None:
    make = COPIED_OR_NOT[made]

    def program(x: torch.Tensor) -> Any:
        y = make(x)
        z = y.contiguous()
        return y, z is y, y.is_contiguous(), z
    sizes = [(4, 3, 5), (5, 4, 2), (2, 5, 4), (2, 4, 4), (4, 1, 3), (3, 3, 1), (1, 4, 2), (2, 2, 1), (3, 3, 3), (1, 1, 4)]
    for order in (sizes, sizes[::-1], sizes[4:] + sizes[:4]):
        check(lambda: program, *(call(torch.randn(each)) for each in order), captures=None, dynamic=True, recompile_limit=20)


@pytest.mark.parametrize("numbers", [(3, 0, 3, 0, 1), (0, 3, 0, 1), (3, 4, 0, 2)])
def test_a_number_that_may_say_that_a_size_stays(numbers: tuple[int, ...]) -> None:
    steps = [call(torch.randn(3, 1), n) for n in numbers]
    check(lambda: lambda x, n: x.expand(-1, n - 1) + 1, *steps, captures=None, fullgraph=False, recompile_limit=20)


def test_a_view_that_exists_for_one_row_alone() -> None:
    def program(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(len(x))
        return x.transpose(0, 1).view(-1).add_(1)
    steps = [call(torch.randn(n, 1, 5)[..., :3] if part else torch.randn(n, m, 3), []) for n, m, part in (
        (1, 4, 0), (1, 2, 0), (3, 2, 0), (3, 1, 1), (1, 5, 0))]
    check(lambda: program, *steps, captures=None, fullgraph=False, dynamic=True, recompile_limit=20)


def test_a_view_that_exists_for_equal_sizes_alone() -> None:
    """Where it does not exist, it raises, and the effects before it are made."""
    def program(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(len(x))
        turned = x.view(x.mT.shape)
        x.add_(1)
        return turned
    steps = [call(torch.randn(a, c, b).mT, []) for a, b, c in ((5, 8, 8), (1, 8, 3), (2, 4, 4), (3, 1, 4), (2, 3, 2), (1, 6, 6))]
    check(lambda: program, *steps, captures=None, fullgraph=False, dynamic=True, recompile_limit=20)


def test_what_a_size_is_of_no_elements_is_not_known() -> None:
    def program(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(len(x))
        rows = x.reshape(x.size(0), -1)
        x.add_(1)                   # so that a hit that raises cannot run again
        return rows
    steps = [call(torch.randn(n, 1, m), []) for n, m in ((4, 6), (5, 2), (0, 3), (0, 0), (5, 0), (2, 3))]
    check(lambda: program, *steps, captures=None, fullgraph=False, dynamic=True, recompile_limit=20)


@pytest.mark.parametrize("made", OF_ONE_ROW)
def test_one_row_comes_first(made: str) -> None:
    """Whether something is contiguous, and so is that itself or a copy, may be so for one row alone."""
    make, captures = OF_ONE_ROW[made]

    def program(x: torch.Tensor) -> Any:
        y = make(x)
        z = y.contiguous()
        same = z is y
        z += 1
        return y, z, same
    sizes = (1, 4), (2, 4), (1, 5), (3, 6), (1, 1), (2, 1), (2, 5)
    for first in (sizes[:4], sizes):
        steps = [call(torch.randn(b, t, 8)) for b, t in first]
        stats = check(lambda: program, *steps, captures=None, dynamic=True, recompile_limit=20)
        assert stats.captures == captures or first is sizes, stats.misses
