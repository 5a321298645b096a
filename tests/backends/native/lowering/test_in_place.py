"""Writes to parts of inputs, through all stages of the compiler: only the part is written, and all else is as in eager mode."""
from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import capture
from capture.backends.native.dependencies import Order
from capture.backends.native.ir import Extern, Nest, Program, Store
from tests.backends.native.stages import Stages, compare, compiled, evaluated, finished, recorded

F = torch.nn.functional
SIZES = (4, 6, 5)


def program(body: str) -> Callable[..., Any]:
    """The function of `x, y, i, m` of these lines. `y` is like `x`; `i` holds numbers below 4, `m` masks the first dimension."""
    scope: dict[str, Any] = {"torch": torch, "F": F}
    lines = "\n    ".join(body.split(" ;; "))
    exec(f"def program(x, y, i, m):\n    {lines}\n", scope)
    return scope["program"]


def inputs(dtype: torch.dtype = torch.float32, form: str = "dense") -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)

    def tensor() -> Tensor:
        values = (torch.randn(SIZES, generator=generator, dtype=torch.float64) * 5).to(dtype)
        if form == "transposed":
            return values.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        if form == "gaps":
            return torch.zeros(4, 6, 9, dtype=dtype)[:, :, 2:7].copy_(values)
        return values
    x, y = tensor(), tensor()
    return [x, y, torch.tensor([2, 0, 2]), torch.tensor([True, False, True, False])]


def check(body: str, *given: Tensor, tolerance: float | None = None) -> Program:
    """Compares the program with eager mode, interpreted and compiled; returns it as lowered."""
    gm, tensors = recorded(program(body), given)
    stages = Stages(gm, tensors)
    tolerances = None if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    compare(gm, stages.callable(list(map(evaluated, stages.lowered))), tensors, tolerances)
    compare(gm, stages.callable(compiled(stages.fused())), tensors, tolerances)
    finished()
    return stages.lowered[0]


def written(lowered: Program) -> int:
    """How many elements of inputs a program stores."""
    given = {name for name, buffer in lowered.buffers.items() if buffer.kind == "input"}
    count = 0
    for statement in lowered.body:
        assert not isinstance(statement, Extern) or given.isdisjoint(statement.mutates)
        stores: tuple[Store, ...] = statement.stores if isinstance(statement, Nest) else ()
        for store in stores:
            if store.buffer in given:
                points = 1
                for variable in (*statement.space, *statement.reduced):
                    points *= variable.extent
                count += points
    return count


PARTS = {                                           # a program, and how many of the 120 elements of `x` it changes
    "x[1] = y[0]": 30, "x[-1] = 3": 30, "x[:, 2] = y[:, 1]": 20, "x[..., 1:3] = y[..., 2:4]": 48, "x[1:3, 2, ::2] = 1": 6,
    "x[0, 1, 2] = 5": 1, "x[1:3][:, 2:4][..., 1] = y[0, 0, 0]": 4, "x.select(1, 3).narrow(0, 1, 2).fill_(2)": 10,
    "x[:0] = y[:0]": 0, "x[2:2, 1] = 3": 0, "x[1] += y[2]": 30, "x[1:3].mul_(2)": 60, "x[:, :, 1].add_(x[:, :, 1])": 24,
    "x.diagonal(0, 0, 1).copy_(y[:, 0, :1].expand(4, 5).t())": 20, "x[1].t()[2] = y[0, :, 0]": 6, "x.T[0] = y.T[1]": 24,
    "x.index_copy_(1, i[:2], y[:, :2])": 40, "x.index_fill_(2, i, 3)": 72, "x.index_add_(0, i, y[:3])": 90,
    "x[i] = y[:3]": 90, "x[:, i, 1] = y[:, :3, 2]": 12, "x[i, i] = y[0, 0]": 15, "x[1, i] = y[1, :3]": 15,
    "x[2].index_copy_(1, i[:1], y[0, :, :1])": 6, "x[:2][1].index_copy_(0, i[:1], y[0, :1])": 5,
    "x.scatter_(0, i[:, None, None], 4)": 3, "x.scatter_(1, i.view(1, 3, 1).expand(4, 3, 5), y)": 60,
    "x.scatter_add_(1, i.view(1, 3, 1).expand(4, 3, 5), y)": 60, "x.scatter_(0, i[:1].view(1, 1, 1).expand(1, 6, 5), y)": 30,
    "x.scatter_reduce_(0, i.view(3, 1, 1).expand(3, 6, 5), y, 'amax')": 90, "x.put_(i, y[0, 0, :3])": 3,
    "x.index_put_((i,), y[:3], accumulate=True)": 90, "x[1] = y[0] ;; x[1] = y[1] ;; x[2, 3] = 4": 65,
    "x[1] = y[0] ;; a = x.sum() ;; x[2] = a ;; b = x[1:3] * 2 ;; x[:, 0] = 1 ;; return a, b, x": 80,
    "a = x[1] * 2 ;; x[1] = y[0] ;; return a": 30, "a = x[1].clone() ;; x[1] = y[0] ;; return a + x[1]": 30,
    "x[1:] = x[:-1] * 2": 90, "x[:, :5] = x[:, 1:].flip(1)": 100, "x[i] = x[1:] + 1": 90, "x[1] = y[0] ;; return x * 2, x[1:]": 30,
    "x[1] = y[0] ;; return x.clone(), x.contiguous(), x.T, x + 0": 30, "x[0] = y[0] ;; y[1] = x[0] ;; return x.sum(), y[1]": 60,
    "x[1] = y[0] ;; return torch.matmul(x, x.mT)": 30, "a = x[2] ;; x[1] = y[0] ;; return torch.matmul(a, x[1].T), a": 30,
    "x.view(24, 5)[3] = 1 ;; return x[0]": 5, "x.view(24, 5)[i + 2] = y[0, :3] ;; x.view(-1)[7:9] = 2": 17,
    "x[1] = y[0] ;; x.mul_(2)": 120, "a = x * 1 ;; x[0] = 1 ;; a[1] = 2 ;; x.copy_(a)": 120}


