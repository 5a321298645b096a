"""What cannot be captured: the result is right, it is counted and explained, and `fullgraph` refuses it."""
from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import random
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from capture.config import RECAPTURE_LIMIT
from capture.errors import REASONS, ArgumentError, BackendError, GraphBreakError
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


def prints(x):
    y = x * 2
    print("shape", y.shape)
    return y + 1


def branches_on_a_clock(x):
    start = time.perf_counter()
    return x * (1 if start >= 0 else 2)


def reads_clocks_around_work(x):
    start = time.perf_counter()
    y = x * 2
    return y, time.perf_counter() >= start


def draws_a_size(x):
    return x.new_ones(random.randint(1, 3)) + x.sum()


def branches_on_data(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def loops_on_data(x):
    while x.abs().sum() > 1:
        x = x / 2
    return x


def branches_on_a_list(x):
    return x + (1 if max(x.view(-1).tolist()) > 3 else 2)


def uses_numpy(x):
    return x + 1 if x.numpy().max() > 0 else x


def indexes_by_data(x):
    return [10, 20, 30][x[0, 0].long()] * x


def branches_on_a_shape(x):
    return x * 2 if x[x > 0].shape[0] > 2 else x


def iterates_over_nonzero(x):
    return [i * 2 for i in torch.nonzero(x > 0)]


def asserts_on_data(x):
    assert (x.abs() < 100).all(), "too large"
    return x * 2


def runs_backward(x):
    (WEIGHT * x).sum().backward(inputs=[WEIGHT])
    return WEIGHT.grad.clone()


def reads_a_file(x):
    with open(__file__) as file:
        return x * len(file.readline())


def sets_the_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    return torch.zeros(2)


WEIGHT = torch.ones(2, 2, requires_grad=True)
OUTSIDE = itertools.accumulate(itertools.repeat(1))


def advances_an_outside_iterator(x):
    return x * (next(OUTSIDE) > 0)


@capture.disable
def disabled(x):
    return x.sum().item()


def calls_a_disabled_function(x):
    return disabled(x) * x


# program -> the reason under which it is reported
BREAKS = {
    draws_a_size: "changing-result", branches_on_a_clock: "changing-result", reads_clocks_around_work: "clock",
    branches_on_data: "data-dependent", loops_on_data: "data-dependent",
    branches_on_a_list: "data-dependent", uses_numpy: "changing-result", indexes_by_data: "data-dependent",
    branches_on_a_shape: "data-dependent-shape", iterates_over_nonzero: "data-dependent-shape",
    asserts_on_data: "data-dependent", runs_backward: "autograd-inside", reads_a_file: None,
    sets_the_default_dtype: "changing-global-state", advances_an_outside_iterator: "outside-iterator",
    calls_a_disabled_function: "disabled-call",
}
WHOLE = {runs_backward}     # what one graph holds, if it must: two that backends can compile are better
LOOPS = {loops_on_data}     # a round more than there are breaks, each captured with its own outcome of the condition
EACH = pytest.mark.parametrize(("program", "reason"), [pytest.param(p, r, id=p.__name__) for p, r in BREAKS.items()])


@EACH
def test_the_result_and_all_side_effects_are_right(program, reason) -> None:
    def make():
        torch.set_default_dtype(torch.float32)
        WEIGHT.grad = None
        return program
    check(make, call(X), call(X), call(-X), captures=None, fullgraph=False)


@EACH
def test_a_break_is_counted_and_explained(program, reason) -> None:
    compiled = capture.compile(program)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(X)
        torch.set_default_dtype(torch.float32)
        compiled(X)
    stats = capture.stats(compiled)
    assert (stats.bailouts, stats.native_calls) == (0, 0) and stats.breaks >= 1, stats
    assert stats.captures == stats.breaks + 1 and stats.hits >= stats.captures and not stats.misses or program in LOOPS, stats
    text = capture.explain(compiled)
    assert __file__ in text and f"in {program.__qualname__}" in text, text
    if reason is not None:
        assert f"[{reason}]" in text and REASONS[reason].remedy in text, text


@pytest.mark.parametrize(("program", "reason"), [pytest.param(p, r, id=p.__name__) for p, r in BREAKS.items() if p not in WHOLE])
def test_fullgraph_refuses_with_reason_line_and_remedy(program, reason) -> None:
    compiled = capture.compile(program, fullgraph=True)
    for _ in range(2):
        torch.set_default_dtype(torch.float32)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with pytest.raises(GraphBreakError) as caught:
                compiled(X)
        error = caught.value
        assert reason in (None, error.reason.id)
        lines, first = inspect.getsourcelines(program)
        assert any(frame.file == __file__ and first <= frame.line < first + len(lines) for frame in error.stack), error
        assert error.reason.remedy in str(error) and error.reason.id in str(error)


def test_the_line_of_a_break_is_exact() -> None:
    compiled = capture.compile(uses_numpy, fullgraph=True)
    with pytest.raises(GraphBreakError) as caught:
        compiled(X)
    line = uses_numpy.__code__.co_firstlineno + 1
    assert caught.value.stack[-1].line == line and f'File "{__file__}", line {line}' in str(caught.value)


def test_a_break_deep_inside_names_every_frame() -> None:
    class Model(nn.Module):
        def forward(self, x):
            return x * x.sum().numpy()
    model = nn.Sequential(nn.ReLU(), Model())
    with pytest.raises(GraphBreakError) as caught:
        capture.compile(model, fullgraph=True)(X)
    assert caught.value.stack[-1].function.endswith("Model.forward")


def test_fullgraph_lets_the_call_end_before_it_refuses() -> None:
    log = []

    class Manager:
        def __enter__(self):
            log.append("enter")

        def __exit__(self, *exc):
            log.append("exit")

    @capture.compile(fullgraph=True)
    def program(x):
        with Manager():
            try:
                x.sum().numpy()
            finally:
                log.append("finally")
    with pytest.raises(GraphBreakError):
        program(X)
    assert log == ["enter", "finally", "exit"]


def test_state_around_a_break_is_right() -> None:
    def make():
        state = SimpleNamespace(before=0, after=[], total=torch.zeros(2, 2))

        def program(x):
            state.before += 1
            state.total += x
            print(state.before)
            state.after.append(state.before)
            return state.total.clone()
        return program, state
    check(make, call(X), call(X), call(X * 2), captures=None, fullgraph=False)


def test_a_program_that_breaks_for_some_arguments_only() -> None:
    def program(x, verbose):
        if verbose:
            assert x.numpy().max() < 1e9
        return x * 2
    check(lambda: program, call(X, False), call(X, True), call(X, False), call(X, True), call(X, False), captures=3,
          hits=4, breaks=1, fullgraph=False)


# --- compile's arguments

@pytest.mark.parametrize(("arguments", "error"), [
    ({"backend": "no_such_backend"}, BackendError), ({"backend": 3}, ArgumentError), ({"mode": "fast"}, ArgumentError),
    ({"mode": 3}, ArgumentError), ({"options": [1]}, ArgumentError), ({"dynamic": 1},
                                                                      ArgumentError), ({"fullgraph": 1}, ArgumentError),
    ({"disable": "no"}, ArgumentError)], ids=str)
def test_a_bad_argument_is_one_clear_sentence(arguments, error) -> None:
    with pytest.raises(error) as caught:
        capture.compile(prints, **arguments)
    name, = arguments
    assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("thing", [None, 3, "text", [], torch.nn, int, torch.ones(2)], ids=repr)
def test_what_cannot_be_compiled_is_one_clear_sentence(thing) -> None:
    if thing is None:
        assert callable(capture.compile(thing))         # the form of a decorator with arguments
        return
    with pytest.raises(ArgumentError, match="takes a function|no __call__ written in Python") as caught:
        capture.compile(thing)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_torch_compile_are_taken(mode) -> None:
    compiled = capture.compile(lambda x: x * 2, mode=mode)
    assert torch.equal(compiled(X), X * 2) and torch.equal(compiled(X), X * 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_backends_by_name(backend) -> None:
    check(lambda: lambda x: (x.sin() + x.cos()).relu(), call(X), call(X), call(X + 1), backend=backend, graphs=1)


def test_a_backend_that_raises_is_told_in_strict_mode() -> None:
    def backend(gm, example_inputs):
        raise RuntimeError("no compiler")
    with pytest.raises(BackendError, match="no compiler"):
        capture.compile(lambda x: x * 2, backend=backend)(X)


def test_a_backend_that_raises_falls_back_to_the_graph() -> None:
    def backend(gm, example_inputs):
        raise RuntimeError("no compiler")
    compiled = capture.compile(lambda x: x * 2, backend=backend)
    with capture.config.STRICT.set(0):
        with pytest.warns(UserWarning, match="no compiler"):
            assert torch.equal(compiled(X), X * 2)
        assert torch.equal(compiled(X), X * 2) and capture.stats(compiled).hits == 1


def test_a_backend_gets_a_graph_module_and_real_inputs() -> None:
    seen = []
    linear = nn.Linear(2, 2)

    def backend(gm, example_inputs):
        seen.append((gm, example_inputs))
        gm.graph.lint()
        return gm
    compiled = capture.compile(lambda x: linear(x).relu(), backend=backend)
    compiled(X)
    compiled(X)
    (gm, inputs), = seen
    assert isinstance(gm, torch.fx.GraphModule)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    assert len(placeholders) == len(inputs) == 3 and all(isinstance(t, torch.Tensor) for t in inputs)
    assert {id(t) for t in inputs} >= {id(linear.weight), id(linear.bias)}


def test_a_backend_may_change_the_graph() -> None:
    def backend(gm, example_inputs):
        for node in gm.graph.nodes:
            if node.op == "call_method" and node.target == "relu":
                node.target = "neg"
        gm.recompile()
        return gm.forward
    compiled = capture.compile(lambda x: x.relu(), backend=backend)
    assert torch.equal(compiled(X), X.relu())           # the capturing call is an eager run
    assert torch.equal(compiled(X), -X)


# --- the limit

def test_past_the_recapture_limit_calls_run_natively_and_say_so() -> None:
    @capture.compile(dynamic=False)
    def program(x, k):
        return x.repeat(1, k) if k > 0 else x
    with RECAPTURE_LIMIT.set(3):
        for k in range(1, 4):
            program(X, k)
        with pytest.warns(UserWarning, match="RECAPTURE_LIMIT"):
            assert torch.equal(program(X, 10), X.repeat(1, 10))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(program(X, 11), X.repeat(1, 11))
    stats = capture.stats(program)
    assert stats.captures == 3 and stats.native_calls == 2 and "k" in stats.misses[-1]
    assert "natively" in capture.explain(program)


# --- compiled functions inside of other things

def test_a_compiled_function_called_by_another() -> None:
    def make():
        inner = capture.compile(lambda x: x * 2)
        return lambda x: inner(x) + inner(x + 1)
    check(make, call(X), call(X), call(X + 1))


def test_a_compiled_function_called_by_one_that_breaks() -> None:
    inner = capture.compile(lambda x: x * 2)

    @capture.compile
    def outer(x):
        return inner(x) * float(x.sum().numpy())
    for _ in range(4):
        assert torch.equal(outer(X), X * 2 * X.sum().item())
    stats = capture.stats(outer)
    assert (stats.breaks, stats.captures, stats.hits) == (1, 2, 6)
    assert capture.stats(inner).captures == 0           # inlined, before and after the break


def test_a_recursive_compiled_function() -> None:
    @capture.compile
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)
    for _ in range(2):
        assert torch.equal(power(X, 4), X * X * X * X)


@pytest.mark.parametrize("consumer", [list, sum, lambda g: [next(g)]], ids=["list", "sum", "next"])
def test_a_compiled_generator_function(consumer) -> None:
    def rows(x):
        for row in x:
            yield row * 2
    compiled = capture.compile(rows)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(consumer(compiled(X)), consumer(rows(X)), strict=True))


