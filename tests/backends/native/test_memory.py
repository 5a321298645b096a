"""Memory planning: what may be written over, and that buffers alive at one time never share memory."""
from __future__ import annotations

import random
from collections.abc import Callable, Container
from dataclasses import replace

import pytest
import torch

from capture.backends.native.evaluate import evaluate
from capture.backends.native.index import Index, Symbol, Value, Var, index
from capture.backends.native.ir import Buffer, Kernel, Program, Stage, Store, View, load, op
from capture.backends.native.machine import CPU
from capture.backends.native.memory import Layout, lifetimes, plan_layout, reuse_in_place
from capture.backends.native.rewrite import reads, writes

from .programs import buffer, doubling, extern, extern_out, program, whole

f32 = torch.float32


def value(size: Index, **symbols: int) -> int:
    found = size.substitute(lambda atom: symbols[atom.name] if isinstance(atom, Symbol) else None).constant
    assert found is not None
    return found


def chain(*sizes: int) -> Program:
    """Each buffer doubled into the next; the first is an input, the last an output."""
    buffers = [buffer(f"b{n}", size) for n, size in enumerate(sizes)]
    buffers[0], buffers[-1] = replace(buffers[0], kind="input"), replace(buffers[-1], kind="output")
    body = [doubling(f"k{n}", a, b, min(a.sizes[0], b.sizes[0])) for n, (a, b) in enumerate(zip(buffers, buffers[1:]))]
    return program(buffers, body, [whole(buffers[-1])])


def kernel(name: str, outer: tuple[Var, ...], *stages: Stage) -> Kernel:
    return Kernel(name, outer, 1, False, stages)


def sandwich(middle: Kernel, given: Buffer, result: Buffer, *others: Buffer) -> Program:
    """x -> given, the kernel under test from `given` to `result`, result -> y"""
    x, y = replace(given, name="x", kind="input"), replace(result, name="y", kind="output")
    body = [extern("before", "aten::copy_", [whole(given), whole(x)], mutates=[given.name]), middle,
            extern("after", "aten::copy_", [whole(y), whole(result)], mutates=["y"])]
    return program([x, given, result, y, *others], body, [whole(y)])


def same_results(source: Program) -> bool:
    """Whether `reuse_in_place` keeps what the program computes; by the interpreter, which also checks that rows are independent."""
    torch.manual_seed(0)
    inputs = [torch.randn(tuple(source.buffers[name].sizes)).to(source.buffers[name].dtype) for name in source.inputs]
    before, after = evaluate(source, inputs), evaluate(reuse_in_place(source), inputs)
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# Writing over an input.

def test_a_chain_of_kernels_needs_one_buffer() -> None:
    source = chain(8, 8, 8, 8, 8)
    reused = reuse_in_place(source)
    assert set(reused.buffers) == {"b0", "b4"} and same_results(source)
    assert value(plan_layout(reused).bytes) == 0 and value(plan_layout(source).bytes) == CPU.line


def test_views_of_operators_follow() -> None:
    x, t, u, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4), buffer("y", 2, kind="output")
    source = program([x, t, u, y], [doubling("a", x, t, 4), doubling("b", t, u, 4), extern_out("c", "aten::cat.out", [
        [View("u", (1,), (1,), 3), View("u", (1,), (1,), 0)]], y)], [whole(y)])
    assert "u" not in reuse_in_place(source).buffers and same_results(source)


def softmax_like(last: bool = True) -> Program:
    """Each row is divided by its sum, in two passes; not `last`: the quotients are stored before the sum of squares is taken."""
    t, u, s = buffer("t", 3, 5), buffer("u", 3, 5), buffer("s", 3)
    i, j, k = Var("i", 3), Var("j", 5), Var("k", 5)
    row = index(i) * 5
    total = Stage((j,), frozenset({j}), (Store("s", index(i), load(t, row + index(j)), reduction="sum"),))
    divide = Stage((k,), frozenset(), (Store("u", row + index(k), op("div", f32, load(t, row + index(k)), load(s, index(i)))),))
    again = Stage((j,), frozenset({j}), (Store("s", index(i), load(t, row + index(j)), reduction="max"),))
    return sandwich(kernel("softmax", (i,), total, divide, *([] if last else [again])), t, u, s)


