"""Numbers among a graph's inputs as tensors: which graphs have them, and what they are converted to."""
from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch
from torch import fx

from capture.backends.native.job import TensorSpec
from capture.backends.native.numbers import DTYPES, as_tensors, fits, name_of, spec_of
from capture.backends.native.signature import Unsupported

X = torch.linspace(-2.0, 2.0, 6)


def run(program: Callable, x: torch.Tensor, number: float) -> torch.Tensor:
    """What the graph of `program` computes when it is given a tensor in place of the number."""
    gm = fx.symbolic_trace(program)
    as_tensors(gm, [TensorSpec.of(x), spec_of(type(number))])
    return gm(x, torch.tensor(number, dtype=DTYPES[type(number)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("number", [3, 0.1, -0.0])
@pytest.mark.parametrize("program", [
    lambda x, s: x * s, lambda x, s: s - (x + s), lambda x, s: x / s, lambda x, s: s / x, lambda x, s: torch.where(x > 0, x, s),
    lambda x, s: x.ge(s), lambda x, s: x.mul(s)], ids=["mul", "sub", "div", "rdiv", "where", "ge", "method"])
def test_types_and_values_are_eager_s(program, number, dtype) -> None:
    x = X.to(dtype)
    try:
        expected = program(x, number)
    except (RuntimeError, TypeError, ZeroDivisionError):
        pytest.skip("eager mode refuses it")
    try:
        result = run(program, x, number)
    except Unsupported as error:
        assert dtype is torch.int8, error
        return
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("program, reason", [
    (lambda x, s: x ** s, "pow"), (lambda x, s: x[s], "getitem"),
    (lambda x, s: torch.nn.functional.leaky_relu(x, s), "leaky_relu"), (lambda x, s: x.add(s, alpha=2), "with a factor"),
    (lambda x, s: torch.sub(x, s, alpha=s), "several numbers"), (lambda x, s: x.add(x.double(), alpha=s), "types that differ"),
    (lambda x, s: x.half().sum() * s, "float16"), (lambda x, s: x.half().clamp(s), "float16"), (lambda x, s: torch.full((2,), s, dtype=torch.int8), "int8"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_not_known_is_refused(program, reason) -> None:
    with pytest.raises(Unsupported, match=reason):
        run(program, X, 2)


def test_a_graph_without_numbers_stays() -> None:
    gm = fx.symbolic_trace(lambda x: x * 2)
    code = gm.code
    assert as_tensors(gm, [TensorSpec.of(X)]).code == code


def test_names() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for target, name in ((operator.imul, "mul"), (operator.itruediv, "truediv"), (torch.rsub, "rsub"), (operator.invert, "invert")):
        assert name_of(graph.call_function(target, (x, x))) == name
    assert [name_of(graph.call_method(method, (x,))) for method in ("add_", "__iadd__", "index_fill_", "reciprocal")] == [
        "add", "add", "index_fill", "reciprocal"]


def test_numbers_that_fit() -> None:
    assert all(map(fits, (0.0, -1e38, math.nan, math.inf, -math.inf, 2**63 - 1, -(2**63 - 1))))
    assert not any(map(fits, (1e39, -1e300, 2**63, -2**63)))
