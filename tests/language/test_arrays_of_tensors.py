"""What numpy's functions make of tensors that they are given: `np.array(x)`, `np.asarray(x)`, `np.stack([x, y])`, …"""
from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import capture
from tests.helpers import call, check

BACKENDS = {"eager": {}, "native": {"backend": "native", "options": {"background": False}}}
X = torch.arange(6.0).view(2, 3)

ARRAYS = {
    "array": lambda x: np.array(x), "array of a result": lambda x: np.array(x * 2), "sum": lambda x: np.array(x * 2).sum(),
    "type": lambda x: np.array(x, np.float64), "named type": lambda x: np.array(x * 2, dtype="int32"),
    "complex": lambda x: np.array(x, dtype=complex), "text": lambda x: np.array(x, dtype="U5"),
    "no copy needed": lambda x: np.array(x, copy=None), "dimensions": lambda x: np.array(x, ndmin=3),
    "order": lambda x: np.array(x, order="F"), "subclass": lambda x: np.array(x, subok=True),
    "strides": lambda x: np.array(x.t()), "expanded": lambda x: np.array(x[0].expand(4, 3)), "slice": lambda x: np.array(x[:, ::2]),
    "one element": lambda x: np.array(x.sum()), "empty": lambda x: np.array(x[:0]), "truths": lambda x: np.array(x > 2),
    "parameter": lambda x: np.array(torch.nn.Parameter(x, requires_grad=False)),
    "as array": lambda x: (np.asarray(x), np.asarray(x * 2, order="F"), np.asarray(x, np.float64)),
    "as a copy": lambda x: np.asarray(x, copy=True), "as any array": lambda x: np.asanyarray(x),
    "contiguous": lambda x: (np.ascontiguousarray(x), np.ascontiguousarray(x.t()), np.asfortranarray(x)),
    "contiguous number": lambda x: np.ascontiguousarray(x.sum()),
    "list": lambda x: np.array([x, x * 2]), "numbers": lambda x: np.array((x.sum(), x.max())),
    "list of a type": lambda x: np.asarray([x, x], dtype=np.int32), "lists": lambda x: np.concatenate([x, x * 2], axis=1),
    "stacks": lambda x: (np.stack([x, x], 1), np.vstack((x, x)), np.hstack([x, x]), np.dstack([x]), np.column_stack([x[0], x[1]])),
    "calculated with": lambda x: np.array(x).mean() + np.asarray(x).max(),
    "tensor": lambda x: torch.from_numpy(np.array(x * 2)) + x, "shared": lambda x: torch.from_numpy(np.asarray(x * 2)).add_(1),
    "copied": lambda x: torch.tensor(np.array(x)) + 1,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ARRAYS)
def test_in_one_graph(name, backend):
    def make():
        function = ARRAYS[name]
        return lambda x: function(x)
    check(make, call(X), call(-X), call(X + 0.5), **BACKENDS[backend])


REFUSED = {
    "gradient": lambda x: np.array(x.clone().requires_grad_()), "as array": lambda x: np.asarray(x.clone().requires_grad_()),
    "in a list": lambda x: np.array([x.clone().requires_grad_()]), "type": lambda x: np.array(x.bfloat16()),
    "conjugate": lambda x: np.array(torch.complex(x, x).conj()), "layout": lambda x: np.array(x.to_sparse()),
    "never a copy": lambda x: np.array(x, copy=False), "as never a copy": lambda x: np.asarray(x, copy=False),
    "unknown type": lambda x: np.array(x, "nope"), "unknown order": lambda x: np.array(x, order="Q"),
    "dimensions": lambda x: np.array(x, ndmin=1000), "unequal": lambda x: np.array([x, x[0]]),
    "no keyword": lambda x: np.ascontiguousarray(x, copy=True),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_eager_modes(name, caught, backend):
    def make():
        function = REFUSED[name]

        def f(x):
            if not caught:
                return function(x)
            try:
                return function(x)
            except (TypeError, ValueError, RuntimeError) as error:
                return type(error).__name__, str(error), x + 1
        return f
    check(make, call(X), call(X), call(X * 2), captures=None, fullgraph=False, **BACKENDS[backend])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", [
    lambda x, a: x.add_(1), lambda x, a: a.fill(7), lambda x, a: np.add(a, 1, out=a)], ids=["tensor", "array", "out"])
