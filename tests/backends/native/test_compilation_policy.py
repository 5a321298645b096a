"""When graphs are compiled, with a compiler that only pretends (`fakes`), and processors that are free or not as the test says."""
from __future__ import annotations

import functools
import gc
import itertools
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import capture
from capture import config
from capture.backends.native import compilation_policy as policy
from capture.backends.native import compiles, processor, tiers
from capture.backends.native.compilation_policy import Use
from capture.backends.native.tiers import Options, Stage
from tests.backends.native import fakes
from tests.backends.native.end_to_end.engine import tier_of
from tests.backends.native.fakes import FAKE

pytestmark = pytest.mark.usefixtures("forks")
X = torch.randn(3)
native = functools.partial(tiers.compile_graph, compiler=FAKE)


@pytest.fixture(autouse=True)
def no_disk_and_no_trial() -> Iterator[None]:
    fakes.loaded.clear()
    fakes.calls.clear()
    with config.CACHE.set(0), config.TRIAL_CALLS.set(0), config.COMPILE_AFTER.set(50):
        yield


@pytest.fixture(autouse=True)
def budget(monkeypatch) -> policy.Budget:
    """As at the beginning of a program."""
    fresh = policy.Budget()
    for module in (policy, tiers, compiles):
        monkeypatch.setattr(module, "budget", fresh)
    return fresh


@pytest.fixture
def free(monkeypatch) -> Callable[[float], None]:
    """Says how many processors are free. At first none is."""
    def say(count: float) -> None:
        monkeypatch.setattr(Use, "free_until", lambda self, end: count)
        monkeypatch.setattr(policy, "_free", count)
    say(0.0)
    monkeypatch.setattr(policy, "WINDOW", 0.0)
    return say


@pytest.fixture
def patient(free, monkeypatch) -> None:
    """The time of calls alone never suffices."""
    monkeypatch.setattr(policy, "SECONDS", 1e6)
    monkeypatch.setattr(policy, "SECONDS_OF_TRAINING", 1e6)


def adding(number: float, **options: Any) -> Any:
    return capture.compile(lambda x: x * 2 + number, backend=functools.partial(native, **options), fullgraph=True)


def check(function: Any, number: float, calls: int = 1, x: torch.Tensor = X) -> None:
    for _ in range(calls):
        torch.testing.assert_close(function(x), x * 2 + number)


def test_a_graph_waits_while_all_processors_are_used(patient) -> None:
    function = adding(1.0)
    check(function, 1.0, 5)
    assert tier_of(function).stage is Stage.POSTPONED and not fakes.loaded
    assert (capture.stats(function).compiled, capture.stats(function).pending) == (0, 1)
    assert "will be compiled when its calls have taken long enough (the program uses all processors" in capture.explain(function)
    assert capture.wait()
    check(function, 1.0, 3)
    assert tier_of(function).stage is Stage.COMPILED and len(fakes.calls) == 3


def test_it_is_compiled_once_its_calls_have_taken_long_enough(free, monkeypatch) -> None:
    monkeypatch.setattr(policy, "SECONDS", 0.18)      # two operations: 0.36 s, of which half is awaited
    clock = itertools.count()
    fake = types.SimpleNamespace(perf_counter=lambda: 0.05 * next(clock), process_time=time.process_time)
    monkeypatch.setattr(policy, "time", fake)
    monkeypatch.setattr(policy, "WINDOW", 1e6)
    function = adding(1.0)
    check(function, 1.0, 5)                         # four hits, each of which takes 0.05 s
    assert tier_of(function).stage is Stage.POSTPONED
    check(function, 1.0)
    assert tier_of(function).stage is not Stage.POSTPONED
    monkeypatch.undo()
    while capture.stats(function).pending:
        check(function, 1.0)
    check(function, 1.0)
    assert tier_of(function).stage is Stage.COMPILED and fakes.calls


@pytest.fixture
def work(monkeypatch) -> Callable[[float], None]:
    """Says how many processor seconds the program has had, on one thread."""
    now = [100.0]
    monkeypatch.setattr(policy, "time", types.SimpleNamespace(process_time=lambda: now[0], perf_counter=time.perf_counter))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def done(seconds: float) -> None:
        now[0] += seconds
    return done


def test_compiling_takes_what_kernels_save(work) -> None:
    budget = policy.Budget()
    assert budget.takes(policy.FREE_SECONDS) and not budget.takes(1.0)
    work(1.0 / policy.SAVED - 0.1)
    assert not budget.takes(1.0)
    work(0.2)
    assert budget.takes(1.0) and not budget.takes(1.0)


@pytest.mark.parametrize(("saved", "seconds"), [(0.5, 2.4), (0.0, 20.2)])
def test_it_takes_more_where_kernels_save_more(work, saved, seconds) -> None:
    budget = policy.Budget()
    assert budget.takes(policy.FREE_SECONDS)
    for _ in range(3):
        budget.learn(saved, policy.FREE_SECONDS)
    work(seconds / 2)
    assert not budget.takes(1.0)
    work(seconds / 2)
    assert budget.takes(1.0)


