"""Graphs with numbers among their inputs: one compiled graph gives eager mode's results for every number."""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from capture.backends import aot
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.lowering import lower
from capture.backends.native.numbers import DTYPES, spec_of
from capture.backends.native.sampling import DERIVED, name_of, sampled, samples, trace
from capture.backends.native.signature import Unsupported
from capture.backends.native.verify import verify
from tests.backends.native.stages import behind_runtime, compare, evaluated, finished

X = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)
DTYPES_TESTED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool)
VALUES = {float: [0.1, 0.75, 3.7, 1e-3, 100.0, 2.0, 0.5, 1.0, 0.0, -0.3, float("inf"), float("nan")], int: [0, 1, 2, 3, 7, -1, 100]}


def recorded(program: Callable[..., Any]) -> fx.GraphModule:
    """The graph of a program of a tensor and a number, its results as a tuple."""
    gm = fx.symbolic_trace(program)
    output = gm.graph.output_node()
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
        gm.recompile()
    return gm


def compiled(gm: fx.GraphModule, inputs: Sequence[Tensor], kind: type) -> Callable[..., Any]:
    traced = trace(gm, [*map(TensorSpec.of, inputs), spec_of(kind)], Modes.current())
    programs = list(map(lower, traced.graphs))
    for program in programs:
        verify(program)
    return behind_runtime(gm, traced, list(map(evaluated, programs)))


def check(program: Callable[..., Any], x: Tensor, kind: type = float, values: Sequence[Any] | None = None,
          tolerance: float = 0.0) -> None:
    """One graph serves all `values`: those that it does not take run as they are."""
    gm = recorded(program)
    function = compiled(gm, [x], kind)
    served = 0
    for value in VALUES[kind] if values is None else values:
        try:
            gm(x, value)
        except (RuntimeError, ValueError, ZeroDivisionError):
            with pytest.raises((RuntimeError, ValueError, ZeroDivisionError)):
                function(x, value)
            continue
        compare(lambda t, value=value: gm(t, value), lambda t, value=value: function(t, value), [x],
                {"rtol": tolerance, "atol": tolerance})
        served += 1
    assert served
    finished()


OPERATIONS: tuple[Callable[..., Any], ...] = (
    lambda x, s: x * s, lambda x, s: s - (x + s), lambda x, s: x / s, lambda x, s: s / x, lambda x, s: torch.where(x > 0, x, s),
    lambda x, s: x.ge(s), lambda x, s: x.mul(s), lambda x, s: x.sign().sum() * s)


@pytest.mark.parametrize("dtype", DTYPES_TESTED, ids=str)
@pytest.mark.parametrize("kind", [float, int])
def test_types_and_values_are_eager_s(kind, dtype) -> None:
    x = X.to(dtype)
    programs = [program for program in OPERATIONS if not refused(program, x, kind(1))]
    for several in [[program] for program in programs] if dtype is torch.int8 else [programs]:
        try:
            check(together(several), x, kind)
        except Unsupported as error:
            assert dtype is torch.int8 and "int8" in str(error), error


def refused(program: Callable[..., Any], x: Tensor, number: Any) -> bool:
    """Whether eager mode does."""
    try:
        program(x, number)
    except (RuntimeError, TypeError):
        return True
    return False


