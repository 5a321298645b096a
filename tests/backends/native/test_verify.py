"""Each rule of the IR: a program that keeps it passes, one that breaks it is refused with the statement quoted."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from capture.backends.native.index import Index, Symbol, Value, Var, contiguous_strides, index
from capture.backends.native.ir import (
    Buffer,
    Constant,
    Extern,
    Kernel,
    Nest,
    Program,
    Stage,
    Store,
    View,
    constant,
    load,
    op,
    position,
)
from capture.backends.native.show import show, show_expr
from capture.backends.native.verify import InvalidProgram, verify

f32, i64, boolean = torch.float32, torch.int64, torch.bool
i, j, k = Var("i", 4), Var("j", 5), Var("k", 5)
AT: Index = index(i) * 5 + j
S = Symbol("s")


def buffer(name: str, *sizes: int, kind: str = "input", dtype: torch.dtype = f32) -> Buffer:
    return Buffer(name, dtype, sizes, contiguous_strides(sizes), kind)


X, N = buffer("x", 4, 5), buffer("n", 4, 5, dtype=i64)
M, Y = buffer("m", 4, kind="temporary"), buffer("y", 4, 5, kind="output")
QUANTISED = buffer("x", 4, dtype=torch.float8_e4m3fn)
LOCAL = Buffer("m", f32, (), (), "local")


def program(*body: Nest | Kernel | Extern, **changes: object) -> Program:
    made = Program({b.name: b for b in (X, N, M, Y)}, ["x", "n"], [View("y", (4, 5), (5, 1))], {}, list(body))
    return replace(made, **changes)


def largest() -> Nest:
    return Nest("largest", (i,), (j,), (Store("m", index(i), load(X, AT), reduction="max"),))


def difference(**changes: object) -> Nest:
    value = op("sub", f32, load(X, AT), load(M, index(i)))
    return replace(Nest("difference", (i, j), (), (Store("y", AT, value),)), **changes)


def kernel(**changes: object) -> Kernel:
    first = Stage((j,), frozenset({j}), (Store("m", index(0), load(X, AT), reduction="max"),))
    value = op("sub", f32, load(X, index(i) * 5 + k), load(LOCAL, index(0)))
    second = Stage((k,), frozenset(), (Store("y", index(i) * 5 + k, value),))
    return replace(Kernel("rows", (i,), 1, False, (first, second), (LOCAL,)), **changes)


def fused(**changes: object) -> Program:
    return program(kernel(**changes), buffers={b.name: b for b in (X, N, Y)})


def storing(store: Store, space: tuple[Var, ...] = (i, j), reduced: tuple[Var, ...] = ()) -> Program:
    """A program that does one thing wrong at most."""
    return program(largest(), difference(), Nest("other", space, reduced, (store,)))


def call(**changes: object) -> Extern:
    made = Extern("call", "aten::relu", (View("x", (4, 5), (5, 1)),), {}, ("y",))
    return replace(made, **changes)


def test_what_keeps_the_rules_passes() -> None:
    verify(program(largest(), difference()))
    verify(fused())
    verify(program(call()))
    whole = View("x", (4, 5), (5, 1))
    verify(program(call(op="aten::mul.out", args=(whole, whole), kwargs={"out": replace(whole, buffer="y")}, out=True)))
    verify(storing(Store("y", AT, constant(1.0, f32), mode="add")))
    verify(storing(Store("x", AT, constant(1.0, f32))))                                    # an input is mutated
    verify(storing(Store("m", index(Value(load(N, AT), 4)), constant(1.0, f32)), (), (i, j)))      # a scatter
    verify(storing(Store("y", index(i) * 5 + index(Value(load(N, AT), 5)), constant(1.0, f32)), (i,), (j,)))
    verify(storing(Store("y", AT, load(X, AT), reduction="sum", scan=True), (i,), (j,)))
    verify(storing(Store("m", index(i), constant(1.0, f32), mask=op("eq", boolean, position(index(j)), constant(0, i64)))))
    verify(storing(Store("y", AT, load(X, AT + 1, op("lt", boolean, position(index(j)), constant(4, i64))))))
    symbolic = Buffer("x", f32, (index(S), 5), (5, 1), "input")
    rows = Var("i", index(S))
    copied = Buffer("y", f32, (index(S), 5), (5, 1), "output")
    at = index(rows) * 5 + j
    verify(Program({"x": symbolic, "y": copied}, ["x"], [View("y", (index(S), 5), (5, 1)), index(S) * 5, None], {S: (0, 0)},
                   [Nest("copy", (rows, j), (), (Store("y", at, load(symbolic, at)),))]))


BROKEN: dict[str, tuple[Callable[[], Program], str]] = {
    "statement twice": (lambda: program(largest(), largest()), "largest is declared twice"),
    "loop twice": (lambda: program(largest(), difference(space=(i, j, Var("i", 2)))), "loops are named"),
    "listed wrongly": (lambda: program(largest(), difference(), buffers={"x": Y, "n": N, "m": M, "y": Y}), "y is listed as x"),
    "kind": (lambda: program(buffers={"q": replace(Y, name="q", kind="strange")}), "q is a strange buffer"),
    "strides": (lambda: program(buffers={"q": replace(Y, name="q", strides=(1,))}), "2 sizes, 1 strides"),
    "unknown size": (lambda: program(buffers={"q": replace(Y, name="q", sizes=(S, 5))}), "depends on s"),
    "inputs": (lambda: program(largest(), difference(), inputs=["x"]), "the inputs are"),
    "input twice": (lambda: program(largest(), difference(), inputs=["x", "x", "n"]), "an input is listed twice"),
    "constants": (lambda: program(largest(), difference(), constants={"c": torch.ones(1)}),
                  "constant buffers and their tensors differ"),
    "symbol of no argument": (lambda: program(largest(), difference(), symbols={S: (7, 0)}), "s is that of argument 7"),
    "symbol of no dimension": (lambda: program(largest(), difference(), symbols={S: (0, 2)}), "s is dimension 2 of 2"),
    "operation": (lambda: storing(Store("y", AT, op("plus", f32, load(X, AT)))), "there is no operation plus"),
    "operands": (lambda: storing(Store("y", AT, op("add", f32, load(X, AT), load(N, AT)))), "add does not take"),
    "result": (lambda: storing(Store("y", AT, op("lt", f32, load(X, AT), load(X, AT)))), "is torch.bool, not torch.float32"),
    "constant's type": (lambda: storing(Store("y", AT, op("neg", f32, Constant(1, f32)))), "1 is a constant of torch.float32"),
    "load's dtype": (lambda: storing(Store("y", AT, load(replace(N, dtype=f32), AT))), "n is torch.int64, loaded as torch.float32"),
    "load of a dtype that kernels lack": (lambda: program(Nest("n", (i,), (), (Store("z", index(i), load(QUANTISED, index(i))),)),
                                        buffers={"x": QUANTISED, "z": replace(QUANTISED, name="z", kind="output")},
                                        inputs=["x"], outputs=[]),
                        "kernels cannot load torch.float8_e4m3fn"),
    "load of nothing": (lambda: storing(Store("y", AT, load(replace(X, name="z"), AT))), "z is not declared"),
    "store's dtype": (lambda: storing(Store("y", AT, load(N, AT))), "torch.int64 stored to y"),
    "store to nothing": (lambda: storing(Store("z", AT, load(X, AT))), "z is not declared"),
    "store to a constant": (lambda: program(
        Nest("n", (i, j), (), (Store("c", AT, load(X, AT)),)), constants={"c": torch.ones(4, 5)},
        buffers={"x": X, "n": N, "c": buffer("c", 4, 5, kind="constant")}, outputs=[]), "c is constant"),
    "mode": (lambda: storing(Store("y", AT, load(X, AT), mode="sub")), "the mode of a store is sub"),
    "mask": (lambda: storing(Store("y", AT, load(X, AT, load(N, AT)))), "the mask at x is not bool"),
    "variable": (lambda: storing(Store("y", AT, load(X, AT)), (i,)), "depends on j, which is no loop around it"),
    "computed index": (lambda: storing(Store("y", AT, load(X, index(Value(load(X, AT), 4))))), "a computed index is torch.float32"),
    "too far": (lambda: storing(Store("y", AT, load(X, AT + 1))), "reaches element 20, the last one is 19"),
    "too early": (lambda: storing(Store("y", AT, load(X, AT - 1))), "reaches element -1"),
    "stored too far": (lambda: storing(Store("y", AT * 2, load(X, AT))), "reaches element 38"),
    "read before": (lambda: program(difference(), largest()), "m is read before it is written"),
    "read by a call before": (lambda: program(call(args=(View("m", (4,), (1,)),))), "m is read before it is written"),
    "added before": (lambda: program(Nest("n", (i,), (), (Store("m", index(i), constant(1.0, f32), mode="add"),)), outputs=[]),
                     "m is combined with before"),
    "scatter": (lambda: storing(Store("m", index(Value(load(N, AT), 4)), constant(1.0, f32)), (i,), (j,)),
                "several points of i store to m"),
    "returned before": (lambda: program(largest()), "y is returned but never written"),
    "all loops": (lambda: storing(Store("m", index(i), load(X, AT))), "several points of j store to m"),
    "same strides": (lambda: storing(Store("y", index(i) + j, load(X, AT))), "several points of i and j store to y"),
    "reduction": (lambda: storing(Store("m", index(i), load(X, AT), reduction="mean"), (i,), (j,)), "there is no reduction mean"),
    "reduction of bool": (lambda: storing(Store("m", index(i), op("lt", boolean, load(X, AT), load(X, AT)), reduction="sum"),
                                          (i,), (j,)),
                          "sum of torch.bool"),
    "reduced place": (lambda: storing(Store("y", AT, load(X, AT), reduction="sum"), (i,), (j,)), "depends on what is reduced"),
    "arg extreme": (lambda: storing(Store("m", index(i), load(X, AT), reduction="argmax"), (i,), (j,)), "torch.int64 stored to m"),
    "scan": (lambda: storing(Store("y", AT, load(X, AT), scan=True)), "a scan without a reduction"),
    "parallel": (lambda: fused(parallel=2), "2 of 1 loops are parallel"),
    "vectorised": (lambda: program(kernel(outer=(), parallel=0, vectorized=True)), "no outer loop to vectorise"),
    "local kind": (lambda: fused(locals=(replace(LOCAL, kind="temporary"),)), "m is temporary, not local"),
    "local twice": (lambda: fused(locals=(LOCAL, LOCAL)), "m is declared twice"),
    "local declared differently": (lambda: program(kernel()), "m is declared differently before"),
    "local elsewhere": (lambda: replace(fused(), body=[kernel(), difference()], buffers={b.name: b for b in (X, N, LOCAL, Y)}),
                        "m is local to another kernel"),
    "local by row": (lambda: fused(locals=(replace(M, kind="local"),), stages=(
        Stage((j,), frozenset({j}), (Store("m", index(i), load(X, AT), reduction="max"),)),)), "depends on the row"),
    "local before": (lambda: fused(stages=kernel().stages[::-1]), "m is read before it is written"),
    "adding threads": (lambda: program(largest(), difference(), Kernel("k", (i,), 1, False, (
        Stage((j,), frozenset(), (Store("y", index(j), load(X, AT), mode="add"),)),))), "several points of i store to y"),
    "reduced elsewhere": (lambda: fused(stages=(Stage((j,), frozenset({k}), kernel().stages[0].stores),)),
                          "not a loop of the stage"),
    "operator": (lambda: program(call(op="aten::rely")), "there is no operator aten::rely"),
    "overload": (lambda: program(call(op="aten::relu.strange")), "there is no operator aten::relu.strange"),
    "view of nothing": (lambda: program(call(args=(View("z", (4,), (1,)),))), "z is not declared"),
    "view too far": (lambda: program(call(args=(View("x", (4, 5), (5, 1), 1),))), "a view of x reaches element 20"),
    "result of nothing": (lambda: program(call(results=("z",))), "z is not declared"),
    "out": (lambda: program(call(out=True)), "not among the out arguments"),
    "mutates": (lambda: program(call(mutates=("n",))), "what the call mutates is not among its arguments"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_rule_is_refused(name: str) -> None:
    make, message = BROKEN[name]
    with pytest.raises(InvalidProgram, match=re.escape(message)):
        verify(make())


def test_the_error_quotes_the_statement() -> None:
    with pytest.raises(InvalidProgram) as error:
        verify(storing(Store("y", AT, load(X, AT + 1))))
    assert str(error.value).endswith("nest other\n    for i < 4\n    for j < 5\n    y[i*5 + j] = x[1 + i*5 + j]")


def test_show() -> None:
    assert show(fused()).splitlines() == [
        "input x: float32(4, 5) strides (5, 1)",
        "input n: int64(4, 5) strides (5, 1)",
        "output y: float32(4, 5) strides (5, 1)",
        "inputs x, n",
        "kernel rows",
        "    parallel for i < 4",
        "    local m: float32() strides ()",
        "    stage",
        "        reduce j < 5",
        "        m[0] = max x[i*5 + j]",
        "    stage",
        "        for k < 5",
        "        y[i*5 + k] = (x[i*5 + k] - m[0])",
        "outputs y(4, 5) strides (5, 1) offset 0"]


def test_show_names_what_is_used_twice() -> None:
    twice = op("exp", f32, load(X, AT))
    chosen = load(X, index(Value(load(N, AT), 4)) * 5)
    added = op("to", f32, op("where", f32, load(N, AT, constant(True, boolean)), chosen, constant(2.0, f32)))
    lines = show(program(Nest("n", (i, j), (), (
        Store("y", AT, op("mul", f32, twice, twice)), Store("m", index(i), added, mode="add")))))
    assert "        %0: float32 = exp(x[i*5 + j])\n".strip() in lines
    assert "y[i*5 + j] = (%0 * %0)" in lines
    assert "m[i] += float32(where(n[i*5 + j if True], x[[n[i*5 + j]]*5], 2.0))" in lines
    assert show_expr(op("mul", f32, twice, twice)) == "(exp(x[i*5 + j]) * exp(x[i*5 + j]))"


def test_show_calls() -> None:
    args = (View("x", (4, 5), (5, 1), 0, torch.int32), [index(S), 1])
    lines = show(program(call(op="aten::sum", args=args, kwargs={"dtype": None}, results=(None, "y"), mutates=("x",))))
    assert "extern call: _, y = aten::sum(x(4, 5) strides (5, 1) offset 0 as int32, [s, 1], dtype=None) mutates x" in lines
