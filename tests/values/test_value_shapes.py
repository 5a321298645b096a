"""Shapes that depend on the values of tensors: passed on, printed and calculated with they are asked anew on every hit; where one
decides something, the trace is cut there. Never is one remembered."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture
from tests.helpers import call
from tests.helpers import check as check_calls

INPUTS = [(1.0, 2.0, -1.0), (1.0, -2.0, -1.0), (1.0, 1.0, 1.0), (-1.0, -1.0, -1.0), (3.0, 2.0, -1.0)]
PASSED_ON: dict[str, Callable[[torch.Size], Any]] = {
    "item": lambda s: s[0], "last": lambda s: s[-1], "unpacked": lambda s: (lambda a, b: (b, a))(*s),
    "iterated": lambda s: [i + 1 for i in s], "length": len, "numel": lambda s: s.numel(), "tuple": tuple, "list": list,
    "text": str, "formatted": lambda s: f"{s}", "itself": lambda s: s, "largest": max, "total": sum,
    "type": lambda s: (type(s).__name__, isinstance(s, tuple)), "reversed": lambda s: list(reversed(s)),
    "counted": lambda s: list(enumerate(s)), "zipped": lambda s: list(zip(s, s)), "calculated": lambda s: s[0] // 2 * 3 + 1,
    "compared": lambda s: s[0] > 1, "float": lambda s: float(s[0]), "starred": lambda s: [*s], "percent": lambda s: "%d %d" % s,
    "truth": lambda s: bool(s[0]), "not": lambda s: not s[0], "equal": lambda s: s == torch.Size((2, 2)),
    "member": lambda s: 1 in s, "rest": lambda s: s[1:], "backwards": lambda s: s[::-1], "joined": lambda s: s + (3,),
    "joined before": lambda s: (3,) + s, "joined with itself": lambda s: s + s, "twice": lambda s: s * 2}
DECIDING: dict[str, Callable[[torch.Size], Any]] = {
    "branch": lambda s: 5 if s[0] > 1 else 6, "truth": bool, "size": lambda s: torch.zeros(s[0]), "sizes": torch.ones,
    "slice": lambda s: torch.ones(4)[:s[0]], "range": lambda s: range(s[0]), "loop": lambda s: list(range(s[0])),
    "index": lambda s: [1, 2, 3, 4, 5][s[0]], "repeated": lambda s: [0] * s[0],
    "key": lambda s: {s[0]: 1}, "hash": lambda s: hash(s) == hash((2, 2)), "sorted": sorted, "divided": lambda s: divmod(s[0], 2),
    "counts": lambda s: s.count(2), "in a tensor": lambda s: torch.arange(6.0) + s.numel() / 2}


def check(use: Callable[[torch.Size], Any], make: Callable[[torch.Tensor], torch.Tensor]) -> capture.Stats:
    def program(x: torch.Tensor) -> Any:
        return use(make(x).shape), x + 1
    compiled = capture.compile(program, backend="eager")
    for values in INPUTS:
        x = torch.tensor(values)
        (expected, tensor), (got, computed) = program(x), compiled(x)
        assert type(got) is type(expected) and repr(got) == repr(expected)
        assert torch.equal(tensor, computed)
    return capture.stats(compiled)


@pytest.mark.parametrize("name", PASSED_ON)
def test_passed_on(name: str) -> None:
    stats = check(PASSED_ON[name], lambda x: torch.nonzero(x > 0))
    assert (stats.captures, stats.breaks, stats.graphs) == (1, 0, 1)


@pytest.mark.parametrize("make", [
    lambda x: x.unique(), lambda x: torch.unique(x), lambda x: x.unique(return_counts=True)[1], lambda x: x.unique_consecutive(),
    lambda x: torch.unique_consecutive(x), lambda x: torch.unique_consecutive(x, return_inverse=True)[0], lambda x: x[x > 0]])
def test_functions_written_in_python(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    stats = check(lambda s: (s[0], s.numel() * 2), make)
    assert (stats.captures, stats.breaks, stats.hits) == (1, 0, len(INPUTS) - 1)


@pytest.mark.parametrize("name", DECIDING)
def test_deciding(name: str) -> None:
    check(DECIDING[name], lambda x: torch.nonzero(x > 0))


def test_a_decision_is_no_guard_on_the_value() -> None:
    stats = check(DECIDING["branch"], lambda x: torch.nonzero(x > 0))
    assert stats.captures <= 3 and stats.breaks == 1 and stats.native_calls == 0


@pytest.mark.parametrize("name", ["size", "slice"])
def test_the_size_of_another_tensor(name: str) -> None:
    stats = check(DECIDING[name], lambda x: torch.nonzero(x > 0))
    assert (stats.captures, stats.breaks, stats.graphs) == (1, 0, 1)


def test_a_graph_convolution() -> None:
    """Without the loops that there are, and with one for each node: as libraries for graphs write it."""
    def program(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        loops = torch.arange(x.size(0)).repeat(2, 1)
        edges = torch.cat([edges[:, edges[0] != edges[1]], loops], 1)
        messages = x[edges[0]]
        index = edges[1].view((-1, *[1] * (messages.dim() - 1))).expand_as(messages)
        return messages.new_zeros(messages.size()[:0] + (x.size(0),) + messages.size()[1:]).scatter_add_(0, index, messages)
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    for seed in range(4):
        torch.manual_seed(seed)
        x, edges = torch.randn(5, 3), torch.randint(0, 5, (2, 12))
        assert torch.equal(compiled(x, edges), program(x, edges))
    assert capture.stats(compiled).captures == 1


def test_methods_of_the_tensor() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x[x > 0].view(-1, 1).repeat(1, 2)
        return y.numel(), len(y), y.size(0), y.size(), y.dim(), y.T.stride(), y.stride(0), y * 2
    compiled = capture.compile(program, backend="eager")
    for values in INPUTS:
        x = torch.tensor(values)
        expected, got = program(x), compiled(x)
        assert got[:-1] == expected[:-1] and torch.equal(got[-1], expected[-1])
    assert capture.stats(compiled).captures == 1


# --- across breaks: what a continuation is given

class Box:
    """Holds a tensor between two traces."""

    def __init__(self, kept: torch.Tensor) -> None:
        self.kept = kept


def decided(x):
    kept = x[x > 0]
    if len(kept) > 2:
        return kept * 2
    return kept + 1


def in_containers(x):
    kept = [x[x > 0], {"other": (x[x < 0],)}]
    if len(kept[0]) > 2:
        return kept[0] * 2, kept[1]["other"][0] + 1
    return kept[1]["other"][0].sum(), kept[0].cumsum(0)


def in_an_object(x):
    box = Box(x[x > 0])
    if box.kept.sum() > 2:
        return box.kept * 2
    return box.kept.neg()


def in_a_cell(x):
    kept = x[x > 0]

    def inner():
        return kept * 2
    if kept.sum() > 2:
        return inner() + kept
    return inner()


def deep(x):
    def inner(kept):
        if kept.sum() > 2:
            return kept * 2
        return kept - 1
    kept = x[x > 0]
    return inner(kept + 1) + kept


def shrinks(x):
    x = x.abs()
    while len(x) > 1:
        x = x[x > x.mean()]
    return x * 2


def passes_on(x):
    kept = x[x > 0]
    if kept.sum() > 2:
        kept = kept.view(-1, 1).expand(-1, 2)
    return kept, kept.shape, len(kept), f"{kept.numel()} of {x.numel()}", kept.is_contiguous()


def two_decisions(x):
    kept = x[x > 0]
    if len(kept) > 1:
        kept = kept * 2
    if kept.numel() > 2:
        kept = kept + 1
    return kept.sum() / len(kept) if len(kept) else kept.sum()


@capture.disable
def excluded(x):
    return x[x > 0]


def from_an_excluded_call(x):
    return (excluded(x) * 2).relu()


ACROSS = {decided: 3, in_containers: 3, in_an_object: 3, in_a_cell: 3, deep: 3, shrinks: 4, passes_on: 3, two_decisions: 7,
          from_an_excluded_call: 3}
VALUES = [torch.linspace(-k, 3, 8) for k in range(1, 9)]


@pytest.mark.parametrize(("program", "most"), [pytest.param(p, n, id=p.__name__) for p, n in ACROSS.items()])
def test_a_continuation_takes_tensors_of_any_shape(program, most) -> None:
    stats = check_calls(lambda: program, *map(call, VALUES), *map(call, VALUES), captures=None, fullgraph=False)
    assert stats.captures <= most and stats.native_calls == 0, stats


def test_an_attribute_that_outlives_the_call() -> None:
    def make():
        box = Box(torch.ones(1))

        def program(x):
            box.kept = x[x > 0]
            if box.kept.sum() > 2:
                return box.kept * 2
            return box.kept - 1
        return program, box
    stats = check_calls(make, *map(call, VALUES), captures=None, fullgraph=False)
    assert stats.captures <= 3, stats


def test_gradients_flow_through_them() -> None:
    def make():
        weight = torch.nn.Parameter(torch.arange(1.0, 9.0))

        def program(x):
            kept = (x * weight)[x > 0]
            if len(kept) > 6:
                return (kept ** 2).sum()
            return (kept * 3).sum()
        return program, weight
    stats = check_calls(make, *map(call, VALUES), captures=None, fullgraph=False, backward=True)
    assert stats.captures <= 3, stats


def test_the_number_of_dimensions_may_depend_on_values() -> None:
    def program(x):
        kept = x[x > 0].squeeze()
        return kept.dim(), kept * 2
    steps = call(torch.ones(3)), call(torch.tensor([1.0, -1.0])), call(torch.ones(3))
    check_calls(lambda: program, *steps, captures=None, fullgraph=False)


def test_rows_keep_their_length() -> None:
    def program(x):
        rows = torch.nonzero(x > 0).squeeze(1)
        return rows.dim(), rows * 2
    check_calls(lambda: program, call(torch.ones(3)), call(torch.tensor([1.0, -1.0])), call(torch.ones(4) * -1), captures=None)


def test_backends_of_fixed_shapes_are_not_given_them() -> None:
    given = []

    def backend(gm, example_inputs):
        given.append([tuple(x.shape) for x in example_inputs])
        return gm.forward
    compiled = capture.compile(decided, backend=backend)
    for x in VALUES:
        assert torch.equal(compiled(x), decided(x))
    assert given == [[(8,)]]        # the graph before the decision
    assert "tensors whose shapes change" in capture.explain(compiled)


def test_what_is_added_to_rows_that_values_choose_keeps_its_shape() -> None:
    def program(x):
        rows = torch.where(x > 0)[0]
        y = torch.zeros(8).index_add(0, rows, x[rows] * 2)
        return (y + 1 if y.shape[0] > 4 else y), y.scatter(0, rows, 3.0).view(y.shape[0] // 2, 2)
    check_calls(lambda: program, *map(call, VALUES))


# --- lengths that decide how often a loop runs

def counts_to_a_value(x):
    y = x
    for i in range(int(x.sum())):
        y = y * 2 + i
    return y


def walks_over_values(x):
    total = x
    for value in x[x > 1].tolist():
        total = total + value
    return total


def numbers_values(x):
    return [(i, x * value) for i, value in enumerate(x[x > 1].tolist())]


@pytest.mark.parametrize("program", [counts_to_a_value, walks_over_values, numbers_values], ids=lambda program: program.__name__)
def test_loops_as_long_as_values_say_do_not_recapture_for_each_length(program) -> None:
    values = [torch.tensor([2.0] * k + [0.0] * (9 - k)) for k in (3, 1, 5, 2, 7, 0, 4, 6, 8, 9)]
    stats = check_calls(lambda: program, *map(call, values), *map(call, values), captures=None, fullgraph=False)
    assert stats.native_calls == 0 and stats.captures <= 12, stats


SPLITS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "aten": lambda x, sizes: torch.ops.aten.split_with_sizes(x, sizes.tolist()),
    "computed": lambda x, sizes: torch.split(x, (sizes + 1 - 1).tolist()),
    "method": lambda x, sizes: x.T.split(sizes.tolist(), dim=1),
    "items": lambda x, sizes: torch.split(x, [sizes[0].item(), sizes[1].item(), sizes[2].item()]),
    "places": lambda x, sizes: torch.tensor_split(x, sizes.tolist()),
    "calculated with": lambda x, sizes: [part.sum(0) * 2 for part in x.split(sizes.tolist())]}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_tensors_split_by_sizes_that_a_tensor_holds(name: str, backend: str) -> None:
    def make() -> Any:
        split = SPLITS[name]

        def f(x: torch.Tensor, sizes: torch.Tensor) -> Any:
            return split(x * 2, sizes)
        return f
    x = torch.arange(12.0).view(6, 2).requires_grad_()
    calls = [call(x, torch.tensor(sizes)) for sizes in ((1, 2, 3), (1, 2, 3), (2, 2, 2), (0, 6, 0), (5, 1, 0))]
    options = {"backend": "native", "options": {"background": False}} if backend == "native" else {}
    check_calls(make, *calls, backward=True, **options)


def test_sizes_that_do_not_fit_raise_as_in_eager_mode() -> None:
    def make() -> Any:
        def f(x: torch.Tensor, sizes: torch.Tensor) -> Any:
            return x.split(sizes.tolist())
        return f
    x = torch.arange(12.0).view(6, 2)
    check_calls(make, *(call(x, torch.tensor(sizes)) for sizes in ((1, 2, 3), (1, 2, 4), (3, 2, 1))), hits=2)


def test_slices_with_bounds_that_follow_from_constants() -> None:
    """Tensors of one number of which the value is known (DeBERTa's span of attention): shapes do not depend on values."""
    table = torch.arange(40.0).view(20, 2)

    def program(x: torch.Tensor) -> Any:
        span = torch.tensor(min(x.shape[0], 9))
        rows = table[10 - span:10 + span, :]
        first, second = rows.chunk(2)
        return first + second * x.sum(), table[:span], rows.shape

    compiled = capture.compile(program, fullgraph=True)
    for size in (3, 3, 5, 3, 12, 12):
        for found, expected in zip(compiled(torch.ones(size)), program(torch.ones(size))):
            assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected
    assert capture.stats(compiled).hits == 3


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_types_and_devices_are_no_shapes(backend: str) -> None:
    """What a function of torch's says of the type or the device of a tensor is known, whatever its shape is: `MultiheadAttention`
    asks for that of its mask."""
    def make():
        torch.manual_seed(1)
        attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)

        def program(x, keep):
            y = x[:, keep]
            hidden = y[..., 0] > 1
            hidden[:, 0] = False
            attended = attention(y, y, y, key_padding_mask=hidden, need_weights=False)[0].sum()
            return (attended, torch.nn.functional._none_or_dtype(y), torch.result_type(y, 1), torch.result_type(hidden, y),
                    y.sum(1).to(torch.promote_types(y.dtype, torch.float64)))
        return program, attention
    x = torch.linspace(-2, 2, 40).view(2, 5, 4)
    keeping = [torch.tensor(keep).bool() for keep in ([1, 1, 0, 1, 0], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0])]
    options = {"options": {"background": False}} if backend == "native" else {}
    check_calls(make, *[call(x, keep) for keep in keeping], captures=1, backend=backend, tolerance=1e-5, **options)
