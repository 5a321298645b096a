"""Plans: the table of integers, slots and what they release, the text of a plan, grains."""
from __future__ import annotations

import operator

import pytest
import torch

from capture.backends.native.index import Symbol, Var, index
from capture.backends.native.ir import Kernel, Nest, Stage, Store, View, load, op
from capture.backends.native.machine import CPU
from capture.backends.native.plan import ExternStep, KernelStep, Plan, dump
from capture.backends.native.schedule.grain import work_per_row
from capture.backends.native.serialization import decode, encode
from capture.errors import InternalError

from .programs import buffer, doubling, extern, extern_out, gathering, plan_of, program, whole

f32 = torch.float32


def numbers(plan: Plan, *arguments: object) -> list[int]:
    """The table's values, by its definition."""
    operations = {"add": operator.add, "mul": operator.mul, "div": operator.floordiv, "mod": operator.mod, "max": max}
    values: list[int] = []
    for kind, *operands in plan.numbers:
        if kind in operations:
            values.append(operations[kind](*(values[n] for n in operands)))
        else:
            values.append(operands[0] if kind == "const" else arguments[operands[0]] if kind == "argument" else
                          arguments[operands[0]].size(operands[1]))
    return values


def small() -> Plan:
    x, w, t, u, s, y = (buffer("x", 4, kind="input"), buffer("w", 4, 4, kind="input"), buffer("t", 4), buffer("u", 4), buffer("s"),
                        buffer("y", 4, kind="output"))
    body = [doubling("first", x, t, 4), extern_out("mv", "aten::mv.out", [whole(w), whole(t)], u),
            extern("sum", "aten::sum", [View("u", (2,), (2,), 1)], s, kwargs={"dtype": torch.float32}),
            extern("scale", "aten::mul_.Tensor", [whole(u), whole(s)], mutates=["u"]), doubling("last", u, y, 4)]
    return plan_of(program([x, w, t, u, s, y], body, [whole(y), View("y", (2,), (1,), 2), 7, None]))


def test_the_text_of_a_plan() -> None:
    assert dump(small()) == """\
arguments 2, constants 0, arena of 64 bytes
x: float32(4) strides (1) = argument 0
w: float32(4, 4) strides (4, 1) = argument 1
t: float32(4) strides (1) = fresh, written
u: float32(4) strides (1) = arena + 0, written
s: float32() strides () = result, written
y: float32(4) strides (1) = fresh, written
double_float32[4 by 14563](x, t)  releases x
aten::mv.out(w, t, out=u)  releases w, t
s = aten::sum(u(2) strides (2) offset 1, dtype=float32)
aten::mul_.Tensor(u, s)  releases s
double_float32[4 by 14563](u, y)
return y, y(2) strides (1) offset 2, 7, None
"""


def test_a_plan_is_plain_data() -> None:
    def plain(value: object) -> bool:
        return all(map(plain, value)) if isinstance(value, tuple) else value is None or isinstance(value, (bool, int, float, str))
    plan = small()
    assert plain(plan) and decode(Plan, encode(plan)) == plan and hash(plan) == hash(small())
    assert [type(step) for step in plan.steps] == [KernelStep, ExternStep, ExternStep, ExternStep, KernelStep]


def test_index_expressions_become_numbers() -> None:
    n, k = Symbol("n"), Symbol("k")
    x = buffer("x", index(n), 3, kind="input")
    third = (index(n) + 1) // 3
    sizes = [index(n) * index(n) * 2 + 5, third, (index(n) * 5 + index(k)) % 7, index(k) * -4, third * index(k), 0]
    plan = plan_of(program([x], [], sizes, {n: (0, 0)}, ["x", k]))
    for n_, k_ in ((2, 3), (10, 4), (33, 100)):
        values = numbers(plan, torch.empty(n_, 3), k_)
        assert [values[number] for _, number in plan.outputs] == [
            n_ * n_ * 2 + 5, (n_ + 1) // 3, (n_ * 5 + k_) % 7, k_ * -4, (n_ + 1) // 3 * k_, 0]
    assert len(set(plan.numbers)) == len(plan.numbers)


def test_a_size_that_no_input_has() -> None:
    with pytest.raises(InternalError, match="m is not known when the plan runs"):
        plan_of(program([], [], [index(Symbol("m"))]))


def test_a_buffer_that_the_program_does_not_have() -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4)
    with pytest.raises(InternalError, match="there is no buffer y"):
        plan_of(program([x], [extern("e", "aten::neg", [whole(x)], y)], []))