def test_a_row_may_be_read_in_several_passes_before_it_is_written() -> None:
    assert "u" not in reuse_in_place(softmax_like()).buffers and same_results(softmax_like())


def test_but_not_afterwards() -> None:
    assert "u" in reuse_in_place(softmax_like(last=False)).buffers


def one(store_at, load_at, extents=(6,), sizes=(6,), **changes) -> Program:
    """A kernel of one store and one load, at functions of the loop variables."""
    t, u = buffer("t", *sizes), buffer("u", *sizes)
    variables = tuple(Var(f"i{n}", extent) for n, extent in enumerate(extents))
    at = [index(v) for v in variables]
    store = Store("u", store_at(*at), load(t, load_at(*at)), **changes)
    return sandwich(kernel("k", variables, Stage((), frozenset(), (store,))), t, u)


@pytest.mark.parametrize("source", [
    one(lambda i: i, lambda i: i * -1 + 5),                                                                 # flipped
    one(lambda i: i, lambda i: index(0)),                                                                   # one element for all
    one(lambda i, j: i * 3 + j, lambda i, j: j * 3 + i, (3, 3), (9,)),                                      # transposed
    one(lambda i: i, lambda i: i, mode="add"),
], ids=["flip", "broadcast", "transpose", "add"])
def test_other_elements_than_those_which_are_stored_forbid_it(source: Program) -> None:
    assert "u" in reuse_in_place(source).buffers


def test_a_reduction_is_not_stored_over_what_it_reads() -> None:
    t, u = buffer("t", 4, 1), buffer("u", 4)
    i, j = Var("i", 4), Var("j", 1)
    stage = Stage((j,), frozenset({j}), (Store("u", index(i), load(t, index(i)), reduction="sum"),))
    assert "u" in reuse_in_place(sandwich(kernel("k", (i,), stage), t, u)).buffers


def test_computed_places_forbid_it() -> None:
    t, u, w = buffer("t", 4), buffer("u", 4), buffer("w", 4, dtype=torch.int64, kind="input")
    i = Var("i", 4)
    place = index(Value(load(w, index(i)), 4))
    source = sandwich(kernel("k", (i,), Stage((), frozenset(), (Store("u", place, load(t, place)),))), t, u, w)
    assert "u" in reuse_in_place(source).buffers


@pytest.mark.parametrize("change", ["needed later", "another dtype", "another size", "input"])
def test_what_else_forbids_it(change: str) -> None:
    x, t, u, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4), buffer("y", 4, kind="output")
    outputs = [whole(y)]
    body = [doubling("a", x, t, 4), doubling("b", t, u, 4), doubling("c", u, y, 4)]
    if change == "needed later":
        body.append(extern("again", "aten::add_.Tensor", [whole(y), whole(t)], mutates=["y"]))
    elif change == "another dtype":
        u = replace(u, dtype=torch.int32)
    elif change == "another size":
        u = buffer("u", 5)
    else:
        body[0] = extern("a", "aten::copy_", [whole(t), whole(x)], mutates=["t"])
        body[1] = doubling("b", x, u, 4)
    reused = next(s for s in reuse_in_place(program([x, t, u, y], body, outputs)).body if s.name == "b")
    assert reads(reused).isdisjoint(writes(reused))


@pytest.mark.parametrize("kind", ["temporary", "output"])
def test_what_is_returned_lies_where_its_operand_lay(kind: str) -> None:
    x, t, u = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4, kind=kind)
    source = program([x, t, u], [doubling("a", x, t, 4), doubling("b", t, u, 4)], [whole(u), View("u", (2,), (1,), 1)])
    assert set(reuse_in_place(source).buffers) == {"x", "u"} and same_results(source)


