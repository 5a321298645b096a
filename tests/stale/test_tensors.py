"""What tensors tell of themselves besides type and shape, and may tell otherwise on the next call."""
from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch

import capture
from tests.helpers import call, call_with, check

Maker = Callable[[], torch.Tensor]


def rows() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)


def computed() -> torch.Tensor:
    return rows().requires_grad_() * 2


def retaining() -> torch.Tensor:
    tensor = computed()
    tensor.retain_grad()
    return tensor


def offset(x):
    return x * 2, x.storage_offset()


def offset_of_a_view(x):
    return x[1] * 2, x[1].storage_offset()


def offset_decides(x):
    return x + 1 if x.storage_offset() > 4 else x - 1


def offset_after_a_write(x):
    x.add_(1)
    return x.storage_offset(), x.view(-1).storage_offset()


def as_strided(x):
    return x.as_strided((2,), (1,), x.storage_offset() + 1), torch.as_strided(x, (1,), (1,), x[1].storage_offset())


def is_view(x):
    return x.detach() + 1 if x._is_view() else x.detach() - 1


def is_shared(x):
    return x + 1 if x.is_shared() else x - 1


def retains_grad(x):
    return x.detach() + 1 if x.retains_grad else x.detach() - 1


# The program, what it is called with first and then, and how many captures that takes, and the way back.
CASES: list[tuple[Callable, Maker, Maker, int]] = [
    (offset, lambda: rows()[:2], lambda: rows()[1:3], 1),
    (offset_of_a_view, lambda: rows()[:2], lambda: rows()[1:3], 1),
    (offset_decides, lambda: rows()[:2], lambda: rows()[2:], 2),
    (offset_after_a_write, lambda: rows()[:2], lambda: rows()[1:3], 1),
    (as_strided, lambda: rows()[:2], lambda: rows()[1:3], 2),
    (is_view, computed, lambda: computed().view(4, 3), 2),
    (is_shared, rows, lambda: rows().share_memory_(), 2),
    (retains_grad, computed, retaining, 2),
]


@pytest.mark.parametrize(("program", "first", "second", "captures"), CASES, ids=[case[0].__name__ for case in CASES])
def test_another_tensor_of_the_same_type_and_shape(program: Callable, first: Maker, second: Maker, captures: int) -> None:
    one, other = call_with(lambda state: (first(),)), call_with(lambda state: (second(),))
    check(lambda: program, one, one, other, other, one, captures=captures)


def retains_at_last(x):
    before = x.retains_grad
    x.retain_grad()
    return before, x.retains_grad, x.detach() * 2


def moves_to_shared_memory(x):
    before = x.is_shared()
    x.share_memory_()
    return before, x.is_shared(), x * 2


@pytest.mark.parametrize(("program", "make"), [(retains_at_last, computed), (moves_to_shared_memory, rows)])
def test_what_the_program_changes_itself(program: Callable, make: Maker) -> None:
    once = call_with(lambda state: (make(),))
    check(lambda: program, once, once, once, captures=None, fullgraph=False)


@pytest.mark.skipif(not hasattr(torch.Tensor, "refine_names"), reason="this version of torch has no named dimensions")
def test_named_dimensions() -> None:
    def program(x):
        return x.sum("C").shape, x.names, (x * 2).rename(None)
    compiled = capture.compile(program, backend="eager")
    for names in (("N", "C"), ("N", "C"), ("C", "N"), ("C", "N")):
        x = rows().refine_names(*names)
        assert repr(compiled(x)) == repr(program(x))


def test_a_generator_of_the_program_is_seeded() -> None:
    def make():
        state = types.SimpleNamespace(generator=torch.Generator().manual_seed(0))

        def program(x):
            return x + torch.rand(2, generator=state.generator), torch.randperm(3, generator=state.generator)
        return program, types.SimpleNamespace(of=state)
    check(make, call(torch.ones(2)), call(torch.ones(2)), lambda s: s.of.generator.manual_seed(0), call(torch.ones(2)),
          lambda s: setattr(s.of, "generator", torch.Generator().manual_seed(7)), call(torch.ones(2)),
          lambda s: s.of.generator.set_state(torch.Generator().manual_seed(3).get_state()), call(torch.ones(2)), captures=1)
