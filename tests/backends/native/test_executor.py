"""The executor: what plans compute, and in which memory."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from capture import _C
from capture.backends.native.evaluate import evaluate
from capture.backends.native.index import Symbol, index
from capture.backends.native.ir import Program, View

from .programs import N, buffer, chain, counting, doubling, executor_of, extern, extern_out, gathering, plan_of, program, whole

pytestmark = pytest.mark.usefixtures("no_workspaces_from_before")


def check(source: Program, library: Path | None, *inputs) -> tuple:
    """Runs a program and compares with the reference interpreter: values, sizes, strides, and what it does to its inputs."""
    def copies():
        return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) if isinstance(x, torch.Tensor) else x
                for x in inputs]
    ours, theirs = copies(), copies()
    run = executor_of(source, library)
    expected = evaluate(source, theirs)
    for results in (run(*ours), run(*copies()), run.run_boxed(copies())):
        assert len(results) == len(expected)
        for result, other in zip(results, expected):
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(result, other, rtol=0, atol=0, equal_nan=True, check_stride=True)
            else:
                assert result == other
    for mine, other in zip(ours, theirs):
        assert torch.equal(mine, other) if isinstance(mine, torch.Tensor) else mine == other
    return results


# Kernels.

def test_kernels_in_a_row_through_the_arena(library: Path) -> None:
    check(chain(), library, torch.randn(N))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                                   torch.bool])
def test_every_dtype(library: Path, dtype: torch.dtype) -> None:
    x, t, y = buffer("x", 7, dtype=dtype, kind="input"), buffer("t", 7, dtype=dtype), buffer("y", 7, dtype=dtype, kind="output")
    check(program([x, t, y], [doubling("a", x, t, 7), doubling("b", t, y, 7)], [whole(y)]), library, torch.arange(7).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.uint16, torch.float8_e4m3fn])
def test_dtypes_of_aten_alone(dtype: torch.dtype) -> None:
    x, t, y = buffer("x", 6, dtype=dtype, kind="input"), buffer("t", 6, dtype=dtype), buffer("y", 6, dtype=dtype, kind="output")
    body = [extern("a", "aten::copy_", [whole(t), whole(x)], mutates=["t"]),
            extern("b", "aten::copy_", [whole(y), whole(t)], mutates=["y"])]
    (result,) = executor_of(program([x, t, y], body, [whole(y)]), None)(torch.arange(6).to(dtype))
    assert result.dtype == dtype and torch.equal(result.to(torch.complex64), torch.arange(6).to(torch.complex64))


def test_a_range_of_nothing_is_not_run(library: Path) -> None:
    x, y = buffer("x", 0, kind="input"), buffer("y", 0, kind="output")
    check(program([x, y], [doubling("k", x, y, 0)], [whole(y)]), library, torch.empty(0))


def test_small_ranges_run_on_one_thread_and_large_ones_on_several(library: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for size, parts in ((1000, 1), (1 << 20, 2)):
            y = buffer("y", size, dtype=torch.int64, kind="output")
            (starts,) = executor_of(program([y], [counting("k", y, size)], [whole(y)]), library)()
            assert len(starts.unique()) == parts
    finally:
        torch.set_num_threads(threads)


def test_an_index_out_of_range_raises_as_in_eager(library: Path) -> None:
    table, where = buffer("table", 5, kind="input"), buffer("where", 3, dtype=torch.int64, kind="input")
    y = buffer("y", 3, kind="output")
    source = program([table, where, y], [gathering("k", table, where, y, 3)], [whole(y)])
    check(source, library, torch.randn(5), torch.tensor([4, 0, 4]))
    run = executor_of(source, library)
    for bad in (5, -1):
        with pytest.raises(IndexError, match="index out of range in self"):
            run(torch.randn(5), torch.tensor([0, bad, 1]))
    assert torch.equal(run(torch.arange(5.0), torch.tensor([1, 2, 3]))[0], torch.tensor([1.0, 2.0, 3.0]))


# Operators of ATen.

def test_out_variants_write_into_the_arena_and_into_outputs(library: Path) -> None:
    x, w, t, u, y = (buffer("x", 4, 3, kind="input"), buffer("w", 3, 5, kind="input"), buffer("t", 4, 5), buffer("u", 20),
                     buffer("y", 4, 5, kind="output"))
    body = [extern_out("mm", "aten::mm.out", [whole(x), whole(w)], t), doubling("k", t, u, 20),
            extern_out("exp", "aten::exp.out", [View("u", (4, 5), (5, 1))], y)]
    check(program([x, w, t, u, y], body, [whole(y)]), library, torch.randn(4, 3), torch.randn(3, 5))


def test_operators_that_allocate(library: Path) -> None:
    x, values, y = buffer("x", 6, kind="input"), buffer("values", 6), buffer("y", 6, kind="output")
    places = buffer("places", 6, dtype=torch.int64, kind="output")
    body = [extern("sort", "aten::sort", [whole(x)], values, places, kwargs={"descending": True}), doubling("k", values, y, 6)]
    check(program([x, values, places, y], body, [whole(y), whole(places)]), library, torch.randn(6))


def test_results_in_a_list_and_results_not_kept() -> None:
    x, b, d = buffer("x", 4, kind="input"), buffer("b", kind="output"), buffer("d", kind="output")
    body = [extern("split", "aten::unbind.int", [whole(x)], None, b, None, d)]
    inputs = torch.randn(4)
    results = check(program([x, b, d], body, [whole(b), whole(d)]), None, inputs)
    assert results[0].untyped_storage().data_ptr() != results[1].untyped_storage().data_ptr()


def test_a_result_that_is_no_memory_of_its_own_is_copied(library: Path) -> None:
    x, t, u, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4, kind="output"), buffer("y", 4, kind="output")
    body = [doubling("k", x, t, 4), extern("same", "aten::contiguous", [whole(t)], u),
            extern("its", "aten::contiguous", [whole(x)], y)]
    given = torch.randn(4)
    (first, second), (third, _) = (executor_of(program([x, t, u, y], body, [whole(u), whole(y)]), library)(given) for _ in range(2))
    assert torch.equal(first, given * 2) and torch.equal(third, given * 2)
    assert second.data_ptr() != given.data_ptr() and first.data_ptr() != third.data_ptr()


def test_a_result_with_other_strides_gets_those_that_are_declared() -> None:
    x, y = buffer("x", 3, 4, kind="input"), buffer("y", 3, 4, kind="output", strides=(1, 3))
    source = program([x, y], [extern("neg", "aten::neg", [whole(x)], y)], [whole(y)])
    given = torch.randn(3, 4)
    (result,) = executor_of(source, None)(given)
    assert result.stride() == (1, 3) and torch.equal(result, -given)


def test_a_result_of_other_sizes_is_an_error() -> None:
    x, y = buffer("x", 3, 4, kind="input"), buffer("y", 4, 3, kind="output")
    with pytest.raises(RuntimeError, match=r"y came out as Float\[3, 4\], not as Float\[4, 3\]"):
        executor_of(program([x, y], [extern("neg", "aten::neg", [whole(x)], y)], [whole(y)]), None)(torch.randn(3, 4))


@pytest.mark.parametrize(("op", "args", "kwargs"), [
    ("aten::add.Tensor", ["x", "x"], {"alpha": 3}),
    ("aten::add.Tensor", ["x", "x"], {"alpha": 0.5}),
    ("aten::clamp", ["x", None, 0.25], {}),
    ("aten::full_like", ["x", 2], {"memory_format": torch.preserve_format}),
    ("aten::zeros", [[4, 3]], {"dtype": torch.float32, "layout": torch.strided, "device": torch.device("cpu"),
                               "pin_memory": False}),
    ("aten::roll", ["x", [1], [0]], {}),
    ("aten::_to_copy", ["x"], {"dtype": torch.float32}),
    ("aten::index.Tensor", ["x", [None, "where"]], {}),
    ("aten::div.Tensor_mode", ["x", "x"], {"rounding_mode": "floor"}),
    ("aten::cat", [["x", "x"]], {"dim": 1}),
    ("aten::leaky_relu", ["x", 1], {}),
])
def test_arguments_of_every_kind(op: str, args: list, kwargs: dict) -> None:
    x, where = buffer("x", 4, 3, kind="input"), buffer("where", 3, dtype=torch.int64, kind="input")
    y = buffer("y", 4, 6 if op == "aten::cat" else 3, kind="output")
    views = {"x": whole(x), "where": whole(where)}

    def given(value):
        if isinstance(value, list):
            return [given(item) for item in value]
        return views.get(value, value) if isinstance(value, str) else value
    check(program([x, where, y], [extern("call", op, given(args), y, kwargs=kwargs)], [whole(y)]), None,
          torch.randn(4, 3), torch.tensor([2, 0, 1]))


def test_views_of_another_dtype() -> None:
    x, t, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("y", 4, dtype=torch.int32, kind="output")
    body = [extern("copy", "aten::copy_", [whole(t), whole(x)], mutates=["t"]),
            extern_out("neg", "aten::neg.out", [View("t", (4,), (1,), 0, torch.int32)], y)]
    check(program([x, t, y], body, [whole(y), View("y", (2,), (2,), 1, torch.float32)]), None, torch.randn(4))


def test_random_numbers_are_those_of_eager() -> None:
    a, y = buffer("a", 50), buffer("y", 50, kind="output")
    body = [extern("r", "aten::rand", [[50]], a), extern_out("n", "aten::normal.Tensor_float_out", [whole(a), 1.0], y)]
    run = executor_of(program([a, y], body, [whole(y)]), None)
    torch.manual_seed(3)
    expected = torch.normal(torch.rand(50), 1.0)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    assert torch.equal(run()[0], expected) and torch.equal(torch.get_rng_state(), state)


def test_exceptions_of_operators_are_those_of_python() -> None:
    x, y = buffer("x", 3, 3, kind="input"), buffer("y", 3, 3, kind="output")
    inverse = extern("inverse", "aten::linalg_inv_ex", [whole(x)], y, None, kwargs={"check_errors": True})
    run = executor_of(program([x, y], [inverse], [whole(y)]), None)
    with pytest.raises(torch.linalg.LinAlgError):
        run(torch.zeros(3, 3))
    torch.testing.assert_close(run(torch.eye(3))[0], torch.eye(3))


def test_operators_run_below_autograd_and_autocast() -> None:
    x, w, y = buffer("x", 3, 3, kind="input"), buffer("w", 3, 3, kind="input"), buffer("y", 3, 3, kind="output")
    run = executor_of(program([x, w, y], [extern("mm", "aten::mm", [whole(x), whole(w)], y)], [whole(y)]), None)
    given = torch.randn(3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        (result,) = run(given, torch.randn(3, 3))
    assert result.dtype == torch.float32 and not result.requires_grad and torch.is_grad_enabled()


def test_inside_and_outside_of_inference_mode(library: Path) -> None:
    x, t, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("y", 4, kind="output")
    source = program([x, t, y], [doubling("k", x, t, 4), extern_out("exp", "aten::exp.out", [whole(t)], y)], [whole(y)])
    for first in (True, False):
        run = executor_of(source, library)
        for mode in (first, not first, first):
            with torch.inference_mode(mode):
                given = torch.randn(4)
                (result,) = run(given)
                assert torch.equal(result, (given * 2).exp()) and result.is_inference() == mode


# Sizes.

def test_symbols_of_sizes_and_of_arguments(library: Path) -> None:
    n, k = Symbol("n"), Symbol("k")
    rows = index(n) * 3
    x, t, y = (buffer("x", index(n), 3, kind="input"), buffer("t", rows), buffer("y", rows, kind="output"))
    body = [doubling("a", x, t, rows), doubling("b", t, y, rows)]
    outputs = [whole(y), View("y", (index(n),), (3,), 1), rows + index(k) * 2, (rows + 1) // 2, rows % 4, None]
    source = program([x, t, y], body, outputs, {n: (0, 0), k: (1, None)}, ["x", k])
    for size in (2, 700, 5, 700):
        check(source, library, torch.randn(size, 3), size + 1)


def test_sizes_are_arguments_of_operators() -> None:
    n = Symbol("n")
    x, y, z = buffer("x", index(n), kind="input"), buffer("y", index(n) * 2, kind="output"), buffer("z", index(n), kind="output")
    body = [extern("full", "aten::full", [[index(n) * 2], index(n)], y, kwargs={"dtype": torch.float32}),
            extern("relu", "aten::leaky_relu", [whole(x), index(n)], z)]
    source = program([x, y, z], body, [whole(y), whole(z)], {n: (0, 0)})
    for size in (3, 8):
        check(source, None, torch.randn(size))


# Memory.

def test_the_arena_is_used_again_and_shared_by_executors(library: Path) -> None:
    first, second = executor_of(chain(), library), executor_of(chain(6), library)
    for run in (first, second, first):
        run(torch.randn(N))
        assert _C.workspace_bytes() == 4032         # every other temporary, a multiple of 64 bytes: the last one beside the result
    assert _C.release_workspaces() == 4032 and _C.workspace_bytes() == 0


def test_a_larger_arena_takes_the_place_of_a_smaller_one(library: Path) -> None:
    small, large = executor_of(chain(size=100), library), executor_of(chain(), library)
    small(torch.randn(100))
    large(torch.randn(N))
    assert _C.workspace_bytes() == 4032
    given = torch.randn(100)
    assert torch.equal(small(given)[0], given * 16) and _C.workspace_bytes() == 4032


def test_tensors_over_the_arena_follow_it(library: Path) -> None:
    x, t, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("y", 4, kind="output")
    body = [doubling("k", x, t, 4), extern_out("exp", "aten::exp.out", [whole(t)], y)]
    run = executor_of(program([x, t, y], body, [whole(y)]), library)
    blocks = []
    for _ in range(4):
        given = torch.randn(4)
        assert torch.equal(run(given)[0], (given * 2).exp())
        _C.release_workspaces()
        blocks.append(torch.full((16,), float("nan")))      # may take the place of the arena


def test_outputs_are_fresh_in_each_call(library: Path) -> None:
    run = executor_of(chain(), library)
    one, two = torch.ones(N), torch.full((N,), 2.0)
    first, second = run(one)[0], run(two)[0]
    assert torch.equal(first, one * 16) and torch.equal(second, two * 16)


def test_an_input_that_is_returned_is_the_same_object_and_a_view_shares_its_memory() -> None:
    x = buffer("x", 4, 2, kind="input")
    run = executor_of(program([x], [], [whole(x), View("x", (2, 4), (1, 2)), View("x", (3,), (2,), 1)]), None)
    given = torch.nn.Parameter(torch.randn(4, 2))
    same, transposed, column = run(given)
    assert same is given and transposed.data_ptr() == given.data_ptr() and not transposed.requires_grad
    assert torch.equal(transposed, given.t()) and torch.equal(column, given[:3, 1])


def test_an_input_that_begins_within_its_storage(library: Path) -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4, kind="output")
    source = program([x, y], [doubling("k", x, y, 4)], [whole(y), View("x", (2,), (1,), 1)])
    given = torch.arange(10.0)[3:7]
    doubled, part = executor_of(source, library)(given)
    assert torch.equal(doubled, given * 2) and torch.equal(part, given[1:3])


def test_inputs_are_written_to_and_versions_left_alone(library: Path) -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4, kind="input")
    source = program([x, y], [doubling("k", x, y, 4), extern("add", "aten::add_.Scalar", [whole(y), 1], mutates=["y"])], [])
    check(source, library, torch.randn(4), torch.zeros(4))
    target = torch.zeros(4)
    executor_of(source, library)(torch.ones(4), target)
    assert torch.equal(target, torch.full((4,), 3.0)) and target._version == 0


def test_memory_shared_until_written_stays_shared_unless_the_plan_writes(library: Path) -> None:
    x, y = buffer("x", 4, kind="input"), buffer("y", 4, kind="input")
    run = executor_of(program([x, y], [doubling("k", x, y, 4)], []), library)
    first, second = torch.ones(4), torch.zeros(4)
    lazy, target = torch._lazy_clone(first), torch._lazy_clone(second)
    run(lazy, target)
    assert torch._C._is_cow_tensor(lazy) and not torch._C._is_cow_tensor(target)
    assert torch.equal(second, torch.zeros(4)) and torch.equal(target, torch.full((4,), 2.0))


def test_constants(library: Path) -> None:
    c, y = buffer("c", 3, kind="constant"), buffer("y", 3, kind="output")
    value = torch.tensor([1.0, 2.0, 3.0])
    check(program([c, y], [doubling("k", c, y, 3)], [whole(y)], constants={"c": value}), library)
    with pytest.raises(ValueError, match="another number of constants"):
        _C.Executor(plan_of(program([c, y], [], [whole(c)], constants={"c": value})))
