"""One capture for all sizes: programs called with sizes at random, compared with eager mode in everything."""
from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F

import capture
from capture.config import TRIAL_CALLS
from tests.helpers import call, call_with, check
from tests.sizes.programs import PROGRAMS, Cache, step

pytestmark = pytest.mark.usefixtures("open_sizes")
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-4}
KINDS: tuple[int, ...] = (2, 3, 5, 7, 16, 31)


def calls(name: str, count: int, seed: int, kinds: tuple[int, ...] = KINDS) -> list[Any]:
    """Calls with sizes at random, no two of the first ones alike."""
    sizes, inputs = random.Random(seed), PROGRAMS[name][1]
    first = [(2, 3, 5), (5, 7, 2), (3, 2, 7)]
    rest = [tuple(sizes.choice(kinds) for _ in range(3)) for _ in range(count)]
    return [call(*inputs(*size)) for size in first + rest]


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_captures_for_all_sizes(name: str) -> None:
    make, _, most = PROGRAMS[name]
    stats = check(make, *calls(name, 8, 0), captures=None, backward=True)
    assert stats.captures <= most and not stats.native_calls, stats.misses


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"moments"}))         # of one element: torch warns
def test_no_element_and_one(name: str) -> None:
    """Eager mode treats these in ways of its own; and they may come first."""
    make = PROGRAMS[name][0]
    for seed in range(2):
        steps = calls(name, 12, seed, (0, 1, 2, 3, 9))[seed and 3:]
        check(make, *steps, captures=None, backward=True, fullgraph=False, recompile_limit=60)


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_for_sizes_that_come_again(name: str) -> None:
    """The first sizes have an entry of their own, whose kernels know them. They come again in every sixth program alone, since such
    kernels are what the tests of the backend are about."""
    make, _, most = PROGRAMS[name]
    first, *rest = calls(name, 1, 1)
    again = [first, *rest] if list(PROGRAMS).index(name) % 6 == 0 else rest
    stats = check(make, first, *rest, *again, *again, captures=None, backward=True, **NATIVE)
    assert stats.captures <= most and stats.compiled >= (name != "in place"), (stats.misses, stats.compile_errors)


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"moments", "patches"}))     # … one patch alone lies otherwise
def test_compiled_where_some_sizes_are_1(name: str) -> None:
    """Each pattern of these is compiled once, when it comes for the second time."""
    make, inputs, _ = PROGRAMS[name]
    sizes = [(1, 3, 4), (4, 1, 3), (1, 4, 3), (3, 1, 4), (1, 5, 6), (5, 1, 7)]
    steps = [*calls(name, 0, 4), *(call(*inputs(*size)) for size in sizes)]
    with TRIAL_CALLS.set(0):
        check(make, *steps, captures=None, backward=True, fullgraph=False, recompile_limit=60, **NATIVE)


def test_sizes_of_1_are_compiled_for_all_others() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
        return (torch.cat([x, torch.ones(n, 4)]) @ y).softmax(-1) * x.shape[0] + y.sum()

    def given(rows: int, columns: int, n: int) -> Any:
        return call(torch.randn(rows, 4, requires_grad=True), torch.randn(4, columns, requires_grad=True), n)
    sizes = [(2, 3, 2), (4, 5, 3), (6, 7, 4)]
    sizes += [(1, columns, n) for columns, n in ((9, 2), (8, 3), (7, 4), (23, 5))]
    sizes += [(rows, 1, 3) for rows in (5, 6, 7, 8)]
    sizes += [(rows, columns, 1) for rows, columns in ((5, 6), (7, 8), (9, 4), (3, 2))]
    with TRIAL_CALLS.set(0):
        stats = check(lambda: program, *(given(*size) for size in sizes), captures=None, backward=True, **NATIVE)
    assert stats.captures == 2 and stats.compiled == 4 and not stats.compile_errors, stats