def together(programs: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """One program of several: these take the same numbers, or else some of them would be tested with less than they take."""
    return lambda x, s: tuple(program(x, s) for program in programs)


FUNCTIONS: dict[str, tuple[Callable[..., Any], ...]] = {       # by the numbers that they take
    "all": (lambda x, s: x % s, lambda x, s: x.lerp(x.exp(), s), lambda x, s: x.addcdiv(x, x + 5, value=s),
            lambda x, s: torch.sub(x, x.exp(), alpha=s),
            lambda x, s: x.masked_fill(x > 0, s), lambda x, s: torch.full_like(x, s) + x, lambda x, s: torch.scalar_tensor(s) * x),
    "not NaN": (lambda x, s: F.threshold(x, s, 2.5), lambda x, s: F.hardshrink(x, s), lambda x, s: x.clamp(-0.5, s)),
    "not negative": (lambda x, s: F.leaky_relu(x, s), lambda x, s: F.elu(x, s), lambda x, s: F.softshrink(x, s)),
    "positive": (lambda x, s: F.celu(x, s), lambda x, s: F.softplus(x, s), lambda x, s: F.layer_norm(x, (4,), eps=s),
                 lambda x, s: F.rms_norm(x, (4,), eps=s), lambda x, s: F.group_norm(x, 2, eps=s),
                 lambda x, s: F.batch_norm(x, None, None, training=True, eps=s), lambda x, s: F.normalize(x, dim=1, eps=s),
                 lambda x, s: F.smooth_l1_loss(x, x * 2, beta=s), lambda x, s: F.huber_loss(x, x * 2, delta=s)),
    "exponents": (lambda x, s: x.abs() ** s, lambda x, s: s ** x),
}


@pytest.mark.parametrize("programs", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
def test_functions(programs, gradients) -> None:
    check(together(programs), X.clone().requires_grad_(gradients), tolerance=2e-5)


FOREACH = (lambda x, s: torch._foreach_add([x, x * 2], [x, x], alpha=s)[1],
           lambda x, s: torch._foreach_addcdiv([x], [x], [x + 5], [s])[0], lambda x, s: torch._foreach_mul([x, x + 1], s)[1])


def test_lists() -> None:
    check(together(FOREACH), X, tolerance=2e-5)


@pytest.mark.parametrize("program", FOREACH)
def test_lists_with_gradients_are_refused(program) -> None:
    """Autograd does not tell what these save, and so not which writes make the backward pass fail."""
    with pytest.raises(Unsupported, match="does not tell what Foreach"):
        compiled(recorded(program), [X.clone().requires_grad_()], float)


def test_divisions_that_round() -> None:
    check(lambda x, s: (x // s, s // x, torch.div(x, s, rounding_mode="trunc")), X)


def test_writes() -> None:
    def program(x, s):
        y = x.clone()
        y[:, 0].fill_(s)
        y.masked_fill_(y > 1.5, s)
        return y.mul_(s)
    check(program, X)


def results_of_results(x, s):
    a = (x * s).sin()
    b = a * s + s
    b = b.masked_fill(x > 1, s)
    return a, b.tanh(), (a * b / s).sum()


def test_results_that_are_computed_from_results() -> None:
    check(results_of_results, X.clone().requires_grad_(), tolerance=1e-5, values=VALUES[float][:6])
    check(results_of_results, X.clone().requires_grad_(), int, tolerance=1e-5, values=VALUES[int][1:5])


def test_gradients_of_gradients_of_such_results() -> None:
    gm = recorded(results_of_results)
    function = compiled(gm, [X.clone().requires_grad_()], float)
    for value in (0.1, 3.7):
        x = X.clone().requires_grad_()
        first = [torch.autograd.grad(call(x, value)[2].sin(), x, create_graph=True)[0] for call in (gm, function)]
        ours, theirs = (torch.autograd.grad(gradient.exp().sum(), x)[0] for gradient in first)
        torch.testing.assert_close(ours, theirs)


def test_operands_in_a_narrow_type_are_rounded_as_in_eager_mode() -> None:
    check(lambda x, s: (x + s, x - s, x * s, x / s, F.leaky_relu(x, s), x > s, x.clamp(min=s)), X.bfloat16(), values=[0.1, 3.7])


@pytest.mark.parametrize("program, reason", [
    (lambda x, s: x[s], "getitem"), (lambda x, s: torch.roll(x, s), "roll"),
    (lambda x, s: torch.full((2,), s, dtype=torch.int8), "int8"), (lambda x, s: torch.addmm(x, x, x.t() @ x, alpha=s), "addmm"),
    (lambda x, s: x.to(torch.int64) ** s, "pow"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_not_known_is_refused(program, reason) -> None:
    with pytest.raises(Unsupported, match=reason):
        compiled(recorded(program), [X], int)


def test_what_is_computed_from_a_number_unseen_is_refused() -> None:
    def squared(x, negative_slope, inplace):
        return F.leaky_relu(x, negative_slope) * negative_slope ** 2
    gm = recorded(lambda x, s: F.leaky_relu(x, s))
    node = gm.graph.find_nodes(op="call_function", target=F.leaky_relu)[0]
    node.target = squared
    squared.__name__ = "leaky_relu"
    gm.recompile()
    with pytest.raises(Unsupported, match="while the graph is traced"):
        compiled(gm, [X], float)


def test_samples_differ() -> None:
    specs = [spec_of(kind) for kind in (float, int, float, int)]
    drawn = [samples(specs, series)[place] for place in range(4) for series in range(2)]
    assert len(set(drawn)) == 8 and [type(value) for value in drawn[::2]] == [float, int, float, int]


def test_numbers_are_told_from_what_is_computed_of_others() -> None:
    for kind in (float, int):
        specs = [spec_of(kind)] * 20
        found = [tuple(map(derive, (samples(specs, 0)[place], samples(specs, 1)[place])))
                 for place in range(20) for derive in (lambda value: value, *(derive for derive, _ in DERIVED))]
        seen = [pair for pair in found if type(pair[0]) is kind]
        assert len(set(seen)) == len(seen)


def test_a_number_beside_half_of_another() -> None:
    gm = fx.symbolic_trace(lambda x, a, b: (F.huber_loss(x, x * 3, delta=a) * b, F.huber_loss(x, x * 3, delta=b) * a))
    traced = trace(gm, [TensorSpec.of(X), spec_of(float), spec_of(float)], Modes.current())
    function = behind_runtime(gm, traced, list(map(evaluated, map(lower, traced.graphs))))
    for a, b in ((0.7, 1.9), (3.5, 0.4)):
        torch.testing.assert_close(function(X, a, b), gm(X, a, b))


@pytest.mark.parametrize("kind, times", [(float, 1), (int, 2)])
def test_how_often_a_graph_is_traced(kind, times, monkeypatch) -> None:
    """Once where the operations that take numbers show what tracing makes of them. Integers may be equal to others by chance."""
    def program(x, number):
        for _ in range(10):
            x = x.sin() * number
        return x
    lengths: list[int] = []

    def noting(gm: fx.GraphModule, *args: Any) -> Any:
        lengths.append(len(gm.graph.nodes))
        return actual(gm, *args)
    actual = aot.trace
    monkeypatch.setattr(aot, "trace", noting)
    check(program, X.clone().requires_grad_(), kind, values=[kind(2), kind(3)], tolerance=1e-5)
    assert lengths.count(max(lengths)) == times and len(lengths) - times == (2 if times == 1 else 0)
    assert times == 2 or min(lengths) < 10


def test_what_is_computed_from_a_number_unseen_for_gradients_is_refused() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, negative_slope):
            ctx.slope = negative_slope
            return F.leaky_relu(x, negative_slope)

        @staticmethod
        def backward(ctx, grad):
            return grad * (ctx.slope * 3.0 + 0.1), None

    def leaky_relu(x, negative_slope, inplace):
        return Scaled.apply(x, negative_slope)
    gm = recorded(lambda x, s: F.leaky_relu(x, s))
    gm.graph.find_nodes(op="call_function", target=F.leaky_relu)[0].target = leaky_relu
    gm.recompile()
    with pytest.raises(Unsupported, match="while the graph is traced"):
        compiled(gm, [X.clone().requires_grad_()], float)


def test_a_graph_without_numbers_stays() -> None:
    gm = fx.symbolic_trace(lambda x: (x * 2,))
    assert sampled(gm, [TensorSpec.of(X)], 0).code == gm.code


def test_names() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for target, name in ((operator.imul, "mul"), (operator.itruediv, "truediv"), (torch.rsub, "rsub"), (operator.invert, "invert")):
        assert name_of(graph.call_function(target, (x, x))) == name
    assert [name_of(graph.call_method(method, (x,))) for method in ("add_", "__iadd__", "index_fill_", "reciprocal")] == [
        "add", "add", "index_fill", "reciprocal"]


def test_the_type_of_the_stand_in() -> None:
    assert DTYPES == {int: torch.int64, float: torch.float64}
