"""Arrays of numpy in the graph: tensors made of what numpy computes of tensors, and writes to such arrays."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.functions.compare import NATIVE, Case, examine
from tests.helpers import call, check

OUTSIDE = np.arange(4.0).astype(np.float32)
X = torch.tensor([[3.0, 1, 2, 5], [7, 2, 6, 4], [1, 8, 9, 2]])
ONE_GRAPH: dict[str, Callable[..., Any]] = {}
IN_PARTS: dict[str, Callable[..., Any]] = {}


def one_graph(program: Callable[..., Any]) -> Callable[..., Any]:
    """A program that is one graph."""
    ONE_GRAPH[program.__name__] = program
    return program


def in_parts(program: Callable[..., Any]) -> Callable[..., Any]:
    """A program whose trace ends where a call after the graph would see another state, or its results decide."""
    IN_PARTS[program.__name__] = program
    return program


@one_graph
def alias_write(x):
    t = torch.from_numpy(x.numpy())
    t += 1
    return t, x * 2


@one_graph
def array_write_outside(x):
    a = x.numpy()
    a += 1
    return x * 2, a


@one_graph
def scalar_before_write(x):
    a = (x * 2).numpy()
    s = a.sum()
    a += 1
    return s, a


@in_parts
def float_before_write(x):
    a = (x * 2).numpy()
    s = float(a.sum())
    a += 1
    return s, a


@one_graph
def roundtrip(x):
    y = x * 2
    a = y.numpy()
    t = torch.from_numpy(a)
    t += 1
    return y, a, t, y.sum()


@one_graph
def mean_sub(x):
    a = x.numpy()
    m = a.mean()
    return torch.from_numpy(a - m), m


@in_parts
def print_before_write(x):
    a = (x * 2).numpy()
    print(a)
    a += 1
    return torch.from_numpy(a)


@one_graph
def uniq(x):
    return torch.from_numpy(np.unique((x > 3).numpy())) , x+1


@one_graph
def uniq2(x):
    return torch.from_numpy(np.unique((x[0]).numpy())) .float().sum()


@one_graph
def mask_assign(x):
    a = (x * 1).numpy()
    a[a > 2] = 0
    return torch.from_numpy(a)


@one_graph
def view_write(x):
    y = x * 2
    a = y.numpy()
    r = a[0]
    r[:] = 5
    return y, a, r


@one_graph
def item_around(x):
    y = x * 2
    v = y.sum().item()
    a = y.numpy()
    a += 1
    w = y.sum().item()
    return v, w, y


@one_graph
def shown_tensor(x):
    y = x * 2
    print(y)
    a = y.numpy()
    a += 1
    return y


@one_graph
def two_views(x):
    a, b = x.numpy(), x[1:].numpy()
    a += 1
    b *= 2
    return x.clone(), a, b, torch.from_numpy(b)


@one_graph
def split_write(x):
    a, b = np.split((x * 2).numpy(), 2, axis=1)
    a += 1
    return a, b, torch.from_numpy(b)


@one_graph
def inv(x):
    return torch.from_numpy(np.linalg.inv(x[:2,:2].numpy()))


@one_graph
def outside(x):
    return torch.from_numpy(x.numpy() + OUTSIDE)


@in_parts
def rnd(x):
    return torch.from_numpy(x.numpy() * np.random.rand(4).astype(np.float32))


@one_graph
def pending_effect(x):
    y = x * 2
    a = y.numpy()
    t = torch.from_numpy(a)
    b = a.sum(0)
    t += 1
    c = a.sum(0)
    return b, c, t


@in_parts
def pending_scalar(x):
    y = x * 2
    a = y.numpy()
    t = torch.from_numpy(a)
    b = a.sum()
    t += 1
    c = a.sum()
    return b, c, t


@one_graph
def fill_scalar(x):
    a = (x * 2).numpy()
    m = a.max()
    a.fill(m)
    return torch.from_numpy(a)


@one_graph
def fresh(x):
    a = x.numpy()
    b = np.zeros_like(a)
    b[1:] = a[:-1]
    b += a
    return torch.from_numpy(b), b


@in_parts
def const_arr(x):
    c = np.arange(4, dtype=np.float32)
    c += x.numpy()[0]
    return torch.from_numpy(c), c


@in_parts
def const_ret(x):
    c = np.arange(4, dtype=np.float32)
    d = np.broadcast_arrays(c, x.numpy())[0]
    return d, c, torch.from_numpy(x.numpy() * c)


@in_parts
def torch_write_exposed(x):
    y = x * 2
    a = y.numpy()
    y += 1
    return torch.from_numpy(a), a


@one_graph
def write_then_numpy(x):
    y = x * 2
    y += 1
    a = y.numpy()
    t = torch.from_numpy(a)
    y += 1
    return t, y


@one_graph
def outside_written_then(x):
    x += 1
    a = x.numpy()
    a *= 2
    x += 1
    return torch.from_numpy(a), x.sum()


@one_graph
def held_flag(x):
    n = torch.tensor(3)
    a = n.numpy()
    return torch.from_numpy(a) + x


@one_graph
def noncontig(x):
    return torch.from_numpy(x.T.numpy()), torch.from_numpy(np.flip(x.numpy(), 0).copy()), x.T.numpy()[::2]


@in_parts
def ret_shape(x):
    a = x.numpy() * 2
    return a.shape, a.dtype, a.ndim, torch.from_numpy(a.reshape(a.shape[0], -1))


@in_parts
def branch_shape(x):
    a = x.numpy() * 2
    return torch.from_numpy(a) if a.shape[0] == 3 else x


@one_graph
def len_loop(x):
    a = x.numpy()
    return [torch.from_numpy(a[i]) for i in range(len(a))]


@one_graph
def detach_grad(x):
    w = x.clone().requires_grad_()
    a = w.detach().numpy()
    a += 1
    return (w * 2).sum(), a


@one_graph
def dup_out(x):
    a = x.numpy()
    b = np.empty_like(a)
    np.multiply(a, 2, out=b)
    np.add(b, a, b)
    return torch.from_numpy(b)


@one_graph
def masked_shape(x):
    a = x.numpy()
    return torch.from_numpy(a[a > 3]).sum(), x+1


@one_graph
def masked_shape2(x):
    a = (x.flip(1)).numpy()
    return torch.from_numpy(a[a[:, 0] > 3]) , x+1


@in_parts
def setshape(x):
    a = (x * 2).numpy()
    t = torch.from_numpy(a)
    a.shape = (12,)
    return a, t


@one_graph
def tensor_copy(x):
    a = (x * 2).numpy()
    t = torch.tensor(a)
    a += 1
    return t, torch.as_tensor(a), a


@one_graph
def swap_rows(x):
    a = x.numpy().copy()
    a[0], a[1] = a[1].copy(), a[0].copy()
    return torch.from_numpy(a)


@one_graph
def inplace_loop(x):
    a = (x * 1).numpy()
    for i in range(3):
        a[i] *= i
    return torch.from_numpy(a).sum(0)


@one_graph
def list_store(x):
    a = x.numpy()
    kept = [a, a + 1]
    kept.append(np.stack(kept))
    return kept, torch.from_numpy(kept[2])


@one_graph
def view_memory(x):
    y = x * 2
    a = y.numpy()
    t = torch.from_numpy(a)[1:]
    y.mul_(3)
    return t, a.sum(), y


@one_graph
def iadd_int(x):
    a = x.numpy()
    a -= a.min()
    a /= a.max()
    return torch.from_numpy(a)


@one_graph
def of_a_type(x):
    a = x.numpy()
    whole = np.asarray(np.where(a > 2, 1, 0), dtype=int).astype("uint8")
    return torch.from_numpy(a.astype(np.float64)), torch.from_numpy(whole), torch.from_numpy((a > 2).astype(np.dtype("int16")))


@one_graph
def of_the_type_of_another(x):
    a = x.numpy()
    small = (a * 255).astype(np.uint8)
    made = np.zeros((2, 2), dtype=small.dtype)
    return torch.from_numpy(small.astype(a.dtype) / 255), torch.from_numpy(made), small.astype(a.dtype)


@one_graph
def number_as_operand(x):
    a = x.numpy()
    return x * np.mean(a), x + a.max() - 1, a.std() * a, torch.tensor(np.mean(a)), torch.as_tensor(a[0, 1])


@one_graph
def number_before_a_write(x):
    y = x * 2
    a = y.numpy()
    largest = a.max()
    scaled = x / largest
    a[0] = 0
    return scaled, a.max() * x, torch.clamp(x, a.min(), largest), x * float(np.mean(a)), x + int(a.argmax())


@pytest.mark.parametrize("name", ONE_GRAPH)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_one_graph(name: str, backend: str) -> None:
    finding = examine(Case(name, ONE_GRAPH[name], (X,)), **(NATIVE if backend == "native" else {}))
    assert finding is None, finding


@pytest.mark.parametrize("name", IN_PARTS)
def test_in_parts(name: str) -> None:
    calls = [call(X), call(X), call(X.flip(0)), call(X.roll(1))]
    check(lambda: IN_PARTS[name], *calls, captures=None, fullgraph=False)


def test_a_layout_that_depends_on_values_is_looked_at() -> None:
    def make() -> Any:
        def f(x: torch.Tensor) -> Any:
            return torch.from_numpy(np.unique(x.numpy())), x + 1
        return f
    check(make, call(torch.tensor([1.0, 2, 2])), call(torch.tensor([3.0, 2, 2])), call(torch.tensor([1.0, 2, 3])),
          call(torch.tensor([1.0, 1, 1])), call(torch.tensor([5.0, 1, 1])))


def test_a_number_of_another_type_is_looked_at() -> None:
    def make() -> Any:
        def f(x: torch.Tensor) -> Any:
            y = x + 1
            return x * np.emath.sqrt(y.sum().numpy()), y
        return f
    check(make, call(torch.ones(2)), call(torch.zeros(2)), call(torch.tensor([1.0, -9])), call(torch.ones(2)))


def test_an_exception_of_numpy_is_raised_as_in_eager_mode() -> None:
    def make() -> Any:
        state: list[str] = []

        def f(x: torch.Tensor) -> Any:
            x += 1
            state.append("before")
            return torch.from_numpy(np.linalg.inv(x.numpy()))
        return f, state
    good, singular = torch.tensor([[1.0, 2], [3, 7]]), torch.tensor([[1.0, 1], [1, 1]])
    check(make, call(good), call(good), call(singular), call(good * 2), hits=3)


def test_arrays_from_outside_may_change() -> None:
    def make() -> Any:
        mean = np.ones(4, dtype=np.float32)

        def f(x: torch.Tensor) -> Any:
            return torch.from_numpy((x.numpy() - mean) / 2)
        return f, mean

    def change(mean: Any) -> None:
        mean[:] = 5
    check(make, call(X), call(X), change, call(X), call(X + 1))
