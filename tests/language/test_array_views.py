"""Views of arrays that outlive the call, and functions of numpy that are made of ufuncs."""
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import capture
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
A = np.arange(12, dtype=np.float32).reshape(3, 4)

VIEWS = {
    "linspace": lambda: np.linspace(0, 1, 5), "eye": lambda: np.eye(3, k=1), "reshape": lambda: np.arange(6).reshape(2, 3).T,
    "split": lambda: np.split(np.arange(4), 2), "ix": lambda: np.ix_([0, 1], [1]),
    "broadcast": lambda: np.broadcast_to([1, 2], (2, 2)),
    "nonzero": lambda: np.nonzero([1, 0, 2]), "backwards": lambda: np.arange(5)[::-2], "field": lambda: np.zeros(
        3, dtype=[("a", "f4"), ("b", "i4")])["b"], "nothing": lambda: np.arange(3)[3:], "one": lambda: np.arange(3)[1:2],
    "column major": lambda: np.asfortranarray(np.ones((2, 3)))[:, 1:],
    "whole and part": lambda: (lambda a: (a, a[1:], a.T))(np.ones((2, 3))),
    "bytes": lambda: np.arange(3, dtype=np.int32).view(np.uint8), "several": lambda: [*map(np.atleast_2d, (np.arange(3), 1.0))]}
COMPUTED = {
    "outer": lambda: np.add.outer(np.arange(3), [1, 2]), "reduce": lambda: np.add.reduce([1.0, 2.0]), "accumulate": lambda:
    np.maximum.accumulate([1.0, 3.0, 2.0]), "reduceat": lambda: np.add.reduceat(np.arange(6), [0, 3]), "tri": lambda: np.tri(3),
    "tril": lambda: np.tril_indices(3), "iinfo": lambda: (np.iinfo(np.int32).max, np.finfo(np.float32).eps),
    "dtype": lambda: (np.dtype("float32").itemsize, np.dtype(np.int64).kind, np.float32(1).dtype.name)}


@pytest.mark.parametrize("make_array", [*VIEWS.values(), *COMPUTED.values()], ids=[*VIEWS, *COMPUTED])
def test_arrays_that_are_returned(make_array) -> None:
    check(lambda: lambda x: (x + 1, make_array()), *[call(X)] * 3)


def arrays_in(found):
    return [array for item in found for array in arrays_in(item)] if isinstance(found, (list, tuple)) else [found]


@pytest.mark.parametrize("make_array", VIEWS.values(), ids=VIEWS)
def test_views_share_what_they_share_in_eager_mode(make_array) -> None:
    def relations(found):
        arrays = arrays_in(found)
        return [(a.base is not None, a.flags.writeable, a.strides, [np.shares_memory(a, b) for b in arrays], [
            a.base is not None and a.base is b.base or a.base is b for b in arrays]) for a in arrays]
    compiled = capture.compile(lambda x: (x + 1, make_array()), fullgraph=True, backend="eager")
    for _ in range(3):
        found = compiled(X)[1]
        assert relations(found) == relations(make_array())
        if arrays_in(found)[0].flags.writeable:
            arrays_in(found)[0].fill(7)                     # which no later call sees


def test_views_of_an_array_from_outside() -> None:
    def make():
        state = SimpleNamespace(array=A.copy(), kept=None)

        def program(x):
            state.kept = state.array[:, 1:]
            return x * 2, state.array.T, state.array[1], state.array.reshape(-1)[::2]
        return program, state

    def write(state):
        state.kept[0, 0] = 100.0

    def exchange(state):
        state.array = A + 1
    check(make, call(X), call(X), write, call(X), call(X), exchange, call(X), call(X), captures=None)
    program, state = make()
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        _, transposed, row, _ = compiled(X)
        assert transposed.base is row.base is state.kept.base is state.array


def test_functions_of_python_that_numpy_calls_are_called() -> None:
    def make():
        seen = []

        def called(item):
            seen.append(item)
            return item + 1
        function = np.frompyfunc(called, 1, 1)
        return (lambda x: (x + 1, int(function(np.array(3))))), seen
    check(make, *[call(X)] * 3, captures=None, fullgraph=False, breaks=None)
