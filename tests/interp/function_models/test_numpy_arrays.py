"""Numpy on constants: what it computes is a constant, what it is made of is guarded, tensors made of it are new each time."""
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers import call, check

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def division(x):
    return x / np.sqrt(x.shape[-1])


def left_operand(x):
    return np.float64(2.5) * x + np.float32(0.5) - np.int64(3)


def identity(x):
    eye = torch.from_numpy(np.array([1, 0, 0, 0, 1, 0, 0, 0, 1]).astype(np.float32)).view(3, 3)
    return x @ eye


def shape_arithmetic(x):
    shape = np.array(x.shape)
    shape[1] = 7
    return torch.zeros(tuple(shape)) + x.sum(), int(np.prod(shape)), x.view(int(np.ceil(x.shape[0] / 2)), -1)


def positions(x):
    grid = np.tile(np.array(range(x.shape[1])), [x.shape[0], 1])
    return x + torch.tensor(grid), x + torch.from_numpy(np.arange(3, dtype=np.float32)[None]), grid.shape


def branch(x):
    if np.max(np.array([1, 2, x.shape[0]])) > 2:
        return x * 2
    return x - 1


def linear_space(x):
    values = [float(v) for v in np.linspace(0, 1, x.shape[1])]
    return sum(x[:, i] * v for i, v in enumerate(values)), values, np.log2(8), len(np.zeros(4)), bool(np.any(np.eye(2)))


def meshes(x):
    rows, columns = np.meshgrid(np.arange(2), np.arange(3), indexing="ij")
    return x + torch.from_numpy(rows * columns), np.mgrid[:2, :2].sum().item()


def numbers(x):
    return x + 1, np.float64(0.1), np.int32(7), np.sqrt(2.0), np.bool_(True), np.round(2.567, 1)


def attributes(x):
    a = np.ones((2, 3), dtype=np.float32)
    return x * a.size, a.shape, a.T.shape, a.ndim, a.dtype == np.float32, a.sum().item(), a.tolist()


def mutated_before(x):
    a = np.zeros(3, dtype=np.float32)
    a[1:] += 2
    a.fill(a[2])
    t = torch.from_numpy(a)
    t.add_(x[0])
    return t * 2


PROGRAMS = [division, left_operand, identity, shape_arithmetic, positions, branch, linear_space, meshes, numbers, attributes,
            mutated_before]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_in_one_graph(program) -> None:
    check(lambda: program, call(X), call(X + 1), call(X - 1))


@pytest.mark.parametrize("program", [division, shape_arithmetic, branch, positions], ids=lambda f: f.__name__)
def test_another_shape_is_another_constant(program) -> None:
    check(lambda: program, call(X), call(torch.ones(4, 3)), call(X), call(torch.zeros(4, 3)), captures=2)


def test_what_enters_is_guarded() -> None:
    def make():
        state = SimpleNamespace(size=4)
        return lambda x: x * np.sqrt(state.size) + int(np.array([state.size, 1]).max()), state
    check(make, call(X), call(X), lambda s: setattr(s, "size", 9), call(X), lambda s: setattr(s, "size", 4), call(X), captures=None)


def test_a_tensor_made_of_an_array_is_new_each_time() -> None:
    def program(x):
        t = torch.from_numpy(np.zeros(3, dtype=np.float32))
        return t.add_(x[0])
    check(lambda: program, call(X), call(X), call(X + 1))


