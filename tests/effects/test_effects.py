"""Effects are part of the trace: on capture and on every hit a program prints, logs, warns, draws and writes as in eager mode."""
from __future__ import annotations

import contextlib
import datetime
import io
import json
import logging
import os
import random
import secrets
import sys
import time
import traceback
import uuid
import warnings
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

import capture
from tests.helpers import call, check, run

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
LOGGER = logging.getLogger("tests.effects")
CALLS = call(X), call(X + 1), call(-X)
str(X), float(torch.ones(1, requires_grad=True))    # torch imports, and warns, at the first use only


def one_graph(make, *steps, **options):
    """The program is one graph without a break, and the same as in eager mode."""
    return check(make, *(steps or CALLS), graphs=1, breaks=0, **options)


# --- printing

class Counter:
    def __init__(self) -> None:
        self.n = 0

    def __str__(self) -> str:
        return f"<{self.n}>"


def prints_everything(x):
    y = x * 2
    print("y", y, y.sum(), [1, y, {"k": y}], (x, None), x.shape, 1.5, sep=" | ", end="!\n", flush=True)
    return y


def prints_before_and_after_a_write(x):
    y = x * 2
    print(y)
    y.add_(1)
    print(y)
    x.mul_(3)
    return y, x


def prints_a_view_of_what_is_written(x):
    y = x * 2
    row = y[0]
    print(row)
    y.zero_()
    return row


def prints_an_input_before_it_is_written(x):
    print(x)
    x.add_(1)
    return x + 1


def prints_a_list_that_grows(x):
    items = [x.sum()]
    print(items)
    items.append(2)
    print(items, {"items": items})
    return x, items


def prints_in_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
        print(y)
        y.add_(1)
        print(y)
    return y.sum().item()


def prints_and_catches(x):
    for i in range(3):
        try:
            print(i, x.sum())
            if i == 1:
                raise ValueError(f"{i} {x.sum().item()}")
        except ValueError as error:
            print("caught", error)
        finally:
            print("done")
    return x * 2


def prints_in_a_generator(x):
    def rows():
        for i in range(3):
            print("row", i)
            yield x * i
    return [row + 1 for row in rows()]


def prints_to_a_buffer(x):
    buffer = io.StringIO()
    print("sum", x.sum().item(), file=buffer)
    buffer.write(f"{x.mean():.3f}")
    return x * 2, buffer.getvalue()


def prints_to_the_streams(x):
    print("out", json.dumps({"sum": x.sum().item()}), file=sys.stdout)
    x.add_(1)
    sys.stdout.write(f"{x.sum()}\n")
    sys.stdout.flush()
    return x * 2


def prints_inside(x):
    def report(t):
        print("inside", t.ndim)
        return t
    return report(x * 2) + 1


def prints_results_that_require_gradients(x):
    w = x.clone().requires_grad_()
    y = (w * 2).relu()
    print(y, y.sum(), w, f"{y.sum():.2f} {y.mean()}", str(y), "%s %.3f" % (y, y.sum()))
    return y.detach()


@pytest.mark.parametrize("program", [
    prints_everything, prints_before_and_after_a_write, prints_a_view_of_what_is_written, prints_an_input_before_it_is_written,
    prints_a_list_that_grows, prints_in_inference_mode, prints_and_catches, prints_in_a_generator, prints_to_a_buffer,
    prints_to_the_streams, prints_inside, prints_results_that_require_gradients],
    ids=lambda program: program.__name__)
def test_printing(program) -> None:
    one_graph(lambda: program)


def test_prints_and_mutations_keep_their_order() -> None:
    def make():
        counter = Counter()

        def program(x):
            print(counter)
            counter.n += 1
            print(counter, counter.n)
            counter.n += 1
            return x * 2
        return program, counter
    one_graph(make, call(X), call(X), lambda counter: setattr(counter, "n", 10), call(X))


def test_what_is_printed_is_not_guarded() -> None:
    def make():
        state = SimpleNamespace(name="a", step=0, history=[])

        def program(x):
            state.step += 1
            state.history.append(state.step)
            print(state.name, state.step, state.history)
            return x * 2
        return program, state
    one_graph(make, call(X), call(X), lambda state: setattr(state, "name", "b"), call(X), call(X))


def test_a_module_prints_parameters_and_itself() -> None:
    def make():
        model = nn.Linear(2, 2)

        def program(x):
            print(model, model.weight)
            return model(x)
        return program, model
    one_graph(make, *CALLS, backward=True)


def test_a_stream_written_in_python() -> None:
    class Tee:
        def __init__(self):
            self.pieces = []

        def write(self, text):
            self.pieces.append(text)

        def flush(self):
            self.pieces.append("flush")

    def make():
        tee = Tee()

        def program(x):
            print("a", x.sum(), 3, file=tee, sep=None, flush=True)
            return x * 2, len(tee.pieces)
        return program, tee
    check(make, *CALLS, captures=2)          # it asks how much was written


# --- logging and warnings