def test_a_nest_has_to_be_made_a_kernel() -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4, kind="output")
    i = Var("i", 4)
    nest = Nest("n", (i,), (), (Store("y", index(i), load(x, index(i))),))
    with pytest.raises(InternalError, match="n was not made a kernel"):
        plan_of(program([x, y], [nest], [whole(y)]))


def test_arguments_that_are_no_plain_data() -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4)
    with pytest.raises(InternalError, match="Generator cannot be an argument"):
        plan_of(program([x, y], [extern("e", "aten::bernoulli", [whole(x)], y, kwargs={"generator": torch.Generator()})], []))


def test_what_is_released_when() -> None:
    plan = small()
    released = [tuple(plan.slots[slot].name for slot in step.released) for step in plan.steps]
    assert released == [("x",), ("w", "t"), (), ("s",), ()]


def test_returned_inputs_are_not_released() -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4, kind="output")
    plan = plan_of(program([x, y], [doubling("k", x, y, 4)], [whole(x), whole(y)]))
    assert plan.steps[0].released == () and plan.outputs == (("tensor", 0), ("tensor", 1))


def test_kernels_that_check_indices() -> None:
    table, where = buffer("table", 5, kind="input"), buffer("where", 3, dtype=torch.int64, kind="input")
    y = buffer("y", 3, kind="output")
    (step,) = plan_of(program([table, where, y], [gathering("k", table, where, y, 3)], [whole(y)])).steps
    assert step.checks and step.buffers == (0, 1, 2)


# Grains.

def grain(kernel: Kernel, *arguments: object) -> int:
    plan = plan_of(program([X, Y], [kernel], [], {n: (0, 0)}))
    return numbers(plan, *arguments)[plan.steps[0].grain]


n = Symbol("n")
X, Y = buffer("x", index(n), kind="input"), buffer("y", index(n), kind="output")


def test_rows_of_much_work_are_fewer_for_a_thread() -> None:
    i, j = Var("i", 100), Var("j", 1000)
    value = op("add", f32, load(X, index(j)), load(X, index(j)))
    rows = Kernel("k", (i,), 1, False, (Stage((j,), frozenset({j}), (Store("y", index(i), value, reduction="sum"),)),))
    assert work_per_row(rows) == 1000 * 9 and grain(rows, torch.empty(1000)) == CPU.hand_out // 9000
    sequential = Kernel("k", (i, j), 1, True, (Stage((), frozenset(), (Store("y", index(j), value),)),))
    assert work_per_row(sequential) == 1000 * 9


def test_slow_operations_count_more() -> None:
    i = Var("i", 100)

    def work(name: str) -> int:
        stage = Stage((), frozenset(), (Store("y", index(i), op(name, f32, load(X, index(i)))),))
        return work_per_row(Kernel("k", (i,), 1, True, (stage,))).constant
    assert work("neg") < work("exp") == work("sin")


def test_the_grain_of_symbolic_work_is_computed_when_the_plan_runs() -> None:
    i, j = Var("i", 100), Var("j", index(n))
    value = op("add", f32, load(X, index(j)), load(X, index(j)))
    rows = Kernel("k", (i,), 1, False, (Stage((j,), frozenset({j}), (Store("y", index(i), value, reduction="sum"),)),))
    for size in (2, 1000, 10**6):
        assert grain(rows, torch.empty(size)) == max(1, CPU.hand_out // (9 * size))


def test_kernels_without_work_have_a_grain() -> None:
    i = Var("i", 0)
    assert work_per_row(Kernel("k", (i,), 0, False, (Stage((), frozenset(), (Store("y", index(i), load(X, index(i))),)),))) == 1