def shared_then_written(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.from_numpy(a)
    a[0] = 5
    return t + x


def shared_view_written(x):
    a = np.zeros(3, dtype=np.float32)
    view = a[1:]
    t = torch.from_numpy(a)
    view[0] = 5
    return t + x


def written_then_read(x):
    a = np.zeros(3, dtype=np.float32)
    torch.from_numpy(a).add_(x[0])
    return x * float(a[1])


def restored(x):
    a = np.zeros(3, dtype=np.float32)
    view, t = a[1:], torch.from_numpy(a)
    t.add_(x[1])
    read = float(view[0])
    t.zero_()
    return x * read


def crosses_twice(x):
    a = np.zeros(3, dtype=np.float32)
    torch.from_numpy(a).add_(x[0])
    return torch.from_numpy(a) * 2


def escaping(x):
    return x + 1, np.arange(3)


@pytest.mark.parametrize("program",
                         [shared_then_written, shared_view_written, written_then_read, restored, crosses_twice, escaping],
                         ids=lambda f: f.__name__)
def test_memory_that_is_shared_is_never_mistaken(program) -> None:
    check(lambda: program, call(X), call(X + 1), call(X - 1), captures=None, fullgraph=False)


def test_arrays_that_outlive_the_call_are_new_each_time() -> None:
    def make():
        state = SimpleNamespace(table=None, size=3)

        def program(x):
            grid = np.arange(2 * state.size).reshape(2, state.size) * 2.5
            grid[0, 1] = -0.0
            state.table = np.asfortranarray(np.ones((2, 2)))
            return x + 1, grid, [np.array([state.size, 1]), np.zeros(0)], np.float32(2) * state.size
        return program, state

    def write(state):
        state.table[0, 1] = 7
    check(make, call(X), write, call(X), write, call(X), lambda state: setattr(state, "size", 4), call(X), call(X), captures=2)


@pytest.mark.parametrize("shared", [lambda a: (a, a[1:]), lambda a: (a, torch.from_numpy(a)), lambda a: (a, torch.as_tensor(a)[1:]),
                                    lambda a: (print(a), a.fill(5), a)], ids=["view", "tensor", "slice", "shown"])
def test_arrays_that_share_their_memory_with_others(shared) -> None:
    def make():
        state = SimpleNamespace(kept=None)

        def program(x):
            state.kept = shared(np.arange(3.0) * 2)
            return x + 1
        return program, state

    def write(state):
        state.kept[-1].fill(9) if isinstance(state.kept[-1], np.ndarray) else state.kept[0].fill(9)
    check(make, call(X), write, call(X), write, call(X), captures=None, fullgraph=False)


def test_a_truth_value_that_is_computed_is_not_one_from_outside() -> None:
    def make():
        state = SimpleNamespace(flag=np.True_, other=np.False_)
        return lambda x: (x + 1, state.flag, state.other, np.any(np.ones(2)), np.all(np.zeros(2))), state

    def change(state):
        state.flag, state.other = np.False_, np.True_
    check(make, call(X), call(X), change, call(X), call(X), captures=None)


def test_arrays_from_outside_are_no_constants() -> None:
    def make():
        state = SimpleNamespace(offsets=np.array([0, 1]))
        return lambda x: x[:, state.offsets.sum().item()], state
    check(make, call(X), call(X), lambda s: s.offsets.__setitem__(1, 2), call(X), captures=None, fullgraph=False)


def test_random_positions_are_drawn_each_time() -> None:
    def program(x):
        columns = np.random.choice(3, 2, replace=False)
        y = x.clone()
        y[:, np.random.permutation(3)] = x
        return x[:, columns], x[np.random.randint(0, 2, (2, 2))], y, np.random.rand()
    check(lambda: program, *[call(X)] * 4)


def test_random_numbers_of_numpy_are_drawn_each_time() -> None:
    check(lambda: lambda x: x * float(np.sqrt(np.random.rand())), call(X), call(X), call(X), captures=None, fullgraph=False)


class Selects(torch.nn.Module):
    """Channels by a mask, as pruned networks do."""

    def __init__(self):
        super().__init__()
        self.mask = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        chosen = np.squeeze(np.argwhere(self.mask.data.cpu().numpy()))
        if chosen.size == 1:
            chosen = np.resize(chosen, (1,))
        return x[:, chosen], self.mask.detach().numpy().shape


def test_what_parameters_hold_is_guarded_where_numpy_reads_it() -> None:
    def prune(module):
        module.mask.data[1:] = 0

    def restore(module):
        module.mask.data.fill_(1)
    check(Selects, call(X), call(X), prune, call(X), call(X), restore, call(X), captures=2)


def test_an_array_on_a_parameter_that_was_written_to_is_not_read() -> None:
    class Writes(Selects):
        def forward(self, x):
            before = super().forward(x)
            self.mask.data[0] = 0
            return before, super().forward(x)
    check(Writes, call(X), call(X), call(X), captures=None, fullgraph=False)


def test_an_array_on_a_tensor_that_follows_from_constants() -> None:
    def program(x):
        t = torch.tensor([2.0, 3.0])
        a = t.numpy()
        total = float(a.sum())
        t.add_(1)
        return x * total, x + float(torch.tensor(0, dtype=x.dtype).numpy().dtype.itemsize), float(a.sum())
    check(lambda: program, call(X), call(X), captures=None, fullgraph=False)


def of_results(expression):
    """A program that computes with the numbers of an array on the memory of a tensor."""
    return eval(f"lambda x, t: (lambda n: {expression})(t.numpy())", {"torch": torch, "np": np})


@pytest.mark.parametrize("expression", [
    "(x, 1 - n[0] / 40)", "(x, n[0] / 40 - 1, -n[1])", "(x, -(n[0] / 3))", "(x, [1.5 * (n[0] / 3)])", "(x, str(1 - n[0] / 40))",
    "(x, n[0] * 1.5 + n[1])", "x * (1 - n[0] / 40)", "torch.tensor([1 - n[0] / 40])", "torch.full((2,), 1 - n[0] / 40)",
    "(x, abs(n[0] / 3) // 2, divmod(n[1] / 2, 3))", "(x, max(n[0] / 2, n[1] / 3), sorted([n[1] / 2, n[0] / 2]))"])
def test_numbers_computed_from_results_are_computed_on_every_hit(expression) -> None:
    check(lambda: of_results(expression), *(call(torch.ones(2), torch.tensor([k, 3 - k])) for k in (1, 2, 1, 0)),
          fullgraph=False, captures=None)


NUMBERS = [np.float64(1.5), np.float64(2.5), np.float32(0.1), np.int16(3), np.int64(4), np.float16(2), 1.5, 2]


@pytest.mark.parametrize("program", [
    lambda x, n: torch.tensor([n]), lambda x, n: torch.tensor([[n, 1], [2.0, n]]), lambda x, n: torch.as_tensor((n, True)),
    lambda x, n: torch.asarray([n]) + x, lambda x, n: torch.tensor(n), lambda x, n: torch.tensor([n], dtype=torch.float32),
    lambda x, n: torch.tensor([n, x[0].item()]), lambda x, n: torch.tensor([x[0], n]), lambda x, n: x.new_tensor([n])])
def test_tensors_of_numbers_are_of_their_type(program) -> None:
    check(lambda: program, *(call(torch.ones(1), n) for n in NUMBERS), fullgraph=False, captures=None)