def test_numbers_that_no_size_can_be() -> None:
    """A slice may end anywhere, also where no int64 reaches."""
    def run(x: torch.Tensor, n: int) -> torch.Tensor:
        return x[:, :n] * 2
    x = torch.randn(3, 40)
    numbers = (3, 5, 7, 2**70, 2**63 - 1, 2**40, -1, 4, 2**70, 2**63 - 1, 2**40, -1, 2**70)
    check(lambda: run, *(call(x, n) for n in numbers), captures=None, fullgraph=False, recompile_limit=60, **NATIVE)


def test_a_cache_that_grows() -> None:
    def make() -> Any:
        return step, Cache()
    x, = (torch.randn(2, 2, 4),)
    stats = check(make, *[call_with(lambda cache: (x, cache))] * 12, captures=None)
    assert stats.captures == 2, stats.misses


def test_parameters_have_the_sizes_that_they_have() -> None:
    """Modules of one class with other widths are told apart: each has an entry."""
    layers = [torch.nn.Linear(4, width) for width in (3, 5, 6)]

    @capture.compile(fullgraph=True, backend="eager")
    def run(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)
    for layer in layers * 2:
        x = torch.randn(2, 4)
        assert torch.equal(run(layer, x), layer(x))


LAYOUTS = {"rows": lambda x, n: x[:n], "columns": lambda x, n: x[:, :n], "transposed": lambda x, n: x.t()[:n],
           "column": lambda x, n: x[:n, :1], "every second": lambda x, n: x[:n, ::2], "repeated": lambda x, n: x[:1].expand(n, -1)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout: str) -> None:
    """How a tensor lies in memory is what it was, whatever the size is: then views stay views, and copies copies."""
    def make() -> Any:
        def program(x: torch.Tensor) -> Any:
            y, z = x.reshape(-1), x.contiguous()
            return y * 2, y.data_ptr() == x.data_ptr(), z is x, x.stride()[-1], x.is_contiguous()
        return program
    whole = torch.arange(600.0).view(20, 30)
    check(make, *[call(LAYOUTS[layout](whole, n)) for n in (3, 4, 5, 6, 2, 1, 5)], captures=None, fullgraph=False)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writes_to_what_is_a_copy_for_some_sizes_alone(layout: str) -> None:
    def make() -> Any:
        def program(x: torch.Tensor) -> Any:
            y = x.reshape(-1)
            y[0] = 7.0
            return y.sum(), x.sum()
        return program
    if layout != "repeated":
        whole = torch.arange(600.0).view(20, 30)
        check(make, *[call(LAYOUTS[layout](whole, n)) for n in (3, 4, 5, 1, 6, 2, 1)], captures=None, fullgraph=False)


@pytest.mark.parametrize("text", [lambda x: f"{x.shape}", lambda x: str(tuple(x.shape)), lambda x: f"{list(x.shape)!r:>20}",
                                  lambda x: "%s, %d" % (x.shape, len(x)), lambda x: "{}".format(x.size())], ids=range(5))
def test_text_of_shapes(text: Any) -> None:
    steps = [call(torch.randn(n, m)) for n, m in ((3, 4), (5, 6), (7, 2), (2, 9), (31, 16))]
    check(lambda: lambda x: (x * 2, text(x), {text(x): len(x)}), *steps, captures=2)


def test_writes_to_views_and_to_memory_that_was_free_again() -> None:
    """A view is one for one row, too; and what lies where something else did before has nothing to do with it."""
    def program(x: torch.Tensor) -> Any:
        found = [(x * 2).view(len(x), -1, 2).add_(1)]
        for _ in range(5):
            found.append((x * 2).transpose(1, 2).reshape(len(x), -1).sum(1))
            found.append(torch.zeros(4).add_(found[-1].sum()))
        return found
    steps = [call(torch.randn(n, 4, 6)) for n in (3, 2, 1, 4, 1)]
    check(lambda: program, *steps, captures=2)


def test_dynamic_says_it_beforehand() -> None:
    def program(x: torch.Tensor) -> Any:
        return x @ x.mT, x.shape
    for dynamic, captures in ((None, 2), (True, 1), (False, 4)):
        stats = check(lambda: program, *(call(torch.ones(n, 3 + n)) for n in (2, 3, 4, 5)), captures=captures, dynamic=dynamic)
        assert not stats.native_calls