def test_but_only_if_it_has_the_same_sizes() -> None:
    x, t, u = buffer("x", 4, kind="input"), buffer("t", 2, 2), buffer("u", 4, kind="output")
    body = [extern("a", "aten::reshape", [whole(x), [2, 2]], t), doubling("b", t, u, 4)]
    source = program([x, t, u], body, [whole(u)])
    assert "t" in reuse_in_place(source).buffers and same_results(source)


def test_what_is_returned_is_not_written_over() -> None:
    x, t, u = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4, kind="output")
    source = program([x, t, u], [doubling("a", x, t, 4), doubling("b", t, u, 4)], [whole(u), whole(t)])
    assert set(reuse_in_place(source).buffers) == {"x", "t", "u"} and same_results(source)


@pytest.mark.parametrize("returned", [False, True])
def test_products_are_added_in_place(returned: bool) -> None:
    x, t, u, y = buffer("x", 3, 3, kind="input"), buffer("t", 3, 3), buffer("u", 3, 3), buffer("y", 3, 3, kind="output")
    body = [extern_out("a", "aten::mm.out", [whole(x), whole(x)], t),
            extern_out("b", "aten::addmm.out", [whole(t), whole(x), whole(x)], u),
            extern_out("c", "aten::addmm.out", [whole(u), whole(x), whole(x)], y)]
    source = program([x, t, u, y], body, [whole(y), *[whole(t)] * returned])
    reused = reuse_in_place(source)
    assert [s.op for s in reused.body[1:]] == ["aten::addmm.out" if returned else "aten::addmm_", "aten::addmm_"]
    assert set(reused.buffers) == {"x", "y", *["t"] * returned} and same_results(source)


@pytest.mark.parametrize("total", ["a factor", "a row", "transposed", "needed later"])
def test_which_products_are_not(total: str) -> None:
    x, t = buffer("x", 3, 3, kind="input"), buffer("t", 3, 3)
    u, y = buffer("u", 3, 3, kind="output"), buffer("y", 3, 3, kind="output")
    given, factor, outputs = whole(t), whole(x), [whole(u)]
    body = [extern_out("a", "aten::mm.out", [whole(x), whole(x)], t)]
    if total == "a factor":
        factor = whole(t)
    elif total == "a row":
        given = View("t", (3,), (1,), 3)
    elif total == "transposed":
        given = View("t", (3, 3), (1, 3))
    body.append(extern_out("b", "aten::addmm.out", [given, whole(x), factor], u))
    if total == "needed later":
        body.append(extern_out("c", "aten::exp.out", [whole(t)], y))
        outputs.append(whole(y))
    source = program([x, t, u, y], body, outputs)
    assert reuse_in_place(source).body[1].op == "aten::addmm.out" and same_results(source)


def test_one_input_is_written_over_once() -> None:
    x, t, u, v, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4), buffer("v", 4), buffer("y", 4, kind="output")
    i = Var("i", 4)
    both = Stage((), frozenset(), tuple(Store(name, index(i), op(name_of, f32, load(t, index(i)), load(t, index(i))))
                                        for name, name_of in (("u", "add"), ("v", "mul"))))
    source = program([x, t, u, v, y], [doubling("a", x, t, 4), kernel("b", (i,), both),
                                       extern_out("c", "aten::add.out", [whole(u), whole(v)], y)], [whole(y)])
    assert len({"u", "v"} & set(reuse_in_place(source).buffers)) == 1 and same_results(source)


def test_what_operators_allocate_is_written_over() -> None:
    x, t, u, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4), buffer("y", 4, kind="output")
    source = program([x, t, u, y], [extern("a", "aten::neg", [whole(x)], t), doubling("b", t, u, 4), doubling("c", u, y, 4)],
                     [whole(y)])
    assert "u" not in reuse_in_place(source).buffers and same_results(source)


# Places in the arena.

