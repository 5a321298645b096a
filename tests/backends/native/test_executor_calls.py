"""The executor: what it holds and for how long, calls from several threads, and what it refuses."""
from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from capture import _C
from capture.backends.native.ir import Program, View
from capture.backends.native.plan import Plan
from capture.backends.native.serialization import decode, encode

from .programs import N, buffer, chain, doubling, executor_of, extern, extern_out, plan_of, program, whole

pytestmark = pytest.mark.usefixtures("no_workspaces_from_before")


# What is held, and for how long.

class Watch:
    """The operator capture_test::look: it notes which tensors are still alive, calls `then`, and copies its argument."""

    def __init__(self) -> None:
        self.watched: list[weakref.ref] = []
        self.alive: list[list[bool]] = []
        self.then: Callable[[], None] = lambda: None
        self.library = torch.library.Library("capture_test", "FRAGMENT")
        self.library.define("look(Tensor x) -> Tensor")
        self.library.impl("look", self.look, "CPU")

    def look(self, x: torch.Tensor) -> torch.Tensor:
        self.alive.append([ref() is not None for ref in self.watched])
        self.then()
        return x.clone()


@pytest.fixture
def watch():
    watch = Watch()
    yield watch
    watch.library._destroy()


def looking(watch: Watch) -> Program:
    """Uses `a`, looks, uses `b`, looks."""
    a, b = buffer("a", 4, kind="input"), buffer("b", 4, kind="input")
    s, t, u, y = buffer("s", 4), buffer("t", 4), buffer("u", 4), buffer("y", 4, kind="output")
    body = [extern("one", "aten::neg", [whole(a)], s), extern("two", "capture_test::look", [whole(s)], t),
            extern("three", "aten::add.Tensor", [whole(t), whole(b)], u), extern("four", "capture_test::look", [whole(u)], y)]
    return program([a, b, s, t, u, y], body, [whole(y)])


def test_run_boxed_lets_inputs_die_after_their_last_use(watch: Watch) -> None:
    run = executor_of(looking(watch), None)
    arguments = [torch.randn(4), torch.randn(4)]
    expected = -arguments[0] + arguments[1]
    watch.watched = [weakref.ref(tensor) for tensor in arguments]
    (result,) = run.run_boxed(arguments)
    assert arguments == [] and torch.equal(result, expected)
    assert watch.alive == [[False, True], [False, False]]


def test_arguments_may_have_any_strides(library: Path) -> None:
    run, given = executor_of(chain(), library), torch.randn(())
    expected = given * 16
    (result,) = run.run_boxed([given.expand(N)], (), True)
    assert torch.equal(result, expected.expand(N)) and result.is_contiguous()
    for arguments in (([given.expand(N)], (), False), ([torch.randn(2 * N)], (), True), ([given.expand(N).double()], (), True)):
        with pytest.raises(RuntimeError, match=" with strides .*, not Float"):
            run.run_boxed(*arguments)


@pytest.mark.parametrize("given", [torch.complex(torch.randn(N), torch.randn(N)).conj().imag, torch._efficientzerotensor(N)],
                         ids=["negative", "zeros"])
def test_arguments_whose_elements_are_not_in_their_memory(library: Path, given: torch.Tensor) -> None:
    run = executor_of(chain(), library)
    (result,) = run.run_boxed([given], (), True)
    assert torch.equal(result, given.clone() * 16)
    with pytest.raises(RuntimeError, match="x is .*, not"):
        run(given)


def test_a_call_holds_nothing_afterwards(library: Path) -> None:
    run = executor_of(chain(), library)
    given = torch.randn(N)
    (result,) = run(given)
    watched = weakref.ref(given), weakref.ref(result)
    del given, result
    assert [ref() for ref in watched] == [None, None]


def test_an_exception_leaves_nothing_behind() -> None:
    x, w, y = buffer("x", 2, 3, kind="input"), buffer("w", 2, 3, kind="input"), buffer("y", 2, 3, kind="output")
    run = executor_of(program([x, w, y], [extern("mm", "aten::mm", [whole(x), whole(w)], y)], [whole(y)]), None)
    arguments = [torch.randn(2, 3), torch.randn(2, 3)]
    watched = [weakref.ref(tensor) for tensor in arguments]
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as raised:
        run.run_boxed(arguments)
    del raised
    gc.collect()
    assert arguments == [] and [ref() for ref in watched] == [None, None]


def test_no_references_leak(library: Path) -> None:
    run, given = executor_of(chain(), library), torch.randn(N)
    arguments = (given,)
    gc.collect()
    before = sys.getrefcount(given), sys.getrefcount(run), sys.getrefcount(None)
    for _ in range(100):
        run(*arguments)
        run.run_boxed([given])
        with pytest.raises(RuntimeError):
            run(torch.randn(3))
    gc.collect()
    after = sys.getrefcount(given), sys.getrefcount(run), sys.getrefcount(None)
    assert after[:2] == before[:2] and abs(after[2] - before[2]) < 50