def test_marks_of_tensors() -> None:
    def marked(n: int) -> torch.Tensor:
        x = torch.ones(n, 4)
        torch._dynamo.mark_dynamic(x, 0)
        return x
    program = capture.compile(lambda x: x * x.shape[0], fullgraph=True, backend="eager")
    for n in (3, 4, 5):
        assert torch.equal(program(marked(n)), marked(n) * n)
    assert capture.stats(program).captures == 1


def test_what_is_read_of_values() -> None:
    """As many numbers are read as there are; what was made of them would not fit other sizes."""
    def program(x: torch.Tensor) -> Any:
        return [value * 2 for value in x.tolist()], x + 1
    check(lambda: program, *(call(torch.arange(float(n))) for n in (3, 4, 5, 4)), captures=None, fullgraph=False)


def test_data_of_another_size() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = torch.zeros(2)
        z.data = y
        return z.shape, z + x.sum()
    check(lambda: program, *(call(torch.ones(n), torch.ones(n + 1)) for n in (3, 4, 5, 4)), captures=None, fullgraph=False)


def test_bodies_of_control_flow() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * x.shape[0], lambda x: x - x.shape[0], (x,))
    check(lambda: program, *(call(torch.ones(n) * sign) for n in (3, 4, 5, 4) for sign in (1, -1)), captures=None, fullgraph=False)


def test_subclasses_keep_their_own_sizes() -> None:
    class Named(torch.Tensor):
        pass

    def program(x: torch.Tensor) -> Any:
        return x * 2, x.shape
    steps = [call_with(lambda _, n=n: (torch.ones(n).as_subclass(Named),)) for n in (3, 4, 3)]
    check(lambda: (program, None), *steps, captures=2, **NATIVE)


def test_other_backends_get_one_size_each() -> None:
    seen: list[torch.Size] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        seen.append(inputs[0].shape)
        return gm.forward
    backend.takes_numbers = True  # type: ignore[attr-defined]
    check(lambda: lambda x: x * x.shape[0], *(call(torch.ones(n)) for n in (3, 4, 3)), captures=2, backend=backend, dynamic=True)
    assert seen == [(3,), (4,)]


ODD: dict[str, Any] = {
    "compared with another": lambda x, y: (y.is_same_size(x), x.is_same_size(y), x + 1),
    "resized": lambda x, y: (z := x.clone(), z.resize_(2, 2).shape, z.unsqueeze_(0).shape, z.numel())[1:],
    "masked": lambda x, y: (x[:1].masked_fill(y > 0, 2.0), x.masked_fill(y[:1] > 0, 1.0), torch.normal(0.0, y.abs() + 1).shape),
    "kept": lambda x, y: (x.sum(-1, keepdim=True), torch.sum(y, axis=0), x.mean((0, 1)), x.all(), y.any(1, True)),
    "windows": lambda x, y: (x.unfold(0, 2, 1).sum(-1), torch.nn.functional.unfold(x[None, None], 2, 1, 0)),
    "swapped": lambda x, y: (x.T.shape, x.mT @ y, x.t_().shape, x.transpose_(0, 1).shape, x),
    "shifted": lambda x, y: (x[1:] * y[:-1], x[-2:], y[: x.shape[0] - 1], x.narrow(0, 1, x.shape[0] - 1), x[::2].shape)}


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_as_it_seems(name: str) -> None:
    """Operations whose names, or results, are easily taken for those of others."""
    generator = torch.Generator().manual_seed(7)
    sizes = [(3, 4), (4, 5), (5, 3), (3, 4), (2, 2), (6, 6), (7, 4)]
    steps = [call(*(torch.randn(size, generator=generator) for _ in range(2))) for size in sizes]
    check(lambda: ODD[name], *steps, captures=None, fullgraph=False)