@contextlib.contextmanager
def logged(level=logging.INFO):
    """The lines that are logged, with where in the program they come from."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(filename)s:%(lineno)d %(funcName)s %(message)s"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def logs(x):
    y = x * 2
    LOGGER.info("y %s mean %.3f", y, y.mean())
    LOGGER.debug("never")
    y.add_(1)
    logging.warning("root %s", y.shape)
    logging.getLogger("tests.effects.other").error(f"sum {y.sum():.1f}")
    return logs_inside(y)


def logs_inside(y):
    LOGGER.log(logging.WARNING, "inside", stacklevel=2)
    LOGGER.critical("inside %(a)s", {"a": y.sum()})
    return y


def test_logging() -> None:
    compiled = capture.compile(logs, fullgraph=True, backend="eager")
    lines = {}
    for program in (logs, compiled):
        with logged() as stream:
            for x in (X, X + 1, -X):
                program(x)
            with logged(logging.ERROR):
                program(X)
        lines[program] = stream.getvalue()
    assert lines[logs] == lines[compiled] and lines[logs].count("\n") > 15
    assert (capture.stats(compiled).graphs, capture.stats(compiled).hits) == (1, 3)


def test_levels_that_are_asked_for_are_guarded() -> None:
    def program(x):
        if LOGGER.isEnabledFor(logging.INFO):
            LOGGER.info("sum %s", x.sum())
            return x * 2
        return x
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for level, captures in ((logging.INFO, 1), (logging.ERROR, 2), (logging.INFO, 2), (logging.ERROR, 2)):
        texts = []
        for function in (program, compiled):
            with logged(level) as stream:
                result = function(X)
            texts.append((stream.getvalue(), result.tolist()))
        assert texts[0] == texts[1] and capture.stats(compiled).captures == captures


def warns_inside(x):
    warnings.warn("inside")
    warnings.warn("of the caller", DeprecationWarning, stacklevel=2)
    warnings.warn(f"of the caller's caller {x.sum():.1f}", UserWarning, 3)
    return x * 2


def warns(x):
    y = warns_inside(x)
    warnings.warn(RuntimeWarning("an instance"))
    return y


@pytest.mark.parametrize("mode", ["always", "default", "once"])
def test_warnings(mode: str) -> None:
    compiled = capture.compile(warns, fullgraph=True, backend="eager")
    seen = {}
    for program in (warns, compiled):
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(mode)
            for x in (X, X, X + 1):
                program(x)                          # all calls from one line
        seen[program] = [(w.category, str(w.message), w.filename, w.lineno) for w in caught]
    assert seen[warns] == seen[compiled] and len(seen[warns]) >= 4
    assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (1, 2)


def test_a_warning_that_is_an_error_on_a_hit() -> None:
    compiled = capture.compile(warns, fullgraph=True, backend="eager")
    lines = {}
    for program in (compiled, compiled, warns):
        with warnings.catch_warnings():
            warnings.simplefilter("error" if program is warns or capture.stats(compiled).captures else "ignore")
            try:
                program(X)
            except UserWarning as error:
                frames = traceback.extract_tb(error.__traceback__)
                lines[program] = str(error), [(f.name, f.lineno) for f in frames if f.filename == __file__][1:]
    assert lines[compiled] == lines[warns] and len(lines[warns][1]) == 2


# --- random numbers

def draws(x):
    a, b, c = random.random(), random.randint(1, 100), random.uniform(-1, 1)
    noise = torch.rand(2)
    d, e = random.choice([10, 20, 30]), random.gauss(0, 1)
    return x + noise, a, b, c, d, e, a + b, f"{a:.3f}", numpy.random.rand(), numpy.random.randint(0, 100), numpy.random.randn(3)


def draws_from_a_stream_of_its_own(x):
    return x * 2, STREAM.random(), STREAM.randrange(100)


STREAM = random.Random(3)


def test_random_streams() -> None:
    one_graph(lambda: draws)


def test_a_stream_of_random_numbers_that_the_program_owns() -> None:
    def make():
        STREAM.seed(3)
        return draws_from_a_stream_of_its_own
    one_graph(make)


def test_seeding_inside() -> None:
    def program(x):
        random.seed(7)
        numpy.random.seed(7)
        return x * 2, random.random(), numpy.random.rand()
    one_graph(lambda: program)


def test_secrets_and_identifiers_differ_on_every_call() -> None:
    def program(x):
        name = uuid.uuid4()
        return x * 2, (str(name), name.hex, secrets.token_hex(8), os.urandom(8), secrets.randbelow(1 << 60))
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    seen = [compiled(X)[1] for _ in range(3)]
    for column in zip(*seen):
        assert len(set(column)) == 3
    assert all(uuid.UUID(row[0]).hex == row[1] for row in seen) and capture.stats(compiled).hits == 2


# --- clocks

def test_a_clock_is_read_on_every_call_before_the_work() -> None:
    def program(x):
        start = time.perf_counter()
        y = x * 2
        return y, start, datetime.datetime.now().strftime("%Y")
    compiled = capture.compile(program, backend="eager")
    times = []
    for _ in range(3):
        before = time.perf_counter()
        y, start, year = compiled(X)
        assert before <= start <= time.perf_counter() and torch.equal(y, X * 2) and year.isdigit()
        times.append(start)
    assert times == sorted(set(times))


def test_clocks_without_work_between_them_do_not_break() -> None:
    def program(x):
        begin, count = time.time(), time.monotonic_ns()
        return x * 2, begin, f"{begin:.1f}", count
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        before = time.time()
        assert before <= compiled(X)[1] <= time.time()
    assert capture.stats(compiled).hits == 2


def test_time_that_passes_is_measured() -> None:
    def program(x):
        begin = time.perf_counter()
        time.sleep(0.02)
        return x * 2, time.perf_counter() - begin
    compiled = capture.compile(program, backend="eager")
    assert all(compiled(X)[1] >= 0.02 for _ in range(3))


# --- files and the environment

def test_files(tmp_path) -> None:
    path = str(tmp_path / "log.txt")

    def make():
        open(path, "w").close()

        def program(x):
            with open(path, "a") as file:
                file.write(f"{x.sum().item():.2f}\n")
                print("mean", x.mean(), file=file)
            with open(path) as file:
                return x * 2, file.read()
        return program
    one_graph(make)


def test_a_file_that_is_open() -> None:
    def make():
        state = SimpleNamespace(file=io.StringIO(), lines=0)

        def program(x):
            state.file.write(f"{state.lines} {x.max()}\n")
            state.lines += 1
            return x * 2, state.file.tell()
        return program, SimpleNamespace(text=lambda: state.file.getvalue(), state=state)
    one_graph(make)


def test_the_environment_is_guarded(monkeypatch) -> None:
    def program(x):
        return x * (2 if os.environ.get("CAPTURE_TEST_FLAG") == "1" else 3), os.environ["CAPTURE_TEST_NAME"], os.getpid()
    monkeypatch.setenv("CAPTURE_TEST_NAME", "a")
    one_graph(lambda: program, call(X), call(X))
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for flag, name in (("1", "a"), ("0", "a"), ("1", "b"), ("1", "a")):
        monkeypatch.setenv("CAPTURE_TEST_FLAG", flag)
        monkeypatch.setenv("CAPTURE_TEST_NAME", name)
        for _ in range(2):
            got, expected = compiled(X), program(X)
            assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]


def test_a_progress_bar() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    def make():
        stream = io.StringIO()
        bar = tqdm(total=100, file=stream, mininterval=1e9)

        def program(x):
            bar.update(2)
            bar.set_postfix(loss=x.sum().item(), refresh=False)
            return x * 2
        return program, SimpleNamespace(shown=lambda: (bar.n, bar.postfix))
    eager, captured = run(make, CALLS), run(make, CALLS, lambda program: capture.compile(program, fullgraph=True, backend="eager"))
    assert len(eager) == len(captured)
    program, state = make()
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for number in range(1, 4):
        compiled(X * number)
        assert state.shown() == (2 * number, f"loss={X.sum().item() * number:g}".replace("loss=", "loss=")), state.shown()
    assert capture.stats(compiled).hits == 2


def test_what_a_repeated_call_changed_is_not_read_as_it_was_at_entry() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    def make():
        bar = tqdm(total=100, file=io.StringIO(), mininterval=1e9)

        def program(x):
            bar.update(1)
            return x * 2 if bar.n > 2 else x
        return program
    check(make, *CALLS, *CALLS, captures=None, fullgraph=False)


# --- exceptions on a hit

def test_a_value_that_cannot_be_computed_raises_before_any_effect() -> None:
    def make():
        def program(x):
            print("begin")
            try:
                inverse = 1 / x.sum().item()
            except ZeroDivisionError:
                print("caught")
                inverse = 0.0
            return x * 2, inverse
        return program
    check(make, call(X), call(torch.zeros(2)), call(X + 1), captures=None, fullgraph=False)


def test_an_effect_that_raises_on_a_hit() -> None:
    def make():
        state = SimpleNamespace(file=io.StringIO())

        def program(x):
            print("before")
            state.file.write("text")
            return x * 2
        return program, SimpleNamespace(close=lambda: state.file.close())
    outcomes = []
    for engine in (lambda p: p, lambda p: capture.compile(p, backend="eager")):
        program, state = make()
        program = engine(program)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            program(X)
            program(X)
            state.close()
            with pytest.raises(ValueError) as caught:
                program(X)
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == __file__]
        outcomes.append((output.getvalue(), str(caught.value), names))
    assert outcomes[0] == outcomes[1]


def test_a_loop_that_prints_is_one_graph() -> None:
    def program(x):
        for step in range(3):
            x = x * 2
            print(step, x.sum().item(), random.random())
        return [print(row) or row + 1 for row in x]
    one_graph(lambda: program)