def test_small_graphs_hardly_tell_of_large_ones(work) -> None:
    """Three that take little time to compile, and save nothing, do not keep a large one waiting for long."""
    budget = policy.Budget()
    for _ in range(3):
        budget.learn(0.0, 0.1)
    assert policy.SAVED > budget.saved > 0.8 * policy.SAVED
    budget.learn(0.5, 6.0)
    assert budget.saved > 2 * policy.SAVED


def test_what_was_taken_counts_and_not_what_was_expected(work) -> None:
    budget = policy.Budget()
    assert budget.takes(1.0)
    budget.settle(1.0, 0.1)
    assert budget.takes(1.8) and not budget.takes(0.2)
    budget.settle(1.8, 3.8)
    work(2.0 / policy.SAVED)
    assert not budget.takes(0.2)


def test_jobs_that_are_not_done_take_nothing(free, budget) -> None:
    """One of two graphs that are alike is compiled for both, and what nobody wants any more is not compiled."""
    alike = [adding(7.0), adding(7.0)]
    for function in alike:
        check(function, 7.0)
        postponed(function).expected.seconds, postponed(function).spent = 0.5, 1.0
    for function in alike:
        check(function, 7.0)
    assert capture.wait() and budget.taken < 0.4

    unwanted = adding(8.0)
    check(unwanted, 8.0)
    compile, = postponed(unwanted).begin.args
    assert budget.takes(0.5)
    taken, compile.reserved = budget.taken, 0.5
    assert not compile.wanted() and budget.taken == pytest.approx(taken - 0.5)


@pytest.mark.parametrize(("saved", "times"), [
    (None, 1.0), (policy.SAVED, 1.0), (2 * policy.SAVED, 0.5), (0.0, policy.SAVED / policy.LEAST_SAVED)])
def test_calls_run_for_longer_where_kernels_saved_nothing(saved, times) -> None:
    with config.COMPILE_AFTER.set(200):
        assert policy.Expected(3.0, saved).awaited() == pytest.approx(6.0 * times)


def test_what_was_seen_holds_for_other_sizes(free, budget) -> None:
    """Kernels for all sizes that take long to compile, and then are found to save nothing."""
    function = capture.compile(lambda x: x * 2 + 1.0, dynamic=True, backend=functools.partial(tiers.compile_graph, compiler=FAKE))
    for size in (3, 4):
        check(function, 1.0, x=torch.randn(size))
    general, = (tier for name, tier in tier_of(function).each() if name == "for all sizes")
    guessed = general.expected.seconds
    with config.TRIAL_CALLS.set(1):
        assert capture.wait()
    assert general.expected.seconds != guessed and general.stage is Stage.TRIAL
    general.expected.took(1.0)          # which the compiler that only pretends does not
    general._switch().target.decide(1.0, 2.0)
    assert general.stage is Stage.SLOWER and budget.saved < policy.SAVED
    for _ in range(3):
        check(function, 1.0, x=torch.randn(5))
    single, = (tier for name, tier in tier_of(function).each() if name != "for all sizes")
    assert single.expected is general.expected and general.expected.saved == 0.0


def test_a_graph_waits_for_the_budget_and_says_so(free, work, budget, monkeypatch) -> None:
    monkeypatch.setattr(policy, "SECONDS", 1e-9)
    function = adding(1.0)
    check(function, 1.0)
    assert budget.takes(policy.FREE_SECONDS)
    check(function, 1.0, 3)
    assert "compiling has had its share of the time: kernels save 20%" in capture.explain(function)
    work(1.0)
    check(function, 1.0)
    assert tier_of(function).stage is not Stage.POSTPONED


def test_trials_tell_what_kernels_save(budget) -> None:
    with config.TRIAL_CALLS.set(2), config.COMPILE_AFTER.set(0):
        function = adding(1.0)
        check(function, 1.0)
        assert capture.wait()
        saved = budget.saved
        tier_of(function).expected.took(1.0)
        check(function, 1.0, 20)
    assert tier_of(function).stage in (Stage.COMPILED, Stage.SLOWER) and budget.saved != saved


def test_what_was_free_while_calls_were_captured_says_nothing(patient, free) -> None:
    function = adding(1.0)
    check(function, 1.0)
    free(1.0)
    adding(2.0)(X)              # another capture, within that time
    check(function, 1.0)
    assert tier_of(function).stage is Stage.POSTPONED
    check(function, 1.0)
    assert tier_of(function).stage is not Stage.POSTPONED


def test_backward_passes_count(free) -> None:
    passes, alone = capture.compile(lambda x: x.sin(), backend=native), capture.compile(lambda x: x.sin(), backend=native)
    passes(X.clone().requires_grad_())
    alone(X)
    assert postponed(passes).expected.seconds > postponed(alone).expected.seconds
    assert postponed(passes).passes > postponed(alone).passes


