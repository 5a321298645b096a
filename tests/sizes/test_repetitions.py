"""Lists that repeat items as often as a number says that changes: `torch.stack([x] * n)` is captured once for all n."""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from capture.config import TRIAL_CALLS
from tests.helpers import call, check

NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}
COUNTS = (3, 1, 5, 2, 7, 4, 11, 6, 13, 1, 8, 31)
Program = Callable[[torch.Tensor, int], Any]
JOINED: dict[str, Program] = {
    "stacked": lambda x, n: torch.stack([x] * n).sum(0), "stacked last": lambda x, n: torch.stack([x, x * 2] * n, dim=-1),
    "joined": lambda x, n: torch.cat([x] * n), "joined, several": lambda x, n: torch.cat([x * 2, x[:, :1]] * n, 1),
    "joined last": lambda x, n: torch.cat(n * [x.sin()], dim=-1), "concatenated": lambda x, n: torch.concat([x] * n, -2),
    "channels last": lambda x, n: torch.cat([x.contiguous(memory_format=torch.channels_last) * 2] * n, 1),
    "turned": lambda x, n: torch.stack([x[0].permute(1, 2, 0)] * n).relu(),
    "as often as rows": lambda x, n: torch.stack([x.mean(0)] * x.size(0)) + x,
    "as often as both": lambda x, n: torch.cat([x[:1]] * (x.size(0) * n + 1)),
    "twice": lambda x, n: torch.cat([torch.cat([x] * n)] * n, 1),
    "kept": lambda x, n: (items := [x * 2] * n, torch.cat(items))}
ASKED: dict[str, Program] = {
    "length": lambda x, n: x * len([x] * n), "returned": lambda x, n: ([x * 2] * n, x),
    "nothing in it": lambda x, n: ([None] * n, x),
    "stored": lambda x, n: {"items": [n, x.sum()] * n}, "of numbers": lambda x, n: torch.tensor([0.5, 2.0] * n) * 2,
    "of rows": lambda x, n: torch.tensor([[1, 2]] * n) + 1, "of labels": lambda x, n: torch.tensor([1] * x.size(0)).add(1),
    "by type": lambda x, n: torch.as_tensor([1] * n, dtype=torch.float64), "any": lambda x, n: x * 2 if [x] * n else x}
# Somebody looks at the items, or changes them: then how many there are is fixed, or the trace ends.
LOOKED_AT: dict[str, Program] = {
    "item": lambda x, n: ([x] * n)[0] + 1, "changed": lambda x, n: ((items := [x] * n).append(x * 2), torch.cat(items)),
    "by name": lambda x, n: torch.stack(tensors=[x] * n), "summed": lambda x, n: sum([x] * n),
    "text": lambda x, n: (str([1] * n), x),
    "looped over": lambda x, n: [y + 1 for y in [x] * n], "compared": lambda x, n: ([1] * n == [1, 1, 1], x + 1),
    "shape": lambda x, n: x.reshape([1] * n + [-1]), "more": lambda x, n: torch.cat([x] + [x * 2] * n), "of both": lambda x, n: (
        items := [x] * n, torch.cat(items), items.pop(), len(items)), "in it": lambda x, n: (2 in [1] * n, x * 2),
    "widths": lambda x, n: torch.nn.functional.pad(x, [1] * (n % 3 * 2))}


def image(n: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 12 * (n % 5 + 2)).view(-1, 3, 2, 2)


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["graph", "kernels"])
@pytest.mark.parametrize("name", JOINED)
def test_joined(name: str, options: dict[str, Any]) -> None:
    with TRIAL_CALLS.set(0):
        steps = [call(image(n).requires_grad_(), n) for n in COUNTS]
        stats = check(lambda: JOINED[name], *steps, captures=2, backward=True, **options)
    assert not options or stats.compiled and not stats.compile_errors


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["graph", "kernels"])
@pytest.mark.parametrize("name", ASKED)
def test_asked(name: str, options: dict[str, Any]) -> None:
    with TRIAL_CALLS.set(0):
        stats = check(lambda: ASKED[name], *(call(image(n), n) for n in COUNTS), captures=2, **options)
        assert not stats.compile_errors
        check(lambda: ASKED[name], *(call(image(n), n) for n in (2, 3, 0, -1, 4, 0, 2)), captures=None, fullgraph=False, **options)


@pytest.mark.parametrize("name", LOOKED_AT)
def test_looked_at(name: str) -> None:
    check(lambda: LOOKED_AT[name], *(call(image(n), n) for n in (3, 1, 5, 2, 0, 7, 3, 4, -1, 2)), captures=None, fullgraph=False)


def test_no_item_at_all() -> None:
    for name in ("stacked", "joined", "joined last"):
        counts = random.Random(name).choices((0, 1, 2, 3, 7), k=8)
        check(lambda name=name: JOINED[name], *(call(image(n), n) for n in (3, 2, *counts)), captures=None, fullgraph=False)


def test_a_list_that_lives_on_behind_a_break() -> None:
    import capture

    @capture.disable
    def outside() -> None:
        pass

    def program(x: torch.Tensor, n: int) -> Any:
        items = [x * 2] * n
        outside()
        return torch.cat(items), items
    check(lambda: program, *(call(image(n), n) for n in (3, 1, 5, 2, 4, 5, 3)), captures=None, fullgraph=False)
