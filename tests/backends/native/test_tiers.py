"""The way of a graph from tier 1 to compiled code, with a compiler that only pretends (`fakes`)."""
from __future__ import annotations

import functools
import gc
import os
import re
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import capture
from capture import config, errors
from capture.__main__ import Session, parse
from capture.backends.native import compiles, sidecar, tiers
from capture.backends.native.tiers import Options, Stage
from capture.errors import ArgumentError, InternalError
from tests.backends.native import fakes
from tests.backends.native.end_to_end.engine import tier_of
from tests.backends.native.fakes import FAKE

pytestmark = pytest.mark.usefixtures("forks")
X = torch.randn(3)
native = functools.partial(tiers.compile_graph, compiler=FAKE)
at_once = functools.partial(native, options=Options(background=False))


@pytest.fixture(autouse=True)
def no_disk_and_no_trial() -> Iterator[None]:
    """Compiled code is used as soon as it is there, and nothing is found on disk."""
    fakes.loaded.clear()
    fakes.calls.clear()
    tiers._warned.clear()
    with config.CACHE.set(0), config.TRIAL_CALLS.set(0):
        yield


@pytest.fixture
def fresh_process() -> Iterator[None]:
    """A compiling process that starts within the test, with its environment."""
    sidecar.close()
    yield
    sidecar.close()


def adding(number: float, backend: Callable = native) -> Any:
    """A compiled `x * 2 + number`."""
    return capture.compile(lambda x: x * 2 + number, backend=backend, fullgraph=True)


def check(function: Any, number: float, calls: int = 2) -> None:
    """Calls it, and sees that the result is right."""
    for _ in range(calls):
        torch.testing.assert_close(function(X), X * 2 + number)


# --- compiling

def test_a_graph_is_compiled_by_another_process() -> None:
    function = adding(1.0)
    check(function, 1.0, 1)
    assert capture.wait()
    assert fakes.calls == [] and tier_of(function).stage is Stage.COMPILED
    check(function, 1.0, 3)
    artifact, = fakes.loaded
    assert len(fakes.calls) == 3 and artifact["process"] in sidecar.processes() and artifact["process"] != os.getpid()
    stats = capture.stats(function)
    assert (stats.compiled, stats.pending, stats.compile_errors, stats.hits) == (1, 0, [], 3)
    assert "runs compiled" in capture.explain(function)


def test_calls_go_on_while_it_is_compiled(monkeypatch, fresh_process) -> None:
    monkeypatch.setenv("FAKES_SECONDS", "1")
    function = adding(fakes.SLOW)
    check(function, fakes.SLOW, 5)
    stats = capture.stats(function)
    assert (stats.compiled, stats.pending) == (0, 1)
    assert re.search(r"is being compiled \(for \d+\.\d s so far\)", capture.explain(function))
    assert not capture.wait(0.01)
    assert capture.wait()
    check(function, fakes.SLOW, 5)
    assert len(fakes.calls) == 5


def test_waiting_for_nothing() -> None:
    assert capture.wait() and capture.wait(0)


def test_options_reach_the_compiler() -> None:
    function = adding(2.0, functools.partial(native, options=Options.parse({"freezing": True})))
    check(function, 2.0)
    assert capture.wait()
    assert fakes.loaded[0]["options"] == {"freezing": True}


def test_without_background_the_first_hit_waits_for_it() -> None:
    function = adding(1.0, at_once)
    check(function, 1.0, 1)
    assert tier_of(function).stage is Stage.WAITING and capture.stats(function).pending == 1 and capture.wait()
    check(function, 1.0, 3)
    assert fakes.loaded[0]["process"] in sidecar.processes() and len(fakes.calls) == 3


def test_all_threads_wait_at_the_first_hit(monkeypatch, fresh_process) -> None:
    monkeypatch.setenv("FAKES_SECONDS", "0.5")
    function = adding(fakes.SLOW, at_once)
    check(function, fakes.SLOW, 1)
    threads = [threading.Thread(target=check, args=(function, fakes.SLOW, 2)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fakes.calls) == 8 and len(fakes.loaded) == 1


def test_graphs_that_are_alike_are_compiled_once(monkeypatch, fresh_process) -> None:
    monkeypatch.setenv("FAKES_SECONDS", "0.5")
    first, second = adding(fakes.SLOW), adding(fakes.SLOW)
    check(first, fakes.SLOW, 1)
    check(second, fakes.SLOW, 1)
    assert tiers.pending() == 2 and len(compiles.under_way) == 1
    assert capture.wait()
    check(second, fakes.SLOW, 3)
    check(first, fakes.SLOW, 2)
    assert len(fakes.calls) == 5


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)        # this is left to torch
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_graph_that_cannot_be_sent_runs_as_it_is() -> None:
    function = capture.compile(lambda x: Double.apply(x) + 1, backend=native, fullgraph=True)
    for _ in range(3):
        assert torch.equal(function(X), X * 2 + 1)
        assert capture.wait()
    assert tier_of(function).stage is Stage.UNSUPPORTED and "Double" in capture.stats(function).compile_errors[0]