def overlapping(source: Program, **symbols: int) -> list[tuple[str, str]]:
    """Pairs of buffers that are alive at one time and share memory, or lie beyond the arena's end."""
    layout, alive = plan_layout(source), lifetimes(source)
    places = {}
    for name, offset in layout.offsets.items():
        begin = value(offset, **symbols)
        end = begin + value(source.buffers[name].span, **symbols) * source.buffers[name].dtype.itemsize
        assert begin % CPU.line == 0 and 0 <= begin and end <= value(layout.bytes, **symbols)
        places[name] = begin, end
    return [(a, b) for a in places for b in places if a < b and alive[a].overlaps(alive[b])
            and places[a][0] < places[b][1] and places[b][0] < places[a][1]]


def random_program(seed: int, symbolic: bool = False, allocating: bool = False) -> Program:
    """`allocating`: some results are allocated by operators, and some buffers returned."""
    choose = random.Random(seed)
    n = Symbol("n")
    factors = [1, index(n), index(n) + 3] if symbolic else [1]
    sizes = [choose.choice([1, 7, 64, 100, 1000, 4096]) * choose.choice(factors) for _ in range(30)]
    buffers = [buffer("x", index(n) if symbolic else 5, kind="input"), *(
        buffer(f"t{i}", size, dtype=choose.choice([f32, torch.float64, torch.uint8])) for i, size in enumerate(sizes))]
    joined = [[[whole(choose.choice(buffers[:i + 1])) for _ in range(2)]] for i in range(30)]
    body = [extern(f"e{i}", "aten::cat", joined[i], buffers[i + 1]) if allocating and choose.random() < 0.3 else
            extern_out(f"e{i}", "aten::cat.out", joined[i], buffers[i + 1]) for i in range(30)]
    outputs = list(map(whole, choose.sample(buffers[1:], 5))) if allocating else []
    return program(buffers, body, outputs, {n: (0, 0)} if symbolic else {})


@pytest.mark.parametrize("seed", range(20))
def test_what_is_alive_at_one_time_does_not_overlap(seed: int) -> None:
    assert overlapping(random_program(seed)) == []


def most_bytes(source: Program, arena: Container[str] = (), dying: Container[str] = ()) -> int:
    """What is allocated beside an arena in which the buffers `arena` lie, at the statement where it is the most."""
    alive, kept = lifetimes(source), {view.buffer for view in source.outputs}
    totals = [0] * len(source.body)
    for name, life in alive.items():
        given = source.buffers[name].kind == "input"
        if name not in arena and (not given or name in dying):
            for number in range(0 if given else life.first, len(totals) if name in kept else life.last + 1):
                totals[number] += value(source.buffers[name].span) * source.buffers[name].dtype.itemsize
    return max(totals)


@pytest.mark.parametrize("seed", range(20))
def test_an_arena_needs_hardly_more_than_allocations_in_time(seed: int) -> None:
    source = random_program(seed, allocating=True)
    assert overlapping(source) == []
    for dying in ([], ["x"]):
        layout = plan_layout(source, dying)
        needed = most_bytes(source, dying=dying)
        assert value(layout.bytes) + most_bytes(source, layout.offsets, dying) <= needed + 30 * CPU.line


@pytest.mark.parametrize("operator", [extern, extern_out])
def test_an_arena_gives_way_to_large_results(operator: Callable) -> None:
    x, t, u, y = buffer("x", 1000, kind="input"), buffer("t", 1000), buffer("u", 1000), buffer("y", 3000, kind="output")
    body = [doubling("a", x, t, 1000), extern_out("b", "aten::flip.out", [whole(t), [0]], u),
            operator("c", "aten::cat" + (".out" if operator is extern_out else ""), [[whole(u), whole(x), whole(x)]], y)]
    layout = plan_layout(program([x, t, u, y], body, [whole(y)]))
    assert set(layout.offsets) == {"u"} and value(layout.bytes) == 4032