NUMBERS: dict[str, Any] = {
    "of numpy": lambda x, n: (x.new_zeros(n, 2), x[:n], x.repeat(n, x.shape[0] * n)),
    "with sizes": lambda x, n: (torch.zeros(x.shape[0] * n), x.new_ones(n + x.shape[0], int(n))),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("kind", [int, numpy.int64, numpy.int32], ids=lambda kind: kind.__name__)
def test_numbers_of_other_types(name: str, kind: Any) -> None:
    steps = [call(torch.ones(size, 2), kind(n)) for size, n in ((3, 2), (4, 3), (5, 2), (4, 5), (1, 1), (6, 0))]
    check(lambda: NUMBERS[name], *steps, captures=None, fullgraph=False)


QUARTERS = {
    "broadcast": lambda x, y: x[:x.size(0) // 4] + y, "repeated": lambda x, y: x[:x.size(0) // 4].expand(5, 3).sum(0),
    "steps": lambda x, y: x[::8] + y, "with itself": lambda x, y: x[:x.size(0) // 4] * x,
    "chosen": lambda x, y: torch.where(y > 0, x[:x.size(0) // 4], y), "in place": lambda x, y: y.clone().add_(x[:x.size(0) // 4]),
    "squeezed": lambda x, y: x[:x.size(0) // 4].squeeze(0) * 2, "flat": lambda x, y: x[:x.size(0) // 4].reshape(-1) * 2,
    "less": lambda x, y: x[:x.size(0) - 3] + y, "product": lambda x, y: x[:x.size(0) // 4].unsqueeze(-1) @ y.unsqueeze(1),
    "pooled": lambda x, y: x.t() - F.avg_pool1d(x.t()[None], 4)[0], "power": lambda x, y: x * (x.size(0) ** 5 / 7.0) + y.sum()}


@pytest.mark.parametrize("name", QUARTERS)
def test_what_is_computed_of_sizes_is_one_in_some_calls(name: str) -> None:
    """Eager mode treats sizes of 0 and 1 in ways of its own."""
    y = torch.randn(2, 3)
    with TRIAL_CALLS.set(0):
        for first in (4, 8):
            steps = [call(torch.randn(n, 3, requires_grad=True), y) for n in (first, first, 4, 5, 8, 7, 9, 12, 6000, 4, 2)]
            check(lambda: QUARTERS[name], *steps, captures=None, backward=True, fullgraph=False, dynamic=True, **NATIVE)


@pytest.mark.parametrize("freezing", [False, True])
def test_parameters_of_which_a_size_takes_a_part(freezing: bool) -> None:
    class Part(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.weight = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.randn(40, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) + self.weight[:x.size(0)] * 2.0
    native = {**NATIVE, "options": {"background": False, "freezing": freezing}}
    with torch.no_grad():
        stats = check(Part, *(call(torch.randn(n, 3)) for n in (4, 4, 7, 9)), captures=None, dynamic=True, **native)
    assert not stats.compile_errors


def test_passes_from_some_of_several_results() -> None:
    """Sizes of gradients are asked for where there are none, or where they lie in memory otherwise."""
    weight = torch.randn(3, 4, requires_grad=True)

    def program(x: torch.Tensor) -> Any:
        hidden = torch.tanh(x @ weight)
        return hidden, (hidden.exp() * 2).sin(), (hidden * hidden).sum()

    def gradients(function: Any, n: int, which: int) -> Any:
        generator = torch.Generator().manual_seed(n)
        x, other = torch.randn(n, 3, generator=generator, requires_grad=True), torch.randn(n, 4, generator=generator)
        one, two, three = function(x)
        results, grads = [([one, three], [torch.ones(4, n).t(), torch.tensor(2.0)]), ([two], [other.t().contiguous().t()]),
                          ([one, two, three], [other, other, torch.tensor(1.0)]), ([three], [torch.tensor(1.0)])][which]
        return [one, two, three, *torch.autograd.grad(results, [x, weight], grads)]
    with TRIAL_CALLS.set(0):
        compiled = capture.compile(program, fullgraph=True, **{key: value for key, value in NATIVE.items() if key != "tolerance"})
        for n in (2, 5, 3, 1, 0, 7):
            for which in range(4):
                for ours, eager in zip(gradients(compiled, n, which), gradients(program, n, which), strict=True):
                    torch.testing.assert_close(ours, eager)
    assert capture.stats(compiled).captures == 2
