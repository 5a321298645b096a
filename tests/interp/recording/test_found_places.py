"""Places that an operation finds along a dimension are in range there, whatever the tensors hold: looking them up cannot raise."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import capture
from tests.helpers import call, check

Program = Callable[[Tensor, Tensor], Any]
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}}
IN_RANGE: dict[str, Program] = {        # x is of floats, [6, 4], i of integers, [6]
    "argmax": lambda x, i: F.one_hot(x.argmax(-1), 4), "argmin": lambda x, i: x[torch.argmin(x, dim=0)],
    "of all": lambda x, i: x.view(-1)[x.argmax()], "argsort": lambda x, i: x[x[:, 0].argsort(stable=True)],
    "sort": lambda x, i: x[x.sort(0, descending=True)[1]], "sort, named": lambda x, i: x[:, torch.sort(x).indices[0]],
    "topk": lambda x, i: x.gather(1, x.topk(2).indices), "topk along": lambda x, i: x[x.topk(3, 0)[1][:, 0]],
    "kthvalue": lambda x, i: x[:, x.kthvalue(2).indices], "max": lambda x, i: x[:, x.max(-1).indices],
    "min": lambda x, i: x[torch.min(x, dim=0)[1]], "mode": lambda x, i: x[:, x.mode()[1]],
    "median": lambda x, i: x[x.median(0).indices], "cummax": lambda x, i: x[x.cummax(0)[1].view(-1)],
    "multinomial": lambda x, i: x[:, x.abs().multinomial(2)[0]], "randperm": lambda x, i: x[torch.randperm(6)],
    "randint": lambda x, i: x.index_select(0, torch.randint(0, 6, (3,))), "randint, below": lambda x, i: x[torch.randint(5, (3,))],
    "clamp": lambda x, i: F.embedding(i.clamp(0, 5), x), "clip, named": lambda x, i: x[i.clip(min=1, max=3)],
    "remainder": lambda x, i: x[i % 6], "comparison": lambda x, i: F.embedding((i > 2).long(), x),
    "truths": lambda x, i: x[torch.logical_and(i > 2, i < 5).to(torch.int64)], "moved": lambda x, i: x[x.argsort(0).t()[1].flip(0)],
    "padded": lambda x, i: x[F.pad(x.argmax(0), (1, 1), value=5)], "fewer": lambda x, i: x[x.argmax(1)],
    "added to": lambda x, i: x.index_add(0, x[:, 0].argsort(), x), "copied": lambda x, i: x.index_copy(0, x[:, 0].argsort(), x),
    "scattered": lambda x, i: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0)}
OUT_OF_RANGE: dict[str, Program] = {
    "more": lambda x, i: x[:, x.argmax(0)], "of all": lambda x, i: x[x.argmax()], "classes": lambda x, i: F.one_hot(x.argmax(0), 4),
    "values": lambda x, i: x[i.sort().values], "maxima": lambda x, i: x[i.max(dim=0, keepdim=True).values],
    "the larger": lambda x, i: x[torch.max(i, i - 1)], "written to": lambda x, i: x[x.argmax(0).add_(i[0])],
    "a part written to": lambda x, i: x[store(x.argmax(0), i[0])], "a view": lambda x, i: x[through_a_view(x.argmax(0), i[0])],
    "out": lambda x, i: x[torch.argmax(x, 0, out=torch.empty(0, dtype=torch.int64)) + i[0]],
    "sum": lambda x, i: x[x.argmax(0) + i[0]], "truths as other numbers": lambda x, i: x[torch.cat([i > 1] * 4).view(torch.int64)],
    "a divisor that wraps around": lambda x, i: F.embedding((i.to(torch.int8) % 200).long(), torch.cat([x] * 99)),
    "clamp": lambda x, i: x[i.clamp(0, 6)], "half a clamp": lambda x, i: x[i.clamp(max=5)], "below": lambda x, i: x[i.clamp(-7, 5)],
    "remainder": lambda x, i: x[i % 7], "of what": lambda x, i: x[7 % (i + 1)],
    "randint": lambda x, i: x[torch.randint(0, 9, (3,))],
    "negative": lambda x, i: x[torch.randint(-9, 3, (3,))], "padded": lambda x, i: x[F.pad(x.argmax(0), (1, 1), value=6)],
    "filled": lambda x, i: x[x.argmax(0).masked_fill(x[0] > 5, 9)], "truths": lambda x, i: x[:1][(i > 2).long()]}


def store(places: Tensor, place: Tensor) -> Tensor:
    places[1:2] = place
    return places


def through_a_view(places: Tensor, place: Tensor) -> Tensor:
    places.view(-1)[:1].add_(place)
    return places


def lookups_that_fail(program: Program) -> list[str]:
    found = list[str]()

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        found.extend(node.name for node in gm.graph.nodes if node.meta.get("fails"))
        return gm
    x, i = torch.arange(24.0).view(6, 4).sin(), torch.arange(6) % 3
    compiled = capture.compile(program, backend=backend, fullgraph=True)
    try:
        compiled(x, i)
    except IndexError:
        return ["raised"]
    return found


@pytest.mark.parametrize("name", IN_RANGE)
def test_they_do_not_fail(name: str) -> None:
    assert not [found for found in lookups_that_fail(IN_RANGE[name]) if not found.startswith("multinomial")]


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_others_may(name: str) -> None:
    assert lookups_that_fail(OUT_OF_RANGE[name])


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["eager", "native"])
@pytest.mark.parametrize("name", ["written to", "a part written to", "a view", "sum", "clamp", "remainder", "filled", "more"])
def test_others_raise_as_in_eager_mode(name: str, options: dict[str, Any]) -> None:
    x, i = torch.arange(24.0).view(6, 4).sin(), torch.arange(6) % 3
    steps = [call(x, i), call(x, i), call(x * 9, i + 9), call(x.flip(0), i + 6), call(x, i)]
    check(lambda: OUT_OF_RANGE[name], *steps, captures=None, fullgraph=False, **options)


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["eager", "native"])
def test_of_sizes_that_vary(options: dict[str, Any]) -> None:
    """Where the table has as many rows as the tensor that they were found in."""
    def program(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        order = x[:, 0].argsort(stable=True)
        return x[order], table[order]

    sizes = (4, 4), (6, 6), (7, 7), (5, 6), (9, 9), (9, 8), (5, 5)
    steps = [call(torch.arange(4.0 * rows).view(rows, 4).sin(), torch.arange(float(others))) for rows, others in sizes]
    check(lambda: program, *steps, captures=None, fullgraph=False, **options)