@pytest.mark.parametrize("made", [np.array, np.asarray, np.ascontiguousarray, lambda x: np.stack([x, x])],
                         ids=["array", "asarray", "contiguous", "stack"])
def test_what_shares_memory(made, write, backend):
    def make():
        def f(x):
            y = x * 2
            a = made(y)
            write(y, a)
            return y, a, y + 1
        return f
    check(make, call(X), call(X + 1), call(X + 2), captures=None, fullgraph=False, **BACKENDS[backend])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["S4", "U4", np.float64, "int64", "complex64", bool])
def test_types_of_the_elements_of_lists(dtype, backend):
    def program(x):
        return np.array([x[0, 0], x[0, 1]], dtype=dtype), np.array([x[0, 0], x[0, 1]], dtype), x + 1
    compiled = capture.compile(program, backend=backend)
    for seed in range(4):
        x = torch.arange(6.0).view(2, 3) + seed
        for ours, theirs in zip(compiled(x), program(x), strict=True):
            assert ours.dtype == theirs.dtype and bool((ours == theirs).all())


@pytest.mark.parametrize("backend", BACKENDS)
def test_objects_in_arrays_are_the_tensors(backend):
    compiled = capture.compile(lambda x: (np.array([x[0, 0], x[0, 1]], dtype=object), x + 1), backend=backend)
    for _ in range(3):
        array, _ = compiled(torch.arange(6.0).view(2, 3))
        assert [type(item) for item in array] == [torch.Tensor, torch.Tensor]


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_of_an_argument_is_shared(backend):
    def f(x):
        return np.asarray(x), np.array(x)
    warnings.simplefilter("ignore")
    compiled = capture.compile(f, fullgraph=True, **BACKENDS[backend])
    for _ in range(3):
        x = X.clone()
        shared, copy = compiled(x)
        x.fill_(9)
        assert (shared == 9).all() and (copy == X.numpy()).all() and copy.flags.owndata
    assert capture.stats(compiled).hits == 2


def warnings_of(function, *calls):
    found = []
    for x in calls:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            function(x)
        found.append([(w.category, str(w.message), w.filename, w.lineno) for w in told])
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_warnings_are_eager_modes(backend):
    """Numpy 2 warns where it copies, of the line that called it."""
    def f(x):
        a = np.array(x)
        b = np.asarray(x)
        return a, b, np.asarray(x, copy=True), np.array([x, x])
    compiled = capture.compile(f, fullgraph=True, **BACKENDS[backend])
    assert warnings_of(compiled, X, X, X) == warnings_of(f, X, X, X)
    assert capture.stats(compiled).hits == 2


def test_warnings_that_are_errors():
    def make():
        def f(x):
            y = x + 1
            return np.array(y)
        return f
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled, outcomes = capture.compile(make()), []
        for function in (make(), compiled, compiled, compiled):
            try:
                outcomes.append(repr(function(X)))
            except DeprecationWarning as error:
                outcomes.append(str(error))
        assert outcomes == outcomes[:1] * 4


@pytest.mark.parametrize("function", [np.array, np.asarray, np.asanyarray, lambda x: np.array([x, x])])
@pytest.mark.parametrize("name", ["__array__", "numpy"])
def test_a_method_of_tensors_that_is_replaced(name, function, monkeypatch):
    def make():
        return (lambda x: function(x)), SimpleNamespace()

    original = getattr(torch.Tensor, name)

    def replace(state):
        monkeypatch.setattr(torch.Tensor, name, lambda self, *args: original(self, *args) + 1)

    def put_back(state):
        monkeypatch.setattr(torch.Tensor, name, original)
    check(make, call(X), call(X), replace, call(X), put_back, call(X), captures=None, fullgraph=False)
