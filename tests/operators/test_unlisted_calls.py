"""Operations by names, overloads and arguments that nobody thinks of: what follows from values is never remembered, and what
changes a tensor itself is noticed."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import call, call_with, check

aten = torch.ops.aten
NATIVE = {"backend": "native", "options": {"background": False}}
VALUES = [torch.tensor([1.0, 2, -1, -3]), torch.tensor([1.0, -2, -1, -3]), torch.tensor([1.0, 2, 3, -1])]
ROWS = [torch.tensor([[1.0, 2], [3, 4], [-1, 2]]), torch.tensor([[1.0, 2], [-3, 4], [-1, 2]]), torch.tensor([[1.0, 2], [3, 4],
        [1, 2]])]
COUNTS = [torch.tensor(3), torch.tensor(2), torch.tensor(1), torch.tensor(3)]


@torch.library.custom_op("facts::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("facts::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("facts::undeclared", mutates_args=())
def undeclared(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


LIBRARY = torch.library.Library("facts_plain", "DEF")
LIBRARY.define("positive(Tensor x) -> Tensor")
LIBRARY.impl("positive", lambda x: x[x > 0].clone(), "CPU")
LIBRARY.define("parts(Tensor x) -> Tensor[]")
LIBRARY.impl("parts", lambda x: [part.clone() for part in x[x > 0].unbind()], "CPU")


@torch.jit.script
def masked_by_script(x):
    return x[x > 0]


@torch.jit.script
def index(x):
    return x[x > 0]


class Sizes:
    @staticmethod
    def new() -> Any:
        return torch.library.get_ctx().new_dynamic_size()


@torch.library.custom_op("facts_test::by_method", mutates_args=())
def sized_by_method(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@torch.library.custom_op("facts_test::by_operator", mutates_args=())
def sized_by_operator(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@torch.library.custom_op("facts_test::where", mutates_args=())
def wrongly_sized(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


sized_by_method.register_fake(lambda x: x.new_empty(Sizes.new()))
sized_by_operator.register_fake(lambda x: x[x > 0])
wrongly_sized.register_fake(torch.empty_like)


@torch.library.triton_op("facts_test::triton", mutates_args=())
def of_triton(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


OF_VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "overload": lambda x: aten.nonzero.default(x > 0), "packet": lambda x: aten.nonzero(x > 0),
    "masked_select": lambda x: aten.masked_select.default(x, x > 0), "index": lambda x: aten.index.Tensor(x, [x > 0]),
    "packet of index": lambda x: aten.index(x, [x > 0]), "mask in a list": lambda x: x[[x > 0]],
    "private": lambda x: torch._unique2((x > 0).long())[0], "inverse": lambda x: torch.unique_consecutive(x > 0),
    "another library's": positive, "undeclared": undeclared, "without a kernel": lambda x: torch.ops.facts_plain.positive(x),
    "packet of a library": lambda x: torch.ops.facts_plain.positive.default(x), "script": masked_by_script,
    "script of an operator's name": index, "sized by a method": sized_by_method, "sized by an operator": sized_by_operator,
    "wrongly sized": wrongly_sized, "triton": of_triton}


@pytest.mark.parametrize("backend", [{}, NATIVE], ids=["eager", "native"])
@pytest.mark.parametrize("name", OF_VALUES)
def test_shapes_that_follow_from_values(name: str, backend: dict[str, Any]) -> None:
    """They are asked for on each hit."""
    def make():
        def program(x):
            found = OF_VALUES[name](x)
            return found.shape, found.shape[0] + 1, found, x + 1
        return program
    check(make, *map(call, VALUES), fullgraph=False, **backend)


def test_another_library_declares_shapes() -> None:
    """A kernel for tensors without data that makes up no sizes tells that shapes may be constants."""
    def make():
        return lambda x: doubled(x) if doubled(x).shape[0] > 3 else x
    check(make, *map(call, VALUES), graphs=1)


def test_the_parts_that_another_library_returns() -> None:
    def make():
        def program(x):
            parts = torch.ops.facts_plain.parts(x)
            return len(parts), parts, x + 1
        return program
    check(make, *map(call, VALUES), captures=None, fullgraph=False)


# Whatever takes an integer may be given a tensor of one.
OF_COUNTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "logspace": lambda x, n: torch.logspace(0, 1, n), "linspace": lambda x, n: torch.linspace(0, 1, n),
    "range": lambda x, n: torch.range(0, n), "range of floats": lambda x, n: torch.range(0, n / 2),
    "arange": lambda x, n: torch.arange(n), "arange of floats": lambda x, n: torch.arange(0, n / 2, 0.5),
    "hann_window": lambda x, n: torch.hann_window(n), "kaiser_window": lambda x, n: torch.kaiser_window(n),
    "tril_indices": lambda x, n: torch.tril_indices(n, n), "eye": lambda x, n: torch.eye(n),
    "zeros": lambda x, n: torch.zeros(2, n),
    "fftfreq": lambda x, n: torch.fft.fftfreq(n), "rfft": lambda x, n: torch.fft.rfft(x, n),
    "vander": lambda x, n: torch.vander(x[0], n),
    "diagonal": lambda x, n: torch.diagonal(x, n), "diag": lambda x, n: x.diag(n),
    "diag_embed": lambda x, n: torch.diag_embed(x, n),
    "combinations": lambda x, n: torch.combinations(x[0], n), "rot90": lambda x, n: torch.rot90(x[:5], n),
    "narrow_copy": lambda x, n: torch.narrow_copy(x, 0, 0, n), "narrow": lambda x, n: x.narrow(0, n, 2),
    "sum": lambda x, n: x[:5].sum(n - 2), "sum over dims": lambda x, n: x[:5].sum(dim=[n - 2]),
    "amax": lambda x, n: x[None, 1:].amax(n - 1),
    "squeeze": lambda x, n: x[None].squeeze(n - 1), "unsqueeze": lambda x, n: x.unsqueeze(n - 1),
    "movedim": lambda x, n: torch.movedim(x[None], 0, n - 1), "unflatten": lambda x, n: x.unflatten(0, (n, -1)),
    "as_strided": lambda x, n: torch.as_strided(x, (n,), (1,)), "histc": lambda x, n: torch.histc(x, n),
    "max_pool1d": lambda x, n: F.max_pool1d(x[None], n), "avg_pool1d": lambda x, n: F.avg_pool1d(x[None], n),
    "conv1d": lambda x, n: F.conv1d(x[None], x[:, :, None], stride=n), "pad": lambda x, n: F.pad(x, (0, n)),
    "chunks": lambda x, n: x.tensor_split(n), "roll": lambda x, n: x.roll(n), "select": lambda x, n: x.select(0, n),
    "cumsum": lambda x, n: x[None].cumsum(n - 1), "overload": lambda x, n: aten.sum.dim_IntList(x[:5], [n - 2]),
    "varargs": lambda x, n: x[:, :3].permute(n // 2, 1 - n // 2), "repeated": lambda x, n: x.repeat(n, 1),
    "view": lambda x, n: x.view(n * 2, -1),
    "bincount": lambda x, n: torch.bincount(x[0].long(), None, n)}


@pytest.mark.parametrize("name", OF_COUNTS)
def test_integers_that_tensors_hold(name: str) -> None:
    x = torch.arange(36.0).reshape(6, 6)

    def make():
        def program(x, n):
            found = OF_COUNTS[name](x, n)
            return [part.shape for part in found] if isinstance(found, tuple) else (found.shape, found.dim()), found, x + 1
        return program
    check(make, *(call(x, n) for n in COUNTS), captures=None, fullgraph=False)


def test_integers_of_the_traces_own() -> None:
    """A tensor of a constant is one."""
    def make():
        return lambda x: (torch.hann_window(torch.tensor(3)) + x, torch.diagonal(x, torch.tensor(1)).shape)
    check(make, call(torch.ones(3, 3)), call(torch.zeros(3, 3)), graphs=1)


LISTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "unbind_copy": torch.unbind_copy, "split_copy": lambda y: torch.split_copy(y, 1), "packet": lambda y: aten.unbind(y),
    "overload": lambda y: aten.unbind.int(y), "split": lambda y: torch.functional.split(y, 1),
    "squeeze_copy": lambda y: [torch.squeeze_copy(y, 0)],
    "overload of squeeze": lambda y: [aten.squeeze.dim(y, 0)], "dims": lambda y: torch.where(y > 1),
    "tuple": lambda y: y.nonzero(as_tuple=True), "broadcast": lambda y: torch.broadcast_tensors(y, y)}


@pytest.mark.parametrize("name", LISTS)
def test_how_many_tensors(name: str) -> None:
    """The rows that a mask takes say how many tensors, or dimensions, there are."""
    def make():
        def program(x):
            found = LISTS[name](x[x[:, 0] > 0])
            return len(found), [part.dim() for part in found], x + 1
        return program
    check(make, *map(call, ROWS), captures=None, fullgraph=False)


RELAYING: dict[str, Callable[[torch.Tensor], Any]] = {
    "method": lambda x: x.as_strided_((2,), (1,), 1), "function": lambda x: torch.as_strided_(x, (2,), (1,), 1),
    "packet": lambda x: aten.as_strided_(x, (2,), (1,), 1), "overload": lambda x: aten.as_strided_.default(x, (2,), (1,), 1),
    "set_": lambda x: aten.set_.source_Tensor(x, torch.ones(3)), "resize_": lambda x: aten.resize_.default(x, (3,))}


def test_a_sum_grows_in_place() -> None:
    """`addbmm_` gives a tensor of size 1 another shape, which no copy of its memory takes back."""
    def make():
        total = torch.zeros(1)

        def program(x):
            print("begins")
            total.addbmm_(x, x)
            return torch.linalg.cholesky(total), total.shape
        return program, total
    check(make, call(torch.eye(2)[None]), call(torch.eye(2)[None]), call(-torch.eye(2)[None]), captures=None, hits=None,
          fullgraph=False)


@pytest.mark.parametrize("name", RELAYING)
def test_where_a_tensor_lies_once_it_has_other_memory(name: str) -> None:
    def make():
        def program(x):
            RELAYING[name](x)
            return x.storage_offset(), x + 1
        return program

    def inside(state):
        return (torch.arange(8.0)[2:],)
    check(make, call_with(inside), call_with(inside), captures=None, fullgraph=False)


def test_statistics_that_count_no_version() -> None:
    """What the trace reads of them before and after are different things."""
    def make():
        mean, var = torch.zeros(3), torch.ones(3)

        def program(x):
            before = mean + 0
            out = aten.native_batch_norm.default(x, None, None, mean, var, True, 0.5, 1e-5)[0]
            return before, out, mean + 0, (mean.sum() > 100) & (var.sum() > 0), mean
        return program, (mean, var)
    check(make, *(call(torch.arange(12.0).reshape(4, 3) * n) for n in range(1, 4)))


def statistics_that_are_shown(x, state):
    mean, var = state
    text = str(mean)
    with torch.no_grad():
        F.batch_norm(x, mean, var, training=True)
    return text, mean * 1


def one_tensor_for_both(x, state):
    mean, _ = state
    with torch.no_grad():
        F.batch_norm(x, mean, mean, training=True)
    return mean * 1


def statistics_before_what_fails(x, state):
    with torch.no_grad():
        F.batch_norm(x, *state, training=True)
    return torch.linalg.cholesky(x[:3])


@pytest.mark.parametrize("program", [statistics_that_are_shown, one_tensor_for_both, statistics_before_what_fails],
                         ids=lambda program: program.__name__)
@pytest.mark.parametrize("backend", [{}, NATIVE], ids=["eager", "native"])
def test_statistics_that_require_gradients(program, backend) -> None:
    """They are written to where no gradients are recorded."""
    def make():
        state = torch.zeros(3).requires_grad_(), torch.ones(3).requires_grad_()
        return (lambda x: program(x, state)), state
    check(make, *(call(torch.eye(4, 3) * n) for n in (1, 2, 3, -1, 4)), captures=None, fullgraph=False, tolerance=1e-6, **backend)
