"""Arrays of numpy from outside: what numpy reads of them is guarded, and those that become tensors are read anew on each call."""
from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import capture
from tests.helpers import call, call_with, check
from tests.programs import NATIVE, Programs

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def a_state(array):
    return SimpleNamespace(array=array, scale=np.float32(2.5), count=np.int64(3))


def from_numpy(state, x):
    return x + torch.from_numpy(state.array)


def a_copy(state, x):
    return torch.tensor(state.array) + x, torch.tensor(state.array, dtype=torch.float64, requires_grad=True)


def as_a_tensor(state, x):
    return torch.as_tensor(state.array) + x, torch.as_tensor(state.array, dtype=torch.float64)


def of_the_type_of_another(state, x):
    return x.new_tensor(state.array) * x


def a_constructor_of_old(state, x):
    return torch.LongTensor(state.array) + x, torch.FloatTensor(state.array), torch.Tensor(state.array)


def itself(state, x):
    return torch.from_numpy(state.array), x * 2


def twice(state, x):
    first, second = torch.from_numpy(state.array), torch.from_numpy(state.array)
    return first, second, first is second, x


def its_shape(state, x):
    return x.expand(4, *state.array.shape[:0], *x.shape) * state.array.ndim * state.array.size, state.array.shape, len(state.array)


def its_values(state, x):
    return x * float(state.array[0]) + int(state.array.sum()), state.array.mean() > 1


def items(state, x):
    return [x * float(value) for value in state.array], [i for i, value in enumerate(state.array) if value > 1]


def computed_with(state, x):
    return x + torch.from_numpy(np.sqrt(state.array) * 2), torch.tensor(state.array.astype(np.int64)[::-1].copy())


def a_view_is_read(state, x):
    return x * state.array[1:].max().item()


def several(state, x):
    return torch.from_numpy(np.concatenate([state.array, state.array * 2])), x


def numbers(state, x):
    return x * state.scale + state.count, x * (state.scale / 2), int(state.count) + 1, x.expand(int(state.count), 2, 3)


def a_branch(state, x):
    if (state.array > 1).any():
        return x + 1
    return x - 1


def a_comparison_with_none(state, x):
    return x if state.array is None else x + torch.from_numpy(state.array)


PROGRAMS = [from_numpy, a_copy, as_a_tensor, of_the_type_of_another, a_constructor_of_old, itself, twice, its_shape, its_values,
            items, computed_with, a_view_is_read, several, numbers, a_branch, a_comparison_with_none]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_in_one_graph(program) -> None:
    def make():
        state = a_state(np.array([1.0, 2.0, 3.0], dtype=np.float32))
        return lambda x: program(state, x), state
    check(make, call(X), call(X), call(X + 1))


def write(state):
    state.array[0] = -7


def replace(state):
    state.array = np.array([0.5, 0.5, 0.25], dtype=np.float32)


def widen(state):
    state.array = state.array.astype(np.float64)


def stride(state):
    state.array = np.arange(6, dtype=np.float32)[::2]


def change_numbers(state):
    state.scale, state.count = np.float32(-1), np.int64(2)