def test_executors_and_their_constants_die(library: Path) -> None:
    c, y = buffer("c", 3, kind="constant"), buffer("y", 3, kind="output")
    source = program([c, y], [doubling("k", c, y, 3)], [whole(y)])
    value = torch.ones(3)
    source.constants["c"] = value
    types = sys.getrefcount(_C.Executor)
    run = executor_of(source, library)
    run()
    watched = weakref.ref(value)
    source.constants.clear()
    del value, run
    after = sys.getrefcount(_C.Executor)
    assert watched() is None and after == types


# Threads.

def test_eight_threads_at_once(library: Path) -> None:
    x, t, u, y = buffer("x", 64, 64, kind="input"), buffer("t", 4096), buffer("u", 64, 64), buffer("y", 4096, kind="output")
    body = [doubling("a", x, t, 4096), extern_out("mm", "aten::mm.out", [View("t", (64, 64), (64, 1)), whole(x)], u),
            doubling("b", u, y, 4096)]
    run = executor_of(program([x, t, u, y], body, [View("y", (64, 64), (64, 1))]), library)
    wrong: list[object] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        try:
            given = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
            expected = (given * 2 @ given) * 2
            barrier.wait()
            for _ in range(50):
                (result,) = run(given)
                if not torch.allclose(result, expected, atol=1e-4):
                    wrong.append(seed)
        except BaseException as error:
            wrong.append(error)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_operator_may_run_the_executor_again(library: Path, watch: Watch) -> None:
    x, t, u, y = buffer("x", 4, kind="input"), buffer("t", 4), buffer("u", 4), buffer("y", 4, kind="output")
    body = [doubling("k", x, t, 4), extern("look", "capture_test::look", [whole(t)], u),
            extern_out("sum", "aten::add.out", [whole(t), whole(u)], y)]
    run = executor_of(program([x, t, u, y], body, [whole(y)]), library)
    inner: list[torch.Tensor] = []

    def once_more() -> None:
        watch.then = lambda: None
        inner.extend(run(torch.full((4,), 100.0)))
    watch.then = once_more
    assert torch.equal(run(torch.ones(4))[0], torch.full((4,), 4.0))
    assert torch.equal(inner[0], torch.full((4,), 400.0))


# What is refused.

def test_arguments_that_the_plan_does_not_expect(library: Path) -> None:
    run = executor_of(chain(), library)
    for arguments, error in (((), TypeError), ((torch.randn(N), 1), TypeError), ((3,), ValueError), (("x",), TypeError),
                             ((torch.randn(N + 1),), RuntimeError), ((torch.randn(N, dtype=torch.float64),), RuntimeError),
                             ((torch.randn(2 * N)[::2],), RuntimeError)):
        with pytest.raises(error):
            run(*arguments)
        given = list(arguments)
        with pytest.raises(error):
            run.run_boxed(given)
    with pytest.raises(TypeError, match="no keyword"):
        run(x=1)
    with pytest.raises(TypeError, match="takes a list"):
        run.run_boxed((torch.randn(N),))
    given = torch.randn(N)
    assert torch.equal(run(given)[0], given * 16)


def test_plans_that_cannot_be_run(library: Path, tmp_path: Path) -> None:
    good = plan_of(chain())
    with pytest.raises(ValueError, match="there is no library"):
        _C.Executor(good)
    with pytest.raises(OSError, match="cannot be loaded"):
        _C.Executor(good, tmp_path / "nowhere.so")
    with pytest.raises(ValueError, match="no kernel nothing"):
        _C.Executor(good._replace(steps=(good.steps[0]._replace(symbol="nothing"),)), library)
    with pytest.raises(ValueError, match="there is no number"):
        _C.Executor(good._replace(arena=999), library)
    with pytest.raises(ValueError, match="lies in the arena"):
        _C.Executor(good._replace(outputs=(("tensor", 1),)), library)
    x, y = buffer("x", 4, kind="input"), buffer("y", 4, kind="output")
    for op, args, kwargs, sentence in (
            ("aten::nothing", [whole(x)], {}, "Could not find schema"),
            ("aten::add.Tensor", [whole(x)], {}, "needs an argument other"),
            ("aten::neg", [whole(x), 1], {}, "so many arguments"), ("aten::neg", [whole(x)], {"dim": 1}, "no argument dim")):
        with pytest.raises((ValueError, RuntimeError), match=sentence):
            executor_of(program([x, y], [extern("call", op, args, y, kwargs=kwargs)], [whole(y)]), None)


def test_a_plan_is_kept_as_bytes(library: Path) -> None:
    plan = decode(Plan, encode(plan_of(chain())))
    given = torch.randn(N)
    assert plan == plan_of(chain()) and torch.equal(_C.Executor(plan, str(library))(given)[0], given * 16)
