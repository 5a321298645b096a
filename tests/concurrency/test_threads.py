"""Threads: each captures and hits on its own, under modes of its own, whatever the others do."""
from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import capture
from capture import config
from capture.errors import CaptureError, GraphBreakError
from capture.guards.tree import GuardTree
from tests.threads import THREADS, in_threads, switching_often

ROUNDS = 60
X = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_one_function_in_many_threads(warm: bool) -> None:
    linear = nn.Linear(3, 3)

    @capture.compile(fullgraph=True)
    def program(x):
        return linear(x).relu() * x.shape[0]
    if warm:
        program(X)

    def work(number: int) -> None:
        for k in range(ROUNDS):
            x = X + number + k
            assert torch.equal(program(x), linear(x).relu() * 2)
    in_threads(work)
    stats = capture.stats(program)
    assert stats.captures + stats.hits + stats.native_calls == THREADS * ROUNDS + warm
    assert stats.bailouts == 0 and (not warm or stats.captures == 1)


def test_different_functions_in_many_threads() -> None:
    def work(number: int) -> None:
        state = SimpleNamespace(steps=0)

        @capture.compile(fullgraph=True)
        def program(x):
            state.steps += 1
            return [row * number for row in x]
        for k in range(ROUNDS):
            assert all(torch.equal(a, b * number) for a, b in zip(program(X), X, strict=True))
        assert state.steps == ROUNDS
        assert (capture.stats(program).captures, capture.stats(program).hits) == (1, ROUNDS - 1)
    in_threads(work)


def test_each_thread_has_modes_of_its_own() -> None:
    weight = torch.ones(3, requires_grad=True)
    program = capture.compile(lambda x: (x * weight, x @ x.T, torch.is_grad_enabled()), fullgraph=True)
    modes = [torch.enable_grad, torch.no_grad, torch.inference_mode,
             lambda: torch.autocast("cpu", dtype=torch.bfloat16)]

    def work(number: int) -> None:
        with modes[number % len(modes)]():
            for _ in range(ROUNDS):
                product, square, enabled = program(X)
                expected = X * weight
                assert (product.requires_grad, product.is_inference()) == (expected.requires_grad,
                                                                           expected.is_inference())
                assert square.dtype == (X @ X.T).dtype and enabled == torch.is_grad_enabled()
    in_threads(work)
    assert capture.stats(program).bailouts == 0


def test_shared_state_is_changed_by_every_call() -> None:
    state, lock = SimpleNamespace(total=torch.zeros(2, 3), log=[]), threading.Lock()

    @capture.compile
    def program(x):
        state.total += x
        state.log.append(x.ndim)
        return state.total.sum()

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            with lock:
                program(X)
    in_threads(work)
    assert torch.equal(state.total, X * THREADS * ROUNDS) and state.log == [2] * (THREADS * ROUNDS)


def test_at_the_limit_another_thread_may_have_changed_what_did_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = capture.compile(lambda x, way: x * len(way), backend="eager", recompile_limit=1)
    compiled(X, [1])
    monkeypatch.setattr(GuardTree, "explain", lambda self, function, args, every=False: [])
    assert torch.equal(compiled(X, (1, 2, 3)), X * 3) and capture.stats(compiled).native_calls == 1


def test_what_is_read_under_a_lock_is_what_the_last_thread_has_written() -> None:
    state, lock = SimpleNamespace(count=0), threading.Lock()

    @capture.compile
    def program(x):
        with lock:
            state.count += 1
            number = state.count
        return x * number

    def work(number: int) -> list[int]:
        return [int(program(X)[0, 1]) for _ in range(ROUNDS)]
    with switching_often():
        numbers = [number for numbers in in_threads(work) for number in numbers]
    assert sorted(numbers) == list(range(1, THREADS * ROUNDS + 1))