def test_a_backward_pass_inside_of_the_graph_is_timed(free) -> None:
    def step(x, w):
        (x @ w).sum().backward()
    function = capture.compile(step, backend=native)
    function(torch.randn(2, 2), torch.randn(2, 2, requires_grad=True))
    assert postponed(function).passes == 1


def test_what_an_optimizer_does_costs_less(free) -> None:
    def step(x, w):
        (x @ w).sum().backward()
        with torch.no_grad():
            w -= w.grad * 0.1
    function = capture.compile(step, backend=native)
    function(torch.randn(2, 2), torch.randn(2, 2, requires_grad=True))
    assert postponed(function).expected.seconds < 0.6


def postponed(function: Any) -> policy.Postponed:
    return tier_of(function)._switch().target


def test_it_is_compiled_when_a_processor_is_free(patient, free) -> None:
    function = adding(1.0)
    check(function, 1.0, 3)
    assert tier_of(function).stage is Stage.POSTPONED
    free(1.0)
    check(function, 1.0)
    assert tier_of(function).stage is not Stage.POSTPONED and capture.wait()
    check(function, 1.0)
    assert len(fakes.calls) == 1


@pytest.mark.parametrize(("unused", "threads", "at_once"), [(1.5, 1, True), (1.5, 64, False), (0.2, 1, False)])
def test_it_is_compiled_at_once_if_the_program_can_use_no_more(patient, free, monkeypatch, unused, threads, at_once) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(processor, "count", lambda: 2)
    free(unused)
    function = adding(1.0)
    check(function, 1.0)
    assert (tier_of(function).stage is not Stage.POSTPONED) is at_once


def test_nothing_waits_where_the_flag_says_so_or_a_hit_is_to_wait(patient) -> None:
    with config.COMPILE_AFTER.set(0):
        function = adding(1.0)
        check(function, 1.0)
    assert tier_of(function).stage is not Stage.POSTPONED
    foreground = adding(2.0, options=Options(background=False))
    check(foreground, 2.0, 2)
    assert tier_of(foreground).stage is Stage.COMPILED


def test_graphs_for_all_sizes_wait_as_well(patient, free) -> None:
    function = capture.compile(lambda x: x * 2 + 1.0, dynamic=True, backend=functools.partial(tiers.compile_graph, compiler=FAKE))
    for size in (3, 4, 5, 6, 7):
        check(function, 1.0, x=torch.randn(size))
    general, = (tier for name, tier in tier_of(function).each() if name == "for all sizes")
    assert general.stage is Stage.POSTPONED and not fakes.loaded
    free(1.0)
    check(function, 1.0, x=torch.randn(8))
    assert general.stage is not Stage.POSTPONED and capture.wait()
    check(function, 1.0, x=torch.randn(9))
    assert general.stage is Stage.COMPILED and fakes.calls


def test_a_graph_that_nobody_needs_is_not_compiled(patient) -> None:
    function = adding(1.0)
    check(function, 1.0, 2)
    del function
    gc.collect()
    assert capture.wait() and not fakes.loaded


def test_errors_are_the_programs_own(patient) -> None:
    function = capture.compile(lambda x, y: x @ y, backend=native, dynamic=True)
    good, bad = torch.ones(2, 2), torch.ones(2, 2)[:, :0]
    for _ in range(3):
        function(good, good)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        function(good, bad.t()[:, :1].expand(0, 3).t()[:3])


def test_threads_begin_it_once(free) -> None:
    function = adding(6.0)
    check(function, 6.0)
    free(1.0)
    threads = [threading.Thread(target=check, args=(function, 6.0, 20)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capture.wait()
    check(function, 6.0)
    assert len(fakes.loaded) == 1


def test_what_is_used_is_seen() -> None:
    before = Use.now()
    busy = threading.Event()

    def work() -> None:
        while not busy.wait(0.0):
            sum(range(1000))
    thread = threading.Thread(target=work)
    thread.start()
    while (after := Use.now()).time < before.time + 0.3 or after.own < before.own + 0.2:
        sum(range(1000))
    busy.set()
    thread.join()
    assert before.free_until(after) <= processor.count() - (after.own - before.own) / (after.time - before.time) + 1e-6


@pytest.mark.parametrize("network", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
def test_a_recurrent_network_is_expected_to_take_as_long_as_its_steps(network: Any, free) -> None:
    """It is one operation of the graph."""
    cell, x = network(3, 4), torch.randn(2, 5, 3)

    def expected(function: Any) -> float:
        compiled = capture.compile(function, backend=native)
        compiled(x)
        return tier_of(compiled).expected.seconds
    assert expected(lambda x: cell(x)[0].sin()) > policy.STEPS * policy.SECONDS_OF_TRAINING
    assert expected(lambda x: (x @ cell.weight_ih_l0.T).sin()) < 5 * policy.SECONDS_OF_TRAINING