def test_compiled_code_is_kept_on_disk(tmp_path) -> None:
    with config.CACHE.set(1), config.CACHE_DIR.set(str(tmp_path / "cache")):
        check(adding(3.0), 3.0)
        assert capture.wait()
        check(adding(4.0, at_once), 4.0)
        artifacts = [artifact["process"] for artifact in fakes.loaded]
        fakes.calls.clear()
        for backend in (native, at_once):
            for number in (3.0, 4.0):
                function = adding(number, backend)
                check(function, number, 1)
                assert tier_of(function).stage is Stage.COMPILED and tiers.pending() == 0
                check(function, number, 1)
        assert len(fakes.calls) == 4
        assert [artifact["process"] for artifact in fakes.loaded] == artifacts * 3


def test_what_cannot_be_loaded_from_disk_is_compiled_again(tmp_path, monkeypatch) -> None:
    with config.CACHE.set(1), config.CACHE_DIR.set(str(tmp_path / "cache")):
        check(adding(3.0, at_once), 3.0)
        before, failures = len(fakes.loaded), iter([RuntimeError("stale")])

        def load(artifact, gm, real=fakes.load):
            for error in failures:
                raise error
            return real(artifact, gm)
        monkeypatch.setattr(fakes, "load", load)
        function = adding(3.0, at_once)
        check(function, 3.0)
        assert len(fakes.loaded) == before + 1 and capture.stats(function).compiled == 1


def test_the_compiling_process_starts_when_it_is_sure_to_be_needed(tmp_path, fresh_process) -> None:
    with config.CACHE.set(1), config.CACHE_DIR.set(str(tmp_path)):
        (tmp_path / "entry").touch()
        sidecar.prepare(FAKE.compile_job)
        assert not sidecar._pool.threads
        (tmp_path / "entry").unlink()
        sidecar.prepare(FAKE.compile_job)
        assert sidecar._pool.threads


def test_the_compiling_process_starts_for_a_program_on_a_gpu_as_well(tmp_path, fresh_process, monkeypatch) -> None:
    with config.CACHE.set(1), config.CACHE_DIR.set(str(tmp_path)):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        sidecar.prepare(FAKE.compile_job)
        assert sidecar._pool.threads


@pytest.mark.parametrize(("begin", "backend", "starts"), [
    (lambda: capture.__getattr__("compile"), "native", True), (lambda: capture.__getattr__("compile"), "eager", False),
    (lambda: capture.__getattr__("report"), "native", False),
    (lambda: Session(parse(["run", "script.py"])).prepare(), "native", True),
    (lambda: Session(parse(["run", "--backend", "eager", "script.py"])).prepare(), "native", False)])
def test_it_starts_before_torch_is_imported(tmp_path, fresh_process, begin, backend, starts) -> None:
    with config.CACHE.set(1), config.CACHE_DIR.set(str(tmp_path)), config.BACKEND.set(backend):
        begin()
        assert bool(sidecar._pool.threads) == starts


def test_what_starts_it_does_not_import_torch() -> None:
    program = "import sys, capture.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_tensors_on_other_devices_are_not_compiled() -> None:
    function = capture.compile(lambda x: x * 2, backend=native, fullgraph=True)
    for _ in range(2):
        assert function(torch.ones(3, device="meta")).is_meta
    assert "meta" in capture.stats(function).compile_errors[0] and tiers.pending() == 0


def test_what_computes_on_another_device_is_not_compiled() -> None:
    function = capture.compile(lambda x: (x * 2, torch.ones_like(x, device="meta")), backend=native, fullgraph=True)
    for _ in range(2):
        doubled, elsewhere = function(X)
        assert torch.equal(doubled, X * 2) and elsewhere.is_meta
        assert tiers.pending() == 0 and tier_of(function).stage is Stage.UNSUPPORTED
    assert "meta" in capture.stats(function).compile_errors[0]