@pytest.mark.parametrize("change", [write, replace, widen, stride, change_numbers], ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_after_a_change(program, change) -> None:
    def make():
        state = a_state(np.array([1.0, 2.0, 3.0], dtype=np.float32))
        return lambda x: program(state, x), state
    check(make, call(X), call(X), change, call(X), call(X), captures=None, fullgraph=False)


def test_what_becomes_a_tensor_is_not_guarded() -> None:
    def make():
        state = a_state(np.array([1.0, 2.0, 3.0], dtype=np.float32))
        return lambda x: x + torch.from_numpy(state.array), state
    check(make, call(X), call(X), write, call(X), replace, call(X), captures=1)


def test_an_array_that_is_another_on_each_call() -> None:
    """It gets a few traces of its own; then numpy reads it between two traces."""
    stats = check(lambda: lambda x, a: (x + 1) * float(a.sum()), *(call(X, np.full(3, n)) for n in range(12)), captures=None,
                  hits=None, fullgraph=False)
    assert stats.captures < 9 and stats.breaks > 0


def test_an_argument() -> None:
    check(lambda: lambda a: torch.from_numpy(a) * 2, call(np.ones(3)), call(np.zeros(3)), call(np.arange(3.0)), captures=1)


def test_an_index_is_guarded() -> None:
    def make():
        state = SimpleNamespace(rows=np.array([0, 1]), mask=np.array([True, False, True]))
        return lambda x: (x[state.rows] * 2, x[:, state.mask], x[:, np.array([2, 0])]), state
    check(make, call(X), call(X), lambda state: state.rows.__setitem__(0, 1), call(X), call(X), captures=2)


def written_as_a_tensor(state, x):
    tensor = torch.from_numpy(state.array)
    tensor.add_(x[0])
    return tensor * 2


def written_as_a_tensor_and_read(state, x):
    torch.from_numpy(state.array).add_(x[0])
    return x * float(state.array[0])


def read_and_written_as_a_tensor(state, x):
    first = float(state.array[0])
    torch.from_numpy(state.array).add_(x[0])
    return x * first


def an_overlapping_tensor_is_written(state, x):
    torch.from_numpy(state.array[1:]).mul_(2)
    return x + torch.from_numpy(state.array)


def written_by_numpy(state, x):
    before = torch.from_numpy(state.array) + x
    state.array[0] = 5
    np.add(state.array, 1, out=state.array)
    return before, torch.from_numpy(state.array) + x


def sorted_in_place(state, x):
    state.array.sort()
    return x + torch.from_numpy(state.array)


def written_through_a_view(state, x):
    view = state.array[1:]
    view[0] = 9
    return x * float(state.array[1])


def reshaped_in_place(state, x):
    state.array.shape = (1, 3)
    y = x + torch.from_numpy(state.array)
    state.array.shape = (3,)
    return y


def another_is_written(state, x):
    state.buffer.add_(1)
    return x * float(state.array[0]), state.buffer


@pytest.mark.parametrize("program", [written_as_a_tensor, written_as_a_tensor_and_read, read_and_written_as_a_tensor,
                                     an_overlapping_tensor_is_written, written_by_numpy, sorted_in_place, written_through_a_view,
                                     reshaped_in_place, another_is_written], ids=lambda f: f.__name__)
def test_memory_that_is_shared_is_never_mistaken(program) -> None:
    def make():
        state = SimpleNamespace(array=np.array([3.0, 2.0, 1.0], dtype=np.float32), buffer=torch.zeros(3))
        return lambda x: program(state, x), state
    check(make, call(X), call(X), call(X + 1), write, call(X - 1), captures=None, fullgraph=False)


def test_a_tensor_that_comes_to_lie_on_the_array() -> None:
    """The array was read beside a write to memory that was another's."""
    def make():
        state = SimpleNamespace(array=np.array([3.0, 2.0, 1.0], dtype=np.float32), buffer=torch.zeros(3))
        return lambda x: another_is_written(state, x), state
    check(make, call(X), call(X), lambda state: setattr(state, "buffer", torch.from_numpy(state.array)), call(X), call(X),
          captures=None, fullgraph=False)


def test_a_large_array_is_not_compared() -> None:
    def make():
        state = SimpleNamespace(array=np.zeros(100_000))
        return lambda x: (x + torch.from_numpy(state.array)[:3].float(), state.array[5].item()), state
    check(make, call(X), call(X), lambda state: state.array.__setitem__(5, 2), call(X), captures=None, fullgraph=False)


def test_arguments_share_memory_or_do_not() -> None:
    def program(a, b):
        torch.from_numpy(a).mul_(2)
        return torch.from_numpy(b) + 1

    def one(state):
        array = np.arange(4.0)
        return array, array

    def two(state):
        return np.arange(4.0), np.arange(4.0)

    def overlapping(state):
        array = np.arange(5.0)
        return array[:4], array[1:]
    check(lambda: program, call_with(two), call_with(two), call_with(one), call_with(one), call_with(overlapping),
          call_with(overlapping), captures=None, fullgraph=False)


def random_numbers(x):
    noise = torch.from_numpy(np.random.normal(0, 1, (2, 3)).astype(np.float32) if x.dim() == 7 else np.random.normal(0, 1, (2, 3)))
    return x + noise, noise


def random_numbers_of_old(x):
    return torch.FloatTensor(np.random.rand(2, 3)) * x + torch.tensor(np.random.randint(0, 5, (2, 3)))


def random_numbers_of_a_size(x):
    return x.sum() + torch.as_tensor(np.random.rand(*x.shape)), np.random.rand()


@pytest.mark.parametrize("program", [random_numbers, random_numbers_of_old, random_numbers_of_a_size], ids=lambda f: f.__name__)
def test_random_numbers_become_tensors(program) -> None:
    check(lambda: program, call(X), call(X), call(X + 1), captures=1)
    check(lambda: program, call(X), call(X), call(X + 1), call(torch.ones(3, 2)), captures=None, fullgraph=False)


def test_random_numbers_of_another_size() -> None:
    def make():
        state = SimpleNamespace(size=2)
        return lambda x: torch.from_numpy(np.random.rand(state.size)) + x.sum(), state
    check(make, call(X), call(X), lambda state: setattr(state, "size", 3), call(X), call(X), captures=2)


def test_a_number_that_is_another_on_each_call() -> None:
    stats = check(lambda: lambda x, n: (x * n, x + float(n)), *(call(X, np.float32(n)) for n in range(6)), captures=None, hits=None)
    assert stats.captures <= 3


# -- arrays on the memory of what the graph computes -------------------------------------------------------------------

computed = Programs()


@computed.add(X)
def statistics_of_a_result(x):
    y = (x * 2).detach().numpy()
    z = np.exp(y) + y.mean()
    rows = np.stack([z.astype(np.float32), y], axis=1)
    return rows, float(z.max()), z.shape, np.argsort(-y), y[0] * 2, y.T, x + 1


@computed.add(X)
def an_array_is_returned(x):
    y = x.relu()
    return y, y.numpy(), x.numpy(), y.detach().numpy()[1:]


@computed.add(X.clone().requires_grad_())
def arrays_of_what_requires_gradients(x):
    with torch.no_grad():
        y, mean = x.numpy(), (x.T * 2).numpy().mean()
        x.numpy()
    return y, mean, y * 2, x * 2


@computed.add(X.clone().requires_grad_())
def an_array_of_what_requires_gradients_becomes_a_tensor(x):
    with torch.no_grad():
        y = np.exp(x.numpy())
    return torch.from_numpy(y) + x


@computed.add(X)
def tensors_that_numpy_takes(x):
    return np.asarray(x * 2), np.asarray(x, dtype=np.float64), np.asarray(x.T, np.float32).mean(0), x + 1


@computed.add(X)
def numbers_that_were_drawn_are_computed_with(x):
    noise = np.random.rand(3) * 2 - 1
    return x * 2, noise.astype(np.float32).round(2), float(noise.sum()), np.clip(noise, 0, 1)


@computed.add(X)
def an_array_becomes_a_tensor_again(x):
    y = (x * 2).detach().numpy()
    z = np.exp(y) / np.exp(y).sum(axis=0)
    return torch.from_numpy(z * 3) + x


@computed.add(X, **NATIVE)
def an_array_that_is_written_to(x):
    y = (x * 2).detach()
    z = y.numpy()
    z[0] = 5.0
    z += 1
    return y * 2, z


@computed.add(X, **NATIVE)
def a_tensor_is_written_to_that_became_an_array(x):
    y = x * 2
    z = y.numpy()
    total = z.sum()
    y.add_(1)
    return y, z, total, y.numpy()


@computed.add(X, **NATIVE)
def an_array_decides(x):
    y = (x * 2).detach().numpy()
    if y.sum() > 3 and len(y) > 1:
        return x + y.shape[0]
    return x - 1


@computed.add(X, **NATIVE)
def numpy_raises(x):
    y = (x * 2).detach().numpy()
    try:
        return x, y.reshape(7)
    except ValueError as error:
        return x, str(error)


test_arrays_of_results = computed.test()


# -- dtypes: numpy has one object for each kind of plain elements ------------------------------------------------------

DTYPES = {"class": np.uint16, "text": "f4", "python": int, "object": object, "bytes of the other order": ">i4",
          "text of five": "U5", "record": "i4,f4", "date": "M8[ns]", "empty text": "U"}


@pytest.mark.parametrize("kind", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dtypes", [
    lambda x, kind: (np.dtype(kind), x + np.dtype(kind).itemsize),
    lambda x, kind: (x * 2, np.dtype(kind).newbyteorder("<"), np.zeros(2, kind).dtype, np.result_type(np.dtype(kind))),
    lambda x, kind: (x * np.dtype(kind).itemsize, np.dtype(kind) is np.dtype(kind), np.dtype(kind) == kind, {np.dtype(kind): 1}),
], ids=["returned", "derived", "compared"])
def test_a_dtype_is_the_object_that_numpy_has(dtypes, kind) -> None:
    """One that numpy makes anew for each call is another object on each call, here and in eager mode."""
    compiled = capture.compile(dtypes)
    for _ in range(3):
        given, expected, again = compiled(X, kind), dtypes(X, kind), dtypes(X, kind)
        assert repr(given) == repr(expected)
        for one, other, third in zip(given, expected, again, strict=True):
            if isinstance(one, np.dtype):
                assert type(one) is type(other) and one == other and (one is other) == (third is other)


