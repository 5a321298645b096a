"""Results lie in memory on a hit as in eager mode, also where torch's kernels for tensors without data lay them out otherwise."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import capture
from tests.backends.native.end_to_end.engine import AT_ONCE, no_trial, runs_compiled  # noqa: F401
from tests.backends.native.end_to_end.stride_programs import Case

Program = Callable[[Tensor], tuple[Any, ...]]
WEIGHT = torch.randn(4, 3, 3, 3)


def convolution(x: Tensor) -> tuple[Any, ...]:
    image = torch.cat([x[:3, :3].flatten()] * 6).view(2, 3, 3, 3).to(memory_format=torch.channels_last)
    y = F.conv2d(image.relu(), WEIGHT, stride=4, padding=1).relu()
    return y, y.contiguous(), y * 2


PROGRAMS: dict[str, Program] = {
    "product": lambda x: (x[:1].t() * 1.5, x[None].mT[:, :, :1] * 2),
    "foreach": lambda x: tuple(torch._foreach_add([x[:1].t(), x], 1)),
    "log_softmax": lambda x: (x[None].swapaxes(0, 1).log_softmax(0),),
    "inner result": lambda x: ((y := x[None].swapaxes(0, 1).log_softmax(0)), y.sin().sum(0), y * 2),
    "views of a result": lambda x: ((y := x[:1].t() * 1.5).view(-1), y.t(), y[1:], y.detach(), y.unsqueeze(0)),
    "saved result": lambda x: ((x[:1].t() * 1.5).exp(), (x[:1].t() * 2).tanh().t()),
    "written to": lambda x: ((y := x[:1].t() * 1.5).mul_(2), y + 1),
    "convolution": convolution,
}


def seen(results: tuple[Any, ...], x: Tensor) -> list[Any]:
    found: list[Any] = [(t.detach().clone(), t.shape, t.stride(), t._is_view(), t._version,
                         t._base is not None and t._base.stride()) for t in results]
    if any(t.requires_grad for t in results):
        found.append(torch.autograd.grad(sum((t * t).sum() for t in results), x)[0])
    return found


def check(program: Program, inputs: list[Tensor], **options: Any) -> Any:
    compiled = capture.compile(program, **AT_ONCE, **options)
    for x in inputs:
        for ours, theirs in zip(seen(compiled(x), x), seen(program(x), x), strict=True):
            if isinstance(ours, tuple):
                assert ours[1:] == theirs[1:]
                ours, theirs = ours[0], theirs[0]
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    return compiled


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_of_the_capture(name: str, requires_grad: bool) -> None:
    x = torch.randn(4, 5, requires_grad=requires_grad)
    assert runs_compiled(check(PROGRAMS[name], [x, x, x])) or (name == "foreach" and requires_grad)      # its nodes are not known


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "convolution"])
def test_all_sizes(name: str, requires_grad: bool) -> None:
    shapes = [(4, 5), (6, 7), (8, 3), (6, 7), (9, 9)]
    check(PROGRAMS[name], [torch.randn(shape, requires_grad=requires_grad) for shape in shapes], dynamic=True)


def rolled(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last).roll(1, 0)


def pooled(x: Tensor) -> Tensor:
    """As the pyramid of a segmentation head."""
    pixel = F.adaptive_avg_pool2d(x.to(memory_format=torch.channels_last), 1)
    return F.interpolate(F.batch_norm(pixel, torch.zeros(3), torch.ones(3)), size=(4, 5), mode="bilinear")


def partly_written() -> Tensor:
    """Torch traces graphs in which parts of tensors are written to."""
    made = torch.zeros(2, 3)
    made[:, 0].add_(1)
    return made


IMAGES: dict[str, Program] = {
    "traced by torch": lambda x: (partly_written(), rolled(x).tanh()),
    "traced by torch, and written to": lambda x: (rolled(x).softmax(1), partly_written()),
    "roll": lambda x: (rolled(x), rolled(x).permute(0, 2, 3, 1).view(-1)),
    "written to": lambda x: ((y := rolled(x)).mul_(2), y + 1),
    "a copy written to": lambda x: ((y := rolled(x)), y.reshape(-1).mul_(2), y + 1),
    "saved result": lambda x: ((y := rolled(x).exp()), y * y),
    "inner result": lambda x: ((y := rolled(x).exp()), y.sin().sum(0), y * 2),
    "views": lambda x: ((y := rolled(x)), y[:, 1:], y.permute(0, 2, 3, 1).flatten(), y.detach()),
    "complex": lambda x: (torch.complex(x, x * 2).to(memory_format=torch.channels_last).roll(1, 0).abs(),),
    "one pixel": lambda x: (pooled(x), pooled(x).relu_(), torch.cat([x, pooled(x)], 1)),
    "gradients of filters that are one pixel wide": lambda x: (
        F.interpolate(x[..., :1].contiguous(memory_format=torch.channels_last), size=(5, 6), mode="bicubic"),)}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", IMAGES)
def test_orders_of_dimensions(name: str, requires_grad: bool) -> None:
    images = [torch.rand(count, 3, 4, 5, requires_grad=requires_grad) for count in (2, 2, 2, 3, 4, 3)]
    assert runs_compiled(check(IMAGES[name], images[:3]))
    stats = capture.stats(check(IMAGES[name], images, dynamic=True))
    assert stats.compiled and not stats.compile_errors


def test_a_part_is_written_to_of_what_torch_would_trace_otherwise() -> None:
    """Whether a reshaped tensor is a view depends on its layout: the graph is not compiled."""
    compiled = check(lambda x: ((y := rolled(x))[:, 0].add_(1), y * 2), [torch.rand(2, 3, 4, 5)] * 3)
    assert "may be a view" in str(capture.stats(compiled).compile_errors)


FOUND = [
    Case(("channels last", "bicubic"), "views", (2, 4, 3, 1), (0, 2, 3, 1), requires_grad=True),
    Case(("linear", "pad", "per channel"), "channels behind", (2, 1, 3, 4), (0, 2, 3, 1), requires_grad=True),
    Case(("add", "where", "clone", "pool to two"), "saved", (2, 4, 1, 3), (2, 0, 3, 1)),
    Case(("part", "bicubic", "beside itself"), "itself", (2, 1, 3, 4), (0, 2, 3, 1), requires_grad=True),
    Case(("largest of neighbours",), "views", (2, 4, 1), (2, 1, 0)),
    Case(("largest of neighbours",), "itself", (1, 1, 3), (0, 2, 1), varies=True),
    Case(("largest of neighbours",), "written to", (2, 3, 5), (0, 1, 2), requires_grad=True),
    Case(("sorted",), "channels behind", (1, 1, 2, 3, 3), (0, 2, 3, 4, 1)),
    Case(("contiguous", "contiguous", "clone", "flat"), "written to", (2, 4, 1, 1), (0, 2, 3, 1), varies=True)]


@pytest.mark.parametrize("case", [*FOUND, *map(Case.drawn, range(12))], ids=lambda case: ", ".join((*case.steps, case.end)))
def test_chains(case: Case) -> None:
    assert case.difference() is None