def test_modes_of_the_capturing_call_reach_the_compiler() -> None:
    function = adding(5.0)
    with torch.no_grad():
        check(function, 5.0, 1)
    check(function, 5.0, 1)
    with torch.autocast("cpu", torch.bfloat16):
        check(function, 5.0, 1)
    assert capture.wait()
    jobs = [fakes.transport.decode(artifact["job"]).modes for artifact in fakes.loaded]
    assert [(modes.grad, modes.autocast) for modes in jobs] == [(False, ()), (True, ()), (True, (("cpu", torch.bfloat16),))]


def test_a_call_that_leaves_other_modes_is_not_compiled() -> None:
    @capture.compile(backend=native, fullgraph=True)
    def function(x):
        torch.set_autocast_enabled("cpu", True)
        return x * 2
    for _ in range(2):
        torch.set_autocast_enabled("cpu", False)
        assert torch.equal(function(X), X * 2) and torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    assert tiers.pending() == 0 and "leaves torch's modes other than it found them" in capture.explain(function)


def test_a_call_that_leaves_gradients_off_is_compiled_as_it_began() -> None:
    @capture.compile(backend=native, fullgraph=True)
    def function(x):
        torch.set_grad_enabled(False)
        return x * 2
    for _ in range(2):
        torch.set_grad_enabled(True)
        assert torch.equal(function(X), X * 2) and not torch.is_grad_enabled()
    assert capture.wait() and not capture.stats(function).compile_errors
    modes, = (fakes.transport.decode(artifact["job"]).modes for artifact in fakes.loaded)
    assert modes.grad


def test_inputs_are_described_as_they_were_at_entry() -> None:
    function = capture.compile(lambda x, y, w: (x.add_(w), y.mul_(2))[0] * 2, backend=native, fullgraph=True)
    memory = torch.zeros(8)
    for _ in range(2):
        function(memory[:3].detach(), memory[4:7], torch.ones(3, requires_grad=True))
    assert capture.wait()
    x, w, y = fakes.transport.decode(fakes.loaded[0]["job"]).inputs
    assert (x.requires_grad, w.requires_grad, x.leaf, y.shape) == (False, True, True, (3,))
    assert (x.storage, y.storage, w.storage) == ((0, 0), (0, 16), (1, 0))


# --- what can go wrong

FAILURES = {"unsupported": (fakes.UNSUPPORTED, "this cannot be compiled", None),
            "toolchain": (fakes.TOOLCHAIN, "no C++ compiler was found", "no C++ compiler was found"),
            "bug": (fakes.BUG, "a fault of ours", "a fault of ours"),
            "bug in load": (fakes.LOAD_BUG, "it does not load", "it does not load"),
            "bug of sizes": (fakes.SIZES_BUG, "no check of sizes", "no check of sizes"),
            "crash": (fakes.CRASH, "SIGKILL", "SIGKILL")}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("backend", [native, at_once], ids=["background", "at once"])
def test_a_failure_leaves_tier_1_and_is_told_once(name: str, backend: Callable, recwarn) -> None:
    number, text, warning = FAILURES[name]
    with config.STRICT.set(0):
        for _ in range(2):
            function = adding(number, backend)
            check(function, number)
            assert capture.wait()
            check(function, number, 3)
    assert fakes.calls == []
    stats = capture.stats(function)
    assert (stats.compiled, stats.pending) == (0, 0) and text in stats.compile_errors[0] and text in capture.explain(function)
    told = [str(w.message) for w in recwarn if "could not be compiled" in str(w.message)]
    assert len(told) == (warning is not None) and all(warning in message for message in told)


@pytest.mark.parametrize("name", ["bug", "bug in load", "bug of sizes"])
def test_in_strict_mode_wait_raises_what_is_a_bug(name: str) -> None:
    number, text, _ = FAILURES[name]
    function = adding(number)
    check(function, number, 1)
    with pytest.raises(InternalError, match=text):
        capture.wait()
    check(function, number)
    assert capture.wait()


@pytest.mark.parametrize("name", ["bug", "bug of sizes"])
@pytest.mark.parametrize("backend", [native, at_once], ids=["background", "at once"])
def test_in_strict_mode_the_next_call_raises_a_bug_of_code_for_all_sizes(name: str, backend: Callable) -> None:
    number, text, _ = FAILURES[name]
    function = capture.compile(lambda x: x + number, backend=backend, fullgraph=True, dynamic=True)
    for size in (5, 7, 4, 3):
        x = torch.ones(size)
        if size == 7:
            while tiers.pending():
                time.sleep(0.01)
            with pytest.raises(InternalError, match=text):
                function(x)
        assert torch.equal(function(x), x + number)
    assert capture.wait()