def a_dtype_behind_a_break(x):
    kind = np.dtype(np.uint16)
    if time.perf_counter() < 0:
        return x, kind
    return x * kind.itemsize, kind


def test_a_dtype_behind_a_break() -> None:
    check(lambda: a_dtype_behind_a_break, call(X), call(X), call(X + 1), captures=2, hits=4, breaks=1, fullgraph=False)


def test_a_dtype_that_is_stored() -> None:
    def make():
        state = SimpleNamespace(kinds=[])
        return lambda x: (state.kinds.append(np.dtype("i8")), x.sum())[1], state
    check(make, call(X), call(X), call(X + 1), captures=1)


UNTOLD = {"date": lambda: np.datetime64("2020-01-02"), "duration": lambda: np.timedelta64(3, "D"), "bytes": lambda: np.void(b"ab"),
          "record": lambda: np.zeros(2, "i4,f4")[0], "records": lambda: np.zeros(2, "i4,f4"), "matrix": lambda: np.matrix([[1, 2]]),
          "dates": lambda: np.array(["2020-01-02"], "M8[D]"), "flat": lambda: np.arange(3).flat}
READINGS = ("isinstance(a, ({}, int))", "a.size", "a.base", "bool(a)", "list(a)", "next(iter(a))", "1 in a")


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("name", UNTOLD)
def test_what_no_guard_can_compare_is_read_natively(name, reading):
    """Dates, records, matrices and flat views: bytes do not tell all of them, or guards have no way to ask."""
    names = {}
    exec(f"def program(x, a):\n    try:\n        return x, {reading}\n    except Exception as error:\n"
         "        return x, type(error), str(error)", names)
    compiled = capture.compile(names["program"])
    for _ in range(2):
        assert repr(compiled(torch.ones(1), UNTOLD[name]())) == repr(names["program"](torch.ones(1), UNTOLD[name]()))
