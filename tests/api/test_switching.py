"""What programs written for torch.compile meet: its arguments, the helpers of `torch.compiler` and `torch._dynamo`, what it has
compiled, copies and pickles."""
from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import capture
from capture.errors import ArgumentError, RecaptureError
from tests.programs import NATIVE, Programs

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
programs = Programs()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@capture.compile(backend="eager")
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x * x.shape[0]


# --- arguments

def test_every_argument_of_torch_compile_is_taken() -> None:
    compiled = capture.compile(double, fullgraph=True, dynamic=True, backend="eager", mode="reduce-overhead", options=None,
                               name="region", disable=False, recompile_limit=3, isolate_recompiles=True, shapes_spec=None)
    assert torch.equal(compiled(X), X * 2) and torch.equal(compiled(X), X * 2)
    assert capture.stats(compiled).hits == 1 and capture.report(compiled).frames[0].name == "region"


@pytest.mark.parametrize("how", ["function", "decorator", "module", "class", "deepcopy"])
def test_a_name_is_what_reports_say(how: str) -> None:
    class Net(nn.Module):
        def forward(self, x):
            return x + 1
    options: dict[str, Any] = {"name": "mine", "backend": "eager"}
    compiled = {"function": lambda: capture.compile(double, **options), "decorator": lambda: capture.compile(**options)(double),
                "module": lambda: capture.compile(Net(), **options), "class": lambda: capture.compile(Net, **options)(),
                "deepcopy": lambda: copy.deepcopy(capture.compile(Net(), **options))}[how]()
    compiled(X)
    target = type(compiled).__call__ if how == "class" else compiled
    assert [frame.name for frame in capture.report(target).frames] == ["mine"]


def test_a_recompile_limit_is_one_functions_own() -> None:
    limited = capture.compile(by_size, backend="eager", dynamic=False, recompile_limit=2)
    other = capture.compile(by_size, backend="eager", dynamic=False)
    with pytest.warns(UserWarning, match="recompile_limit"):
        for n in range(2, 7):
            assert torch.equal(limited(X[:n]), X[:n] * len(X[:n])) and torch.equal(other(X[:n]), X[:n] * len(X[:n]))
    assert (capture.stats(limited).captures, capture.stats(other).captures) == (2, 3)
    assert copy.deepcopy(limited) is limited and capture.stats(limited).native_calls == 3