@pytest.mark.parametrize("name", ["bug", "bug in load", "bug of sizes"])
@pytest.mark.parametrize("backend", [native, at_once], ids=["background", "at once"])
def test_in_strict_mode_the_next_call_raises_what_is_a_bug(name: str, backend: Callable) -> None:
    number, text, _ = FAILURES[name]
    function = adding(number, backend)
    check(function, number, 1)
    while tiers.pending():
        time.sleep(0.01)
    with pytest.raises(InternalError, match=text):
        function(X)
    check(function, number)
    assert capture.wait()


def test_in_strict_mode_other_failures_do_not_raise() -> None:
    with pytest.warns(UserWarning, match="no C"):
        for number in (fakes.UNSUPPORTED, fakes.TOOLCHAIN):
            function = adding(number)
            check(function, number, 1)
            assert capture.wait()
            check(function, number)


def test_warnings_as_errors_do_not_stop_anything() -> None:
    with config.STRICT.set(0), pytest.MonkeyPatch.context() as patch:
        def warn(text, *args, **kwargs):
            raise UserWarning(text)
        patch.setattr(errors.warnings, "warn_explicit", warn)
        for number in (fakes.TOOLCHAIN, 1.0):
            function = adding(number)
            check(function, number, 1)
            assert capture.wait()
            check(function, number)
    assert len(fakes.calls) == 2


def test_the_output_of_the_compiler_is_in_the_report(fresh_process) -> None:
    with config.STRICT.set(0), pytest.warns(UserWarning):
        function = adding(fakes.BUG)
        check(function, fakes.BUG, 1)
        assert capture.wait()
    text = capture.explain(function)
    assert "words on stderr" in text and "in compile_job" in text


def raising(monkeypatch, calls: set[int]) -> None:
    """Compiled code raises in those of its calls, counted from 1."""
    def load(artifact, gm, real=fakes.load):
        compiled = real(artifact, gm)

        def call(*inputs):
            if len(fakes.calls) + 1 in calls:
                fakes.calls.append("raised")
                raise RuntimeError("wrong")
            return compiled(*inputs)
        return call
    monkeypatch.setattr(fakes, "load", load)


def test_compiled_code_that_never_works_is_a_bug(monkeypatch) -> None:
    raising(monkeypatch, {1})
    with config.STRICT.set(0), pytest.warns(UserWarning, match="compiled code raised RuntimeError: wrong.*bug in capture"):
        function = adding(1.0, at_once)
        check(function, 1.0, 4)
    assert fakes.calls == ["raised"] and "compiled code raised RuntimeError: wrong" in capture.stats(function).compile_errors[0]
    assert "in call" in capture.explain(function)


def test_in_strict_mode_the_call_after_raises_the_bug(monkeypatch) -> None:
    raising(monkeypatch, {1})
    function = adding(1.0, at_once)
    check(function, 1.0, 2)
    with pytest.raises(InternalError, match="wrong"):
        function(X)
    check(function, 1.0)


def test_compiled_code_that_worked_stays(monkeypatch) -> None:
    """What it raises then is taken for the program's own, and the call runs again natively."""
    raising(monkeypatch, {2})
    function = adding(1.0, at_once)
    check(function, 1.0, 5)
    assert fakes.calls == ["compiled", "raised", "compiled", "compiled"] and tier_of(function).stage is Stage.COMPILED


def test_a_graph_that_writes_is_tried_again_after_it_raised(monkeypatch) -> None:
    raising(monkeypatch, {1})
    function = capture.compile(lambda x: x.add_(1), backend=at_once, fullgraph=True)
    x = torch.zeros(3)
    function(x)
    with pytest.raises(RuntimeError, match="wrong"):
        function(x)
    for _ in range(tiers.PAUSE):
        function(x)
    assert fakes.calls == ["raised"]
    function(x)
    function(x)
    assert fakes.calls == ["raised", "compiled", "compiled"] and torch.equal(x, torch.full((3,), 3. + tiers.PAUSE))


