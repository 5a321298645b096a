"""Sizes that are known to vary before any call has shown it: tensors that grow in their place, and what is captured in another
way once sizes vary."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture
from tests.helpers import call, call_with, check

NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}


class Cache:
    def __init__(self) -> None:
        self.rows: torch.Tensor | None = None
        self.named: dict[str, torch.Tensor] = {}
        self.listed: list[torch.Tensor] = []


def in_an_attribute(cache: Cache, x: torch.Tensor) -> torch.Tensor:
    if cache.rows is None:
        cache.rows = torch.zeros(0)
    cache.rows = torch.cat([cache.rows, x], dim=-2)
    return cache.rows * 2


def in_a_dict(cache: Cache, x: torch.Tensor) -> torch.Tensor:
    if "rows" not in cache.named:
        cache.named["rows"] = x[:, :0]
    cache.named["rows"] = torch.cat((x, cache.named["rows"]), 1)
    return cache.named["rows"].sum(1)


def in_a_list(cache: Cache, x: torch.Tensor) -> torch.Tensor:
    if not cache.listed:
        cache.listed.append(x)
    cache.listed[0] = torch.concat([cache.listed[0], x], 1)
    return cache.listed[0].mean(1)


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["graph", "kernels"])
@pytest.mark.parametrize("program", [in_an_attribute, in_a_dict, in_a_list])
def test_what_is_joined_to_what_its_place_held(program: Callable[..., Any], options: dict[str, Any]) -> None:
    """The first call makes it, so that it differs from all others in more than a size."""
    def make() -> Any:
        return program, Cache()
    x = torch.randn(2, 1, 4)
    stats = check(make, *[call_with(lambda cache: (cache, x))] * 9, captures=None, **options)
    assert stats.captures == 2 + (program is in_a_list), stats.misses       # whose first item the first call has appended


def test_what_is_joined_to_something_else_may_stay_as_large() -> None:
    def program(cache: Cache, x: torch.Tensor) -> torch.Tensor:
        cache.rows = torch.cat([x, x * 2])
        return cache.rows + 1
    cache = Cache()
    compiled = capture.compile(program, backend="eager")
    for _ in range(3):
        compiled(cache, torch.ones(3, 2))
    assert "s0" not in capture.explain(compiled) and capture.stats(compiled).captures == 1


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["graph", "kernels"])
def test_what_is_captured_in_another_way_once_sizes_vary(options: dict[str, Any]) -> None:
    """It is captured once, for all sizes, also those that were always the same until then."""
    def program(x: torch.Tensor, y: torch.Tensor, added: bool) -> Any:
        return (x + y, y.sum(1)) if added else (x * y).relu()
    sizes = [(3, 4, False), (5, 4, False), (5, 4, True), (7, 4, True), (6, 9, True), (2, 8, True)]
    check(lambda: program, *(call(torch.randn(n, m), torch.randn(n, m), added) for n, m, added in sizes), captures=3, **options)


@pytest.mark.parametrize("sizes", [[(3, 4, False), (5, 4, True), (7, 6, True), (2, 9, True)],
                                   [(5, 4, True), (3, 4, False), (2, 6, False), (7, 9, False)]])
def test_what_differs_in_more_than_the_size_that_is_asked_first(sizes: list[tuple[int, int, bool]]) -> None:
    def program(x: torch.Tensor, options: dict[str, bool]) -> Any:
        doubled = x * 2 if len(x) > 1 else x
        return doubled.sum(1) if options["added"] else doubled.relu()
    check(lambda: program, *(call(torch.randn(n, m), {"added": added}) for n, m, added in sizes), captures=2)


def test_where_no_size_varies_none_is_taken_to() -> None:
    def program(x: torch.Tensor, added: bool) -> torch.Tensor:
        return x + 1 if added else x * 2
    compiled = capture.compile(program, backend="eager")
    for added in (False, True, False, True):
        compiled(torch.ones(3, 4), added)
    assert "s0" not in capture.explain(compiled) and capture.stats(compiled).captures == 2


def test_code_takes_sizes_that_guards_fix_as_constants() -> None:
    """Of a tensor all of whose sizes may vary, those by which the program goes are known to the backend."""
    given = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        given.append([node.meta["properties"] for node in gm.graph.nodes if node.op == "placeholder"])
        return gm.forward
    backend.takes_sizes = True  # type: ignore[attr-defined]
    layer = torch.nn.Linear(4, 6)
    compiled = capture.compile(lambda x: layer(x), backend=backend, dynamic=True)
    for n in (3, 5, 5):
        compiled(torch.randn(n, 2, 4))
    (x, *_), = given
    assert tuple(x.shape) == (-1, -1, 4) and tuple(x.stride) == (-2, 4, 1)
    assert x.matches(torch.zeros(7, 3, 4)) and not x.matches(torch.zeros(7, 3, 5))


def test_what_holds_for_more_sizes_takes_the_place_of_what_does_not() -> None:
    """Where there can be no further entry."""
    def program(x: torch.Tensor, way: int) -> torch.Tensor:
        return x * 2 if way == 0 else x + 1 if way == 1 else x - 1
    compiled = capture.compile(program, backend="eager", recompile_limit=3)
    for n in (3, 4, 5, 6):
        hits = capture.stats(compiled).hits
        for way in range(3):
            x = torch.randn(n, 2)
            assert torch.equal(compiled(x, way), program(x, way))
    stats = capture.stats(compiled)
    assert stats.hits - hits == 3 and stats.captures == 5, stats.misses


def test_what_never_ends_to_differ_is_not_captured_for_ever() -> None:
    layers = [torch.nn.Linear(width, 1) for width in range(2, 40)]
    compiled = capture.compile(lambda layer, x: layer(x), backend="eager", recompile_limit=3)
    for layer in layers * 2:
        x = torch.randn(2, layer.in_features)
        assert torch.equal(compiled(layer, x), layer(x))
    assert capture.stats(compiled).captures <= 6