def scaled(x):
    return x * 2 + 1


def through_jit_trace(f):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(lambda x: f(x), (X + 1,))(X)


def through_symbolic_trace(f):
    return torch.fx.symbolic_trace(lambda x: f(x))(X)


def through_make_fx(f):
    from torch.fx.experimental.proxy_tensor import make_fx
    return make_fx(lambda x: f(x))(X + 1)(X)


def through_make_fx_on_fakes(f):
    from torch.fx.experimental.proxy_tensor import make_fx
    return make_fx(lambda x: f(x), tracing_mode="fake")(X + 1)(X)


def through_vmap(f):
    return torch.vmap(lambda x: f(x))(X)


def through_grad(f):
    return torch.func.grad(lambda x: f(x).sum())(X)


def through_jvp(f):
    return torch.func.jvp(lambda x: f(x), (X,), (X,))


def through_fake_tensors(f):
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        y = f(mode.from_tensor(X))
    return y.shape, y.dtype, type(y).__name__


def through_dispatch_mode(f):
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Logging(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))
    with Logging():
        return f(X), seen


def through_function_mode(f):
    from torch.overrides import TorchFunctionMode
    seen = []

    class Logging(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))
    with Logging():
        return f(X), seen


class Subclass(torch.Tensor):
    pass


def through_a_subclass(f):
    y = f(X.as_subclass(Subclass))
    return type(y).__name__, y.as_subclass(torch.Tensor)


def through_export(f):
    class Model(nn.Module):
        def forward(self, x):
            return f(x)
    return torch.export.export(Model(), (X,), strict=False).module()(X)


def through_torch_compile(f):
    return torch.compile(lambda x: f(x), backend="eager")(X)


def through_meta(f):
    return f(X.to("meta")).shape


TRACERS = [value for name, value in list(globals().items()) if name.startswith("through_")]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("through", TRACERS, ids=lambda through: through.__name__)
def test_under_a_tracer_the_original_code_runs(through, warm: bool, monkeypatch) -> None:
    monkeypatch.setattr(nn.Module, "__init__", nn.Module.__init__)          # torch.compile changes them for good
    monkeypatch.setattr(nn.Module, "__setstate__", nn.Module.__setstate__)
    compiled = capture.compile(scaled)
    if warm:
        compiled(X)
        compiled(X)
    expected, got = through(scaled), through(compiled)
    compare([got], [expected]) if isinstance(expected, torch.Tensor) else compare(got, expected)
    assert torch.equal(compiled(X), scaled(X))
    assert capture.stats(compiled).bailouts == 0


def compare(got, expected) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