@capture.disable
def others_find_free(lock: Any, twice: Any) -> tuple[bool, bool]:
    """Breaks the graph: whether another thread finds these taken."""
    free = []
    asking = threading.Thread(target=lambda: free.extend(each.acquire(blocking=False) for each in (lock, twice)))
    asking.start()
    asking.join(10)
    return free[0], free[1]


def test_a_lock_that_the_call_makes_is_held_behind_a_break() -> None:
    """As often as it was taken: giving it back once more raises."""
    def program(x):
        lock, twice = threading.Lock(), threading.RLock()
        with lock, twice:
            twice.acquire()
            free = others_find_free(lock, twice)
            held = lock.locked()
            twice.release()
        try:
            twice.release()
        except RuntimeError as error:
            return x * 2, free, held, lock.locked(), str(error)
        return x, free
    compiled = capture.compile(program, backend="eager")
    for _ in range(3):
        product, free, *rest = compiled(X)
        assert torch.equal(product, X * 2) and free == (False, False) and rest == [True, False, "cannot release un-acquired lock"]
    assert capture.stats(compiled).hits == 2


def test_a_capture_does_not_affect_other_threads() -> None:
    """One thread stands still in the midst of a capture; another one runs, captures and hits."""
    inside, go_on = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    @capture.compile
    def slow(x):
        seen["slow"] = capture.is_capturing()
        inside.set()
        go_on.wait(10)
        return x * 2

    quick = capture.compile(lambda x: x + 1, fullgraph=True)
    thread = threading.Thread(target=lambda: seen.update(result=slow(X)), daemon=True)
    thread.start()
    assert inside.wait(10)
    seen["here"] = capture.is_capturing()
    assert [torch.equal(quick(X), X + 1) for _ in range(3)] == [True] * 3
    assert (capture.stats(quick).captures, capture.stats(quick).hits) == (1, 2)
    assert plain(X) == "plain"
    go_on.set()
    thread.join(10)
    assert seen["slow"] and not seen["here"] and torch.equal(seen["result"], X * 2)


def plain(x):
    return "plain"


def test_exceptions_stay_in_their_thread() -> None:
    @capture.compile
    def program(x, number):
        if number % 2:
            raise ValueError(number)
        return x * number

    def work(number: int) -> int:
        failures = 0
        for _ in range(ROUNDS):
            try:
                assert torch.equal(program(X, number), X * number)
            except ValueError as error:
                assert error.args == (number,)
                failures += 1
        return failures
    assert in_threads(work) == [ROUNDS * (number % 2) for number in range(THREADS)]


def test_training_in_many_threads() -> None:
    def work(number: int) -> None:
        torch_model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        compiled = capture.compile(torch_model, fullgraph=True)
        for _ in range(10):
            compiled(X).sum().backward()
            ours = [p.grad.clone() for p in torch_model.parameters()]
            torch_model.zero_grad()
            torch_model(X).sum().backward()
            assert all(torch.equal(a, p.grad) for a, p in zip(ours, torch_model.parameters(), strict=True))
            torch_model.zero_grad()
    in_threads(work)


def test_reset_while_others_call() -> None:
    program = capture.compile(lambda x: x * 2)

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            if number == 0:
                capture.reset()
            else:
                assert torch.equal(program(X), X * 2)
    in_threads(work)


def test_a_compiled_function_is_dropped_in_another_thread() -> None:
    def work(number: int) -> None:
        for _ in range(10):
            program = capture.compile(lambda x: x * number)
            program(X)
            program(X)
            other = threading.Thread(target=program, args=(X,), daemon=True)
            other.start()
            del program
            other.join()
    in_threads(work)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_generator_of_a_capture_is_resumed_in_another_thread(fullgraph: bool) -> None:
    """Between two traces, or while the trace goes on, which is given up then."""
    log: list[str] = []

    @capture.disable
    def elsewhere(rows):
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(rows), daemon=True)
        thread.start()
        thread.join(10)
        return found

    def program(x):
        def rows():
            try:
                for k in range(3):
                    yield x + k
            finally:
                log.append("end")
        generator = rows()
        return [next(generator), *elsewhere(generator)]
    compiled = capture.compile(program, fullgraph=fullgraph)
    for _ in range(2):
        if fullgraph:
            with pytest.raises(GraphBreakError):
                compiled(X)
        else:
            assert same(compiled(X), [X, X + 1, X + 2])
    assert log == ["end"] * 2


MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)]


@capture.disable
def outside(x):
    return x


def programs(number: int) -> list[Callable[..., Any]]:
    """Programs of all kinds; `number` makes them differ."""
    weight = torch.full((3,), number + 1.0, requires_grad=True)
    layer = nn.Linear(3, 3)

    def plain(x, k):
        return (x * weight).tanh() + k

    def broken(x, k):
        x = outside(x * k)
        if x.sum() > 10:
            x = x - outside(x)
        return layer(x).relu()

    def containers(x, k):
        rows = {i: [row * k] for i, row in enumerate(x)}
        return [row for _, (row,) in sorted(rows.items())], torch.is_grad_enabled()

    def handled(x, k):
        try:
            if k % 2:
                raise KeyError(k)
            return x + k
        except KeyError as error:
            return x * error.args[0]

    def generated(x, k):
        def rows():
            for row in x:
                yield row + (yield k)
        generator = rows()
        return next(generator) + generator.send(2)
    return [plain, broken, containers, handled, generated]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return (left.dtype, left.requires_grad, left.is_inference()) == (right.dtype, right.requires_grad, right.is_inference()) \
            and torch.equal(left, right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize(("aside", "often", "rounds"), [
    (None, 0.0, 14), (capture.reset, 0.06, 10), (lambda: str(capture.report()), 0.04, 8)], ids=["", "with resets", "with reports"])
def test_captures_hits_breaks_and_modes_of_all_kinds(aside: Callable[[], object] | None, often: float, rounds: int) -> None:
    """Threads call the same functions, and their own, on arguments that make new captures now and then: most do, so that `rounds`
    are few. Each call is followed by `aside` with the probability `often`; what a report takes grows with what was captured."""
    shared = [(program, capture.compile(program)) for program in programs(0)]

    def work(number: int) -> int:
        rng = random.Random(number)
        both = [*shared, *((program, capture.compile(program)) for program in programs(number))]
        for k in range(rounds):
            eager, compiled = rng.choice(both)
            x, factor, mode = (X + number).to(rng.choice([torch.float32, torch.float64])), rng.randrange(3), rng.choice(MODES)
            with mode():
                try:
                    expected = eager(x, factor)
                except Exception as error:              # other dtypes than the layer's
                    expected = type(error)
                try:
                    found = compiled(x, factor)
                except CaptureError:
                    raise
                except Exception as error:
                    found = type(error)
            assert same(expected, found), (eager.__name__, number, k, expected, found)
            if aside is not None and rng.random() < often:
                aside()
        return sum(capture.stats(compiled).bailouts for _, compiled in both)
    with config.RECAPTURE_LIMIT.set(64), switching_often():
        assert in_threads(work) == [0] * THREADS


def test_gradients_and_state_of_one_function_in_many_threads() -> None:
    """Each thread has a model and an optimizer of its own; all go through one compiled function."""
    @capture.compile
    def step(model, x, rate):
        model.zero_grad()
        model(x).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
        model.steps += 1
        return model.steps

    def trained(step: Callable[..., int], number: int) -> list[torch.Tensor]:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        model.steps = 0
        for i, parameter in enumerate(model.parameters()):
            nn.init.constant_(parameter, 0.1 * (i + 1))
        for k in range(8):
            assert step(model, X + number, 0.01) == k + 1
        return [parameter.detach() for parameter in model.parameters()]

    def work(number: int) -> bool:
        return same(trained(step.__wrapped__, number), trained(step, number))
    with switching_often():
        assert all(in_threads(work))