def test_more_entries_than_fit_are_never_made() -> None:
    def program(x: torch.Tensor, k: int) -> torch.Tensor:
        return x.repeat(1, k)
    compiled = capture.compile(program, backend="eager", fullgraph=True, dynamic=False, recompile_limit=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(1, 70):
            assert compiled(X, k).shape == (4, 3 * k)
    assert capture.stats(compiled).captures == 64


@pytest.mark.parametrize(("arguments", "sentence"), [
    ({"name": 3}, "name must be a string or None, got int: 3"),
    ({"recompile_limit": 0},
     "recompile_limit must be an integer of at least 1, or None, got 0; to run natively, pass disable=True"),
    ({"recompile_limit": "8"}, "recompile_limit must be an integer"),
    ({"isolate_recompiles": 1}, "isolate_recompiles must be True or False"),
    ({"backend": "native", "options": {"max_autotune": True}}, "torch.compile's: leave it out, or choose backend='inductor'"),
    ({"backend": "native", "options": {"triton.cudagraphs": True}}, "leave it out, or choose backend='inductor'"),
    ({"backend": "native", "options": {"guard_filter_fn": len}}, "leave it out"),
    ({"backend": "inductor", "options": {"guard_filter_fn": len}}, "and capture has neither; leave it out"),
    ({"backend": "native", "options": {"freezin": True}}, "did you mean 'freezing'?"),
])
def test_what_cannot_be_used_is_told_with_the_remedy(arguments: dict, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(sentence)):
        capture.compile(double, **arguments)


# --- helpers of torch.compiler and torch._dynamo, inside of what is compiled

@programs.add(X)
def asks_whether_it_is_compiled(x):
    if not torch.compiler.is_compiling():
        x = x + 1
    if torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        x = x * 0
    return x * 2


@programs.make(X)
def asks_dynamo_whether_it_is_compiled():
    import torch._dynamo
    return lambda x: (x * 2 if torch._dynamo.is_compiling() else x + 1), None


@programs.make(X)
def a_nested_compile_region():
    @torch.compiler.nested_compile_region
    def region(x):
        return x.sin() + 1
    return lambda x: region(region(x)), None


@programs.make(X)
def allowed_in_graph_and_assumed_constant():
    @torch.compiler.assume_constant_result
    def factor():
        return 3
    helper = torch.compiler.allow_in_graph(lambda x: x.relu())
    return lambda x: helper(x) * factor(), None


@programs.make(X)
def asks_dynamo_for_breaks():
    import torch._dynamo

    def program(x):
        y = x * 2
        torch._dynamo.graph_break()
        torch._dynamo.skip_frame()
        return y + 1
    return program, None


@programs.make(X, **NATIVE)
def marks_sizes_inside():
    import torch._dynamo

    def program(x):
        y = x * 2
        torch._dynamo.mark_static(y, 0)
        torch._dynamo.maybe_mark_dynamic(y, 0)
        return y + 1
    return program, None


@programs.make(X, **NATIVE)
def begins_a_step_of_cuda_graphs():
    def program(x):
        torch.compiler.cudagraph_mark_step_begin()
        return x * 2
    return program, None


@programs.make(X, **NATIVE)
def patches_the_configuration():
    import torch._dynamo

    def program(x):
        with torch._dynamo.config.patch(suppress_errors=True):
            y = x * 2
        return y + 1
    return program, None


@programs.make(X, **NATIVE)
def numpy_wrapped_for_tensors():
    import numpy
    return torch.compiler.wrap_numpy(lambda a: numpy.sum(a * a)), None


test_helpers = programs.test()


@pytest.mark.parametrize(("mark", "captures"), [("mark_dynamic", 1), ("maybe_mark_dynamic", 1), ("mark_static", 2),
                                                ("mark_static_address", 2)])
def test_tensors_that_are_marked_for_dynamo(mark: str, captures: int) -> None:
    import torch._dynamo
    compiled = capture.compile(by_size, backend="eager", fullgraph=True)
    for n in (4, 4, 3, 4):
        x = X[:n].clone()
        getattr(torch._dynamo, mark)(x, *((0,) if mark != "mark_static_address" else ()))
        assert torch.equal(compiled(x), x * n)
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (captures, 4 - captures)


@pytest.mark.parametrize("how", ["function", "recursive=False", "skip", "method", "module", "class"])
def test_what_torch_compile_is_kept_from_runs_natively(how: str) -> None:
    import torch._dynamo.decorators
    ran = []

    class Net(nn.Module):
        def forward(self, x):
            ran.append(capture.is_capturing())
            return x + 1

        def extra(self, x):
            ran.append(capture.is_capturing())
            return x + 1
    excluded: dict[str, Callable[[], Callable]] = {
        "function": lambda: torch.compiler.disable(lambda x: Net()(x), reason="because"),
        "recursive=False": lambda: torch.compiler.disable(Net().extra, recursive=False),
        "skip": lambda: torch._dynamo.decorators.skip(lambda x: ran.append(1) or x + 1),
        "method": lambda: torch.compiler.disable(Net().extra), "module": lambda: torch.compiler.disable(Net()),
        "class": lambda: torch.compiler.disable(Net)()}
    function = excluded[how]()
    compiled = capture.compile(lambda x: function(x * 2).relu(), backend="eager")
    for number in range(1, 4):
        assert torch.equal(compiled(X), (X * 2 + 1).relu()) and len(ran) == number
    stats = capture.stats(compiled)
    assert stats.native_calls == 0 and stats.graphs == 2 and stats.breaks >= 1, stats
    assert "[disabled-call]" in capture.explain(compiled)


@pytest.mark.parametrize("make", [lambda: capture.disable(lambda x: x + 1), lambda: torch.compiler.disable(lambda x: x + 1),
                                  lambda: torch.compiler.disable(nn.ReLU())], ids=["ours", "torch's", "module"])
def test_what_is_excluded_is_not_compiled(make: Callable) -> None:
    excluded = make()
    assert capture.compile(excluded) is excluded


def test_what_is_compiled_may_be_excluded_again() -> None:
    def function(x):
        return x + 1
    assert capture.disable(capture.compile(function)) is function
    compiled = capture.compile(lambda x: function(x) * 2, backend="eager")
    assert torch.equal(compiled(X), (X + 1) * 2) and capture.stats(compiled).breaks == 1
    with pytest.raises(ArgumentError, match="or call torch.compiler.disable on it"):
        capture.disable(nn.ReLU())


def test_a_wrapper_of_an_excluded_function_is_captured() -> None:
    import functools
    excluded = torch.compiler.disable(double)

    @functools.wraps(excluded)
    def wrapper(x):
        return excluded(x + 1) * 3
    compiled = capture.compile(lambda x: wrapper(x), backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), (X + 1) * 6)
    assert capture.stats(compiled).graphs == 2