@pytest.mark.parametrize("body", PARTS)
def test_only_the_part_is_written(body: str) -> None:
    assert written(check(body, *inputs())) == PARTS[body]


OLD = (                                             # reads of what a later write changes; results that must not follow the input
    "a = x.sum(0) ;; x[1] = y[0] ;; return a", "a = x.exp() ;; x[1] = y[0] ;; return a * x",
    "a = x[1] ;; x[2] = y[0] ;; return a, x[2]",
    "a = x.clone() ;; x[1] = y[0] ;; return a, x", "a = x.clone() ;; a[1] = y[0] ;; x.copy_(a) ;; return a",
    "a = torch.select_scatter(x, y[0], 0, 1) ;; x.copy_(a) ;; return a", "x[1] = y[0] ;; a = x.clone() ;; x[1] = 2 ;; return a, x",
    "a = torch.select_scatter(x, y[0], 0, 1) ;; x.copy_(a) ;; return a[1:], x[1:], a.split(2)[0]",
    "a = torch.select_scatter(x, y[0], 0, 1) ;; b = a * x ;; x.copy_(a) ;; return b, x * 2",
    "a = torch.select_scatter(x, y[0], 0, 1) ;; b = torch.select_scatter(x, y[1], 0, 2) ;; x.copy_(a) ;; y.copy_(b)",
    "a = torch.slice_scatter(x, y[1:3] + 1, 0, 1, 3) ;; x.copy_(a) ;; x[0] = a[2] ;; return a + x",
    "a = torch.select_scatter(x, torch.select_scatter(x[2], y[0, 0], 0, 1), 0, 1) ;; x.copy_(a)",
    "a = torch.select_scatter(x, torch.select_scatter(x[1], y[0, 0], 0, 1), 0, 1) ;; b = x[1] * 2 ;; x.copy_(a) ;; return b",
    "x[1] = y[0] ;; a = x[1] ;; x[1] = y[1] ;; return a, x",
    "a = x[1:3] ;; b = a.tanh() ;; a[0] = y[0] ;; a[1] = b[0] ;; return a, b",
    "a = x.sum() ;; x[m] = 2 ;; x[0] = a ;; return x[1]", "x[m, 1] = 0 ;; x[0] += 1",
    "x[i, 1] = y[0, 0] ;; a = torch.matmul(x, x.mT) ;; x[i, 2] = a[:3, 0, :5] ;; return a, x.sum(1)",
    "x.masked_fill_(m[:, None, None], 2) ;; x[1] = 0", "x.T[1].mul_(2) ;; x.T.T.index_fill_(0, i, 7) ;; return x[1:]",
    "for n in range(4):\n        x[n, n] = x[n - 1].sum(0) + y[n, 0]\n    return x", "x[1], x[2] = x[2].clone(), x[1].clone()")


@pytest.mark.parametrize("body, form", [(body, form) for form in ("dense", "transposed", "gaps") for body in OLD
                                        if form != "gaps" or "return a" not in body or "_scatter(" not in body])