@pytest.mark.filterwarnings("ignore:.*no C.. compiler was found")
@pytest.mark.parametrize("stage", list(Stage))
def test_an_exception_on_a_hit_is_the_programs_own(stage: Stage) -> None:
    """The graph writes to an input, so that the call cannot run again: its traceback is made of what is known."""
    number = {Stage.UNSUPPORTED: fakes.UNSUPPORTED, Stage.FAILED: fakes.TOOLCHAIN}.get(stage, 1.0)
    calls = 1000 if stage is Stage.TRIAL else 0

    def program(x, index):
        x.mul_(number)
        return torch.nn.functional.embedding(index, x)
    with config.TRIAL_CALLS.set(calls):
        function = capture.compile(program, backend=at_once, fullgraph=True)
        good, bad = torch.tensor([0]), torch.tensor([9])
        for _ in range(1 if stage in (Stage.WAITING, Stage.COMPILING) else 4):
            function(torch.ones(2, 2), good)
        with pytest.raises(IndexError) as caught:
            function(torch.ones(2, 2), bad)
    frames = traceback.extract_tb(caught.tb)
    assert "program" in [frame.name for frame in frames]
    assert not any(os.sep + "backends" + os.sep in frame.filename and "native" in frame.filename and "tests" not in frame.filename
                   for frame in frames)


# --- threads, death

def test_many_threads_while_the_code_is_exchanged() -> None:
    with config.TRIAL_CALLS.set(3):
        function = adding(6.0)
        check(function, 6.0, 1)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                while tier_of(function).stage in (Stage.COMPILING, Stage.TRIAL):
                    check(function, 6.0, 5)
                    time.sleep(0.001)       # the compiling process is to have its share
                check(function, 6.0, 20)
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert capture.wait()
        for thread in threads:
            thread.join()
    assert not errors and tier_of(function).stage in (Stage.COMPILED, Stage.SLOWER)


def test_the_trial_keeps_one_of_them() -> None:
    with config.TRIAL_CALLS.set(2):
        function = adding(1.0, at_once)
        while (stage := getattr(tier_of(function), "stage", None) if capture.stats(function).captures else None) not in (
                Stage.COMPILED, Stage.SLOWER):
            check(function, 1.0, 1)
        fakes.calls.clear()
        check(function, 1.0, 3)
    assert len(fakes.calls) == (3 if stage is Stage.COMPILED else 0)
    assert capture.stats(function).compiled == (stage is Stage.COMPILED) and "µs before" in capture.explain(function)


@pytest.mark.parametrize("death", ["reset", "function"])
def test_a_graph_that_dies_while_it_is_compiled_is_forgotten(death: str, fresh_process) -> None:
    function = adding(fakes.SLOW)
    check(function, fakes.SLOW, 2)
    second = adding(7.0)
    check(second, 7.0, 1)
    tier = weakref.ref(tier_of(function))
    gm = weakref.ref(tier_of(function).gm)
    assert tiers.pending() == 2
    if death == "reset":
        capture.reset()
    else:
        del function, second
    gc.collect()
    assert tier() is None and gm() is None and tiers.pending() == 0
    assert capture.wait(0)


def test_compiled_code_dies_with_its_entry() -> None:
    function = adding(1.0, at_once)
    check(function, 1.0, 3)
    target = weakref.ref(capture.api.unit_of(function).tree.entries[0].payload.compiled.target)
    assert target() is not None
    capture.reset()
    gc.collect()
    assert target() is None


# --- options

@pytest.mark.parametrize(("options", "sentence"), [
    ({"backgrund": True}, "no option 'backgrund'; did you mean 'background'?"), ({"x": 1}, "it has 'background' and 'freezing'"),
    ({"freezing": 1}, "option 'freezing' must be True or False, got int: 1")])
def test_a_wrong_option_is_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence.replace("?", r"\?")):
        capture.compile(lambda x: x, backend="native", options=options)


def test_debug_output_tells_the_stages(capsys) -> None:
    with config.DEBUG.set(1):
        check(adding(1.0, at_once), 1.0)
    assert "runs compiled (7 kernels)" in capsys.readouterr().err


def test_what_the_compiler_noted_is_shown_and_explained(tmp_path, capsys) -> None:
    """Also when the graph lies on disk, compiled without notes."""
    with config.CACHE.set(1), config.CACHE_DIR.set(str(tmp_path / "cache")):
        check(adding(1.0, at_once), 1.0)
        for level in (3, 4):
            with config.DEBUG.set(level):
                function = adding(1.0, at_once)
                check(function, 1.0)
            assert f"debug level {level}" in capsys.readouterr().err and f"    debug level {level}\n" in capture.explain(function)
