"""`in`, `index` and `count` among sizes that change: guards say which comparison decided, and no more."""
from __future__ import annotations

import operator

import pytest
import torch

from tests.helpers import call, check

pytestmark = pytest.mark.usefixtures("open_sizes")


def place(sequence, x):
    """Where it is, or what Python says."""
    try:
        return sequence.index(x)
    except ValueError as error:
        return str(error)


PROGRAMS = {
    "a number among sizes": lambda x: x + (-1 in [x.shape[0], x.shape[1] - 2]),
    "a number in a shape": lambda x: x + (3 in x.shape),
    "a float": lambda x: x + (3.0 in x.shape) + x.shape.count(True),
    "none": lambda x: x + (None in (x.shape[0], None)),
    "a size among numbers": lambda x: x + (x.shape[0] in (2, 3, 5, 7)),
    "a size among sizes": lambda x: x + (x.shape[0] in [x.shape[1], x.shape[1] // 2]),
    "not in": lambda x: x + 1 if x.shape[0] not in (4, 6) else x - 1,
    "index": lambda x: (x * 2, place(list(x.shape), 5)),
    "index of a size": lambda x: (x * 2, place(x.shape, x.shape[1])),
    "index behind a bound": lambda x: (x * 2, [x.shape[1], 4, 3].index(3, 1)),
    "count": lambda x: (x * 2, [x.shape[0], 3, x.shape[1], 3].count(3), x.shape.count(x.shape[0])),
    "of operator": lambda x: x + operator.countOf(x.shape, 4) + operator.contains([x.shape[0]], 4),
    "no size": lambda x: x.reshape(-1, *x.shape[1:]) + (-1 in [4, -1]),
    "a list that is changed": lambda x: (lambda sizes: (sizes.append(x.shape[1]), x + (4 in sizes))[1])([x.shape[0]]),
}
SIZES = [(2, 8), (3, 9), (5, 10), (7, 4), (4, 4), (6, 12), (3, 3), (1, 5), (0, 7), (5, 5), (8, 16), (9, 11), (13, 17)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_eager_mode(name) -> None:
    calls = [call(torch.ones(size)) for size in SIZES]
    check(lambda: PROGRAMS[name], *calls, *reversed(calls), captures=None, fullgraph=False, recompile_limit=60)


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"index behind a bound", "index", "a float"}))
def test_sizes_that_decide_alike_share_a_capture(name) -> None:
    sizes = [(10, 30), (11, 31), (14, 33), (20, 50), (22, 61)]
    stats = check(lambda: PROGRAMS[name], *(call(torch.ones(size)) for size in sizes), captures=None)
    assert stats.captures <= 2, stats.misses