def test_what_was_read_before_stays(body: str, form: str) -> None:
    """But for results with gaps in memory."""
    check(body, *inputs(form=form), tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    bodies = ["x[1] = y[0] ;; return x[1:]", "x[:, 1:3] = y[:, :2] ;; x.index_copy_(0, i[1:], y[:2])", "x[i, i] = y[0, 0]",
              "x[1, 2].index_fill_(0, i, 1) ;; return x.clone()", "x[1].diagonal().copy_(y[0, 0])"]
    bodies += [] if dtype == torch.bool else ["x.scatter_add_(0, i.view(3, 1, 1).expand(3, 6, 5), y)", "x[1] += y[0]"]
    for body in bodies:
        check(body, *inputs(dtype))


@pytest.mark.parametrize("body, called", [
    ("x[m] = y[:2] ;; return x[0]", "aten::index_put_"), ("x[1:, 2][m[1:]] = y[:1, 0]", "aten::index_put_"),
    ("x[m] = x[1:3] * 2 ;; return x * 2", "aten::index_put_")])
def test_operators_of_atens_write_in_place(body: str, called: str) -> None:
    lowered = check(body, *inputs())
    assert [statement.op for statement in lowered.body if isinstance(statement, Extern)] == [called]
    assert all(statement.mutates for statement in lowered.body if isinstance(statement, Extern))


def test_writes_and_what_may_raise_keep_their_order() -> None:
    lowered = check("x[0] += 1 ;; y[i] = 2 ;; x[1] += 1", *inputs())
    order = Order(lowered.body, lowered.buffers)
    assert len(lowered.body) == 3 and order.depends(1, 0) and order.depends(2, 1)


def test_gradients() -> None:
    """Of what is read before and after a write; saved tensors are what they were."""
    for body in ("x[1] = y[0].detach() ;; return x * y, y.sin()", "a = x * 2 ;; x[1] = 2 ;; return a, x * y",
                 "a = (x[1] + y).sum() ;; x[1] = 3 ;; return a * x[1]", "x[i] = 0 ;; return (x * y.exp()).sum()",
                 "x[1] = 1 ;; a = x + y ;; x[1] = 2 ;; return a + x * y.sin()"):
        x, y, i, m = inputs()
        check(body, x, y.requires_grad_(), i, m)


def test_a_tensor_that_is_read_on_is_written_anew() -> None:
    """Where the old tensor is needed as a whole, nothing would be saved; and it must not be lost."""
    body = "a = torch.select_scatter(x, y[0], 0, 1) ;; b = torch.matmul(x, x.mT) ;; x.copy_(a) ;; return b"
    assert written(check(body, *inputs(), tolerance=1e-4)) == 120


# --- at random; sources are new tensors, since eager mode reads what it has just written where they overlap

SOME = ("[{0}]", "[:, {0}]", "[{0}:3]", "[..., {0}:4]", "[:, ::2]", "[-1]", ".T", ".unsqueeze(0)", ".flatten()", ".diagonal()", "")
LINES = (
    "{new} = {part}", "{new} = {part}", "{new} = {part} * {other}", "{new} = {part}.clone()", "{part}.copy_({other} * 1)",
    "{part}.fill_({n})", "{part}.copy_({other} * 0.5)", "{part}.mul_({n})", "{part}.add_({other} * 1)", "{part}[i] = {other} + 1",
    "{part}.copy_({part2}.flip(0))", "{part}.index_copy_(0, i[:1], {other}.clone())", "{part}.index_fill_(0, i, {n})",
    "{part}.copy_({part}.sum(0) * 0.1)")


def drawn(random: Random) -> str:
    """Lines that read, and write to, parts of the inputs, views of them, and views of these."""
    tensors, lines = ["x", "y"], []
    for number in range(random.randrange(3, 14)):
        part, second, other = (random.choice(tensors) + random.choice(SOME).format(random.randrange(3)) for _ in range(3))
        line = random.choice(LINES).format(new=f"t{number}", n=number, part=part, part2=second, other=other)
        try:
            program(" ;; ".join([*lines, line]))(*inputs())
        except (RuntimeError, IndexError):          # sizes that do not go together
            continue
        lines.append(line)
        tensors += [f"t{number}"] if line.startswith(f"t{number} =") else []
    results = [name for name in tensors if random.random() < 0.6]
    return " ;; ".join([*lines, f"return x.sum(), {', '.join(results)}"])


@pytest.mark.parametrize("seed", range(60))
def test_at_random(seed: int) -> None:
    random = Random(seed)
    check(drawn(random), *inputs(form=random.choice(("dense", "transposed"))), tolerance=1e-3)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(("part", "shape"), [
    (lambda y: y.narrow(1, 1, 2), (1, 4)), (lambda y: y.narrow(1, 1, 2), (4,)), (lambda y: y[1:3], (3, 2)),
    (lambda y: y[1], (1, 3)), (lambda y: y[1:3], (2, 3)), (lambda y: y.diagonal(), (1, 3)), (lambda y: y[1], (3,))])
def test_out_that_is_a_part(part, shape) -> None:
    """Eager mode gives a part that does not fit another shape, and writes beyond it."""
    def program(x):
        y = torch.zeros(4, 3)
        torch.add(x, 1, out=part(y))
        return y
    function = capture.compile(program, backend="native", options={"background": False})
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    for _ in range(3):
        assert torch.equal(function(x), program(x))
