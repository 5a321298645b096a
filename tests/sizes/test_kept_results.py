"""What an `lru_cache` keeps for sizes that vary is one object with what else the program has of it, on each hit anew."""
from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import capture
from capture.interp.function_models import computed_caches

pytestmark = pytest.mark.usefixtures("open_sizes")
Program = Callable[[torch.Tensor], Any]


def programs() -> tuple[SimpleNamespace, dict[str, Program]]:
    """Programs with caches of their own, and what they read from outside."""
    pair = functools.lru_cache(None)(lambda n: [n, n * 2])
    pairs = functools.lru_cache(8)(lambda n: {"a": (n, 2), "b": (n, (n, 3))})
    rows = functools.lru_cache(None)(lambda n: [(n, 2), (n, (n, 3))])
    world = SimpleNamespace(pair=pair, pairs=pairs, held=pair(3), listed=[pair(3)], other=None)

    def changed_behind(x):
        a = pair(x.shape[0])
        world.other[0] = 7
        return x.sum() * a[0], a

    def changed_before(x):
        world.other[0] = 7
        a = pair(x.shape[0])
        return x.sum() * a[0], a

    def lengthened(x):
        a = pair(x.shape[0])
        world.other.append(7)
        return len(a), a[:], a

    return world, {
        "kept for a constant": lambda x: (pair(x.shape[0]), pair(3)),
        "a constant first": lambda x: (pair(3), pair(x.shape[0])),
        "held outside": lambda x: ((a := pair(x.shape[0])), world.held, a is world.held),
        "compared": lambda x: ((a := pair(x.shape[0])) == world.held, len(world.held), world.held[0], world.listed[0]),
        "outside first": lambda x: ((held := world.held), (a := pair(x.shape[0])), a is held),
        "changed behind": changed_behind, "changed before": changed_before, "lengthened": lengthened,
        "a tuple in a dict": lambda x: pairs(x.shape[0])["a"],
        "a tuple further in": lambda x: (pairs(x.shape[0])["b"][1], rows(x.shape[0])[1][1], rows(x.shape[0])[0]),
        "numbers": lambda x: len({id(pair(x.shape[0])), id(pair(x.shape[1]))}),
        "searched numbers": lambda x: (id(pair(x.shape[0])) in (id(pair(x.shape[1])),))}


SHAPES = (2, 3), (3, 4), (6, 7), (7, 7), (4, 4), (5, 5), (3, 3), (2, 2)


@pytest.mark.parametrize("name", programs()[1])
def test_equal_to_eager(name: str) -> None:
    (ours, compiled), (theirs, plain) = programs(), programs()
    function = capture.compile(compiled[name], backend="eager")
    for rows, columns in SHAPES:
        found = []
        for world, program in (ours, function), (theirs, plain[name]):
            world.other = world.pair(rows) if rows in (4, 5) else [0, 0]        # only then what the cache keeps
            found.append((repr(program(torch.ones(rows, columns))), world.pair(rows), world.pair.cache_info(),
                          world.pairs.cache_info()))
        assert found[0] == found[1]


def test_a_function_that_took_long_is_not_run_again_to_see(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []
    monkeypatch.setattr(computed_caches, "LONGEST", -1.0)
    monkeypatch.setattr(computed_caches, "only_computes", lambda function, *given: judged.append(function) or True)
    cached = functools.lru_cache(None)(lambda n: n * 2)
    compiled = capture.compile(lambda x: x * cached(x.shape[0]), backend="eager")
    for rows in (2, 3, 4, 5, 6):
        assert torch.equal(compiled(torch.ones(rows, 2)), torch.ones(rows, 2) * cached(rows))
    assert len(judged) == 1