# --- functions and modules that torch.compile compiles

@pytest.mark.parametrize("how", ["function", "module", "in place"])
def test_what_torch_compiles_is_left_to_it(how: str) -> None:
    net = nn.Linear(3, 3)
    if how == "in place":
        net.compile(backend="eager")
    theirs = {"function": lambda: torch.compile(double, backend="eager"), "module": lambda: torch.compile(net, backend="eager"),
              "in place": lambda: net}[how]()
    compiled = capture.compile(lambda x: theirs(x + 1).relu(), backend="eager")
    expected = (double if how == "function" else nn.Linear.forward.__get__(net))(X + 1).relu()
    for _ in range(3):
        assert torch.equal(compiled(X), expected)
    assert "[torch-compiled]" in capture.explain(compiled) and capture.stats(compiled).native_calls == 0
    with pytest.raises(ArgumentError, match="was compiled by torch.compile; pass the original"):
        capture.compile(theirs)


# --- stances

def test_under_a_stance_that_forces_eager_nothing_of_ours_runs() -> None:
    ran = []

    def program(x):
        ran.append(capture.is_capturing())
        return x * 2
    compiled, module = capture.compile(program, backend="eager"), capture.compile(nn.Linear(3, 3), backend="eager")
    expected = module(X)
    compiled(X)
    compiled(X)
    before, others = capture.stats(compiled), capture.stats(module)
    with torch.compiler.set_stance("force_eager"):
        for x in (X, X[:2]):
            assert torch.equal(compiled(x), x * 2)
        assert torch.equal(module(X), expected)
    assert (capture.stats(compiled), capture.stats(module)) == (before, others) and len(ran) == 4
    compiled(X)
    assert capture.stats(compiled).hits == before.hits + 1


def test_stances_on_calls_that_no_entry_fits() -> None:
    compiled = capture.compile(by_size, backend="eager", name="scale")
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RecaptureError, match="scale .* nothing was captured yet"):
        compiled(X)
    compiled(X)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(X), X * 4)
        with pytest.raises(RuntimeError, match=re.escape("x: expected shape (4, 3), got shape (2, 3)")):
            compiled(X[:2])
    with torch.compiler.set_stance("eager_on_recompile"):
        assert torch.equal(compiled(X), X * 4) and torch.equal(compiled(X[:2]), X[:2] * 2)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.native_calls, stats.misses) == (1, 2, 1, [])
    assert torch.equal(compiled(X[:2]), X[:2] * 2) and capture.stats(compiled).captures == 2


# --- copies and pickles

class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.act = capture.compile(double, backend="eager")
        self.other = decorated
        self.step = capture.compile(self.compute, backend="eager")

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.act(self.step(x)))


def test_copies_and_pickles_of_what_holds_compiled_functions() -> None:
    holder = Holder()
    expected = holder(X)
    twin = copy.deepcopy(holder)
    assert twin.act is holder.act and twin.step.__self__ is twin and torch.equal(twin(X), expected)
    loaded = pickle.loads(pickle.dumps(holder))
    assert loaded.other is decorated and torch.equal(loaded(X), expected)
    loaded.act(X)
    assert loaded.act is not holder.act and capture.stats(loaded.act).captures >= 1
    assert copy.copy(decorated) is decorated and pickle.loads(pickle.dumps(decorated)) is decorated


def test_the_state_of_a_compiled_module_has_the_keys_of_the_module() -> None:
    compiled = capture.compile(Holder())
    assert list(compiled.state_dict()) == ["linear.weight", "linear.bias"]
    assert compiled._orig_mod.load_state_dict(compiled.state_dict()).missing_keys == []
