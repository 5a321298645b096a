"""Dicts whose keys are made of sizes: what is kept for each shape is looked up on a hit, too."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers import call, check

NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}
SIZES = ((4, 5), (4, 7), (3, 5), (4, 5), (2, 2), (3, 5), (5, 4), (1, 3), (2, 2), (4, 7), (6, 8), (1, 3), (0, 3), (4, 5), (7, 2),
         (0, 3))


class Keeps(nn.Module):
    """Keeps something for each shape, under a key of some kind."""

    def __init__(self, key: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.key, self.kept, self.made = key, {}, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = self.key(x)
        if key not in self.kept:
            self.made += 1
            self.kept[key] = torch.arange(x.numel(), dtype=x.dtype).view(x.shape).cos()
        return x * self.kept[key]


class Counts(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = self.key(x)
        self.kept[key] = self.kept.get(key, 0) + 1
        return x * 2


class Tries(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            found = self.kept[self.key(x)]
        except KeyError:
            found = self.kept[self.key(x)] = x.size(0)
        return x + found


class Returns(Keeps):
    def forward(self, x: torch.Tensor) -> Any:
        return {self.key(x): x * 2, "of": self.key(x)}


KEYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda x: x.shape, "size": lambda x: x.size(), "tuple": lambda x: tuple(x.shape),
    "pair": lambda x: (x.size(0), x.size(1)), "one": lambda x: x.size(0) * 100 + x.size(1),
    "with text": lambda x: ("mask", *x.shape, None), "computed": lambda x: (x.size(0) * 2, x.numel()),
    "part": lambda x: x[None].shape[1:], "text": lambda x: f"{x.size(0)}x{x.size(1)}",
    "with type": lambda x: (*x.shape, x.dtype), "shape and type": lambda x: (x.shape, x.dtype, x.device, x.layout),
    "nested": lambda x: (x.size(0), (x.size(1), (2, torch.float64)))}


@pytest.mark.parametrize("cls", [Keeps, Counts, Tries, Returns])
@pytest.mark.parametrize("key", KEYS)
def test_keys(key: str, cls: type[Keeps]) -> None:
    stats = check(lambda: cls(KEYS[key]), *(call(torch.randn(size)) for size in SIZES), captures=None, fullgraph=False)
    if cls is not Tries:
        assert stats.captures <= 4 and not stats.breaks, (stats.captures, stats.misses)


@pytest.mark.parametrize("key", ["shape", "with text"])
def test_compiled(key: str) -> None:
    check(lambda: Keeps(KEYS[key]), *(call(torch.randn(size)) for size in SIZES), captures=None, fullgraph=False, **NATIVE)


def test_what_is_in_the_dict_is_changed_between_calls() -> None:
    steps: list[Any] = []
    for size in SIZES[:6]:
        steps += [call(torch.randn(size)), lambda module: module.kept.pop(next(iter(module.kept)), None), call(torch.randn(size)),
                  lambda module, size=size: module.kept.update({size: torch.ones(size)}), call(torch.randn(size))]
    steps += [lambda module: module.kept.update({(4.0, 5): 3.0, (4, True): 2.0}), call(torch.randn(4, 5)), call(torch.randn(4, 1))]
    check(lambda: Keeps(KEYS["shape"]), *steps, captures=None, fullgraph=False)


class Odd(tuple):
    """A key that says that it is any other."""

    __slots__ = ()
    asked = 0

    def __hash__(self) -> int:
        return hash((4, 7))

    def __eq__(self, other: object) -> bool:
        Odd.asked += 1
        return other == 3


def test_a_key_of_the_program_s_own_class_among_them() -> None:
    Odd.asked = 0
    steps: list[Any] = [call(torch.randn(size)) for size in SIZES[:5]]
    steps += [lambda module: module.kept.update({Odd((1,)): 5.0}), *(call(torch.randn(size)) for size in SIZES[:8])]
    check(lambda: Keeps(KEYS["shape"]), *steps, captures=None, fullgraph=False)


def test_tensors_of_other_types_and_shapes_are_told_apart() -> None:
    tensors = [torch.ones(n, 3, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.float32) for n in (4, 5, 6, 4, 7)]
    check(lambda: Keeps(KEYS["shape and type"]), *map(call, tensors), captures=None, fullgraph=False)


def test_a_key_of_another_type_is_put_among_them() -> None:
    """Equal keys of other types are found, and keys that hold what no guard hashes are not asked for."""
    steps: list[Any] = [call(torch.ones(n, 3)) for n in (4, 5, 6, 7)]
    steps += [lambda module: module.kept.update({(8.0, 3, torch.float32): 2.0, (9, 3, Odd((1,))): 5.0}),
              *(call(torch.ones(n, 3)) for n in (8, 9, 4, 10))]
    check(lambda: Keeps(KEYS["with type"]), *steps, captures=None, fullgraph=False)