def test_an_input_that_dies_leaves_room_for_both() -> None:
    x, t, u, y = buffer("x", 4000, kind="input"), buffer("t", 1000), buffer("u", 1000), buffer("y", 3000, kind="output")
    body = [doubling("a", x, t, 1000), extern_out("b", "aten::add.out", [whole(t), View("x", (1000,), (1,), 1000)], u),
            extern_out("c", "aten::cat.out", [[whole(u), whole(u), whole(u)]], y)]
    source = program([x, t, u, y], body, [whole(y)])
    assert set(plan_layout(source, ["x"]).offsets) == {"t", "u"} and set(plan_layout(source).offsets) == {"u"}


@pytest.mark.parametrize("seed", range(20))
def test_nor_with_symbolic_sizes(seed: int) -> None:
    source = random_program(seed, symbolic=True)
    for n in (2, 3, 50, 5000):
        assert overlapping(source, n=n) == []


def test_the_check_itself_finds_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    source = chain(1000, 1000, 1000, 1000)
    wrong = Layout(dict.fromkeys(("b1", "b2"), index(0)), index(4032))
    monkeypatch.setitem(globals(), "plan_layout", lambda _: wrong)
    assert overlapping(source) == [("b1", "b2")]


def test_the_arena_holds_nearly_all_that_is_alive_at_once() -> None:
    """Where nothing lies beside it; but for programs that no packing of theirs fits."""
    parts = sorted(value(plan_layout(source).bytes) / most_bytes(source) for source in map(random_program, range(10)))
    assert parts[2] > 0.99 and parts[-1] < 1.02


def test_a_gap_is_filled() -> None:
    """Large, small, large … : a small one lies where a large one was."""
    source = chain(16, 1024, 16, 1024, 16, 1024, 16)
    source = replace(source, outputs=[], buffers=source.buffers | {"b6": replace(source.buffers["b6"], kind="temporary")})
    assert value(plan_layout(source).bytes) == 4096 + 64


def test_symbolic_places_are_shared_where_one_certainly_fits() -> None:
    n = index(Symbol("n"))
    sizes = [n, n * 2, n, n * 2 + 8, n]
    buffers = [buffer("x", n, kind="input"), *(buffer(f"t{i}", size) for i, size in enumerate(sizes))]
    body = [extern_out(f"e{i}", "aten::neg.out", [whole(buffers[i])], buffers[i + 1]) for i in range(5)]
    layout = plan_layout(program(buffers, body, [], {Symbol("n"): (0, 0)}))
    assert layout.offsets["t0"] == layout.offsets["t2"] == layout.offsets["t4"] and layout.offsets["t1"] == layout.offsets["t3"]
    assert value(layout.bytes, n=16) == 64 + 160 + 32     # of 16 and of 40 elements, each a multiple of 64 bytes


def test_a_size_that_might_be_negative_has_memory_of_its_own() -> None:
    n = index(Symbol("n", 0))
    x, t, y = buffer("x", n, kind="input"), buffer("t", n * 4 - 100), buffer("y", n, kind="output")
    body = [extern_out("a", "aten::neg.out", [whole(x)], t), extern_out("b", "aten::neg.out", [whole(t)], y)]
    assert plan_layout(program([x, t, y], body, [whole(y)])).offsets == {}


def test_what_is_returned_or_allocated_by_operators_is_not_in_the_arena() -> None:
    x, t, u, v = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4), buffer("v", 4000)
    body = [extern("a", "aten::neg", [whole(x)], t), doubling("b", t, u, 4), doubling("c", u, v, 4)]
    assert set(plan_layout(program([x, t, u, v], body, [whole(v)])).offsets) == {"u"}


def test_lifetimes_and_spans() -> None:
    alive = lifetimes(chain(4, 4, 4, 4))
    assert [(alive[f"b{n}"].first, alive[f"b{n}"].last) for n in range(4)] == [(0, 0), (0, 1), (1, 2), (2, 2)]
    assert buffer("a", 3, 4, strides=(8, 2)).span == 2 * 8 + 3 * 2 + 1 and buffer("a", 3, 0).span == 0 and buffer("a").span == 1
