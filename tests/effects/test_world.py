"""Questions to the world and changes of it: what a trace holds, and what is done between traces. Never is an answer remembered."""
from __future__ import annotations

import io
import logging
import os
import pathlib
import random
import warnings
from types import SimpleNamespace

import numpy
import pytest
import torch

import capture
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0], [5.0, 6.0]])
CALLS = call(X), call(X + 1), call(-X), call(X * 3)
LOGGER = logging.getLogger("tests.world")
GENERATOR = numpy.random.default_rng(0)
str(X)                                              # torch imports, and warns, at the first use only


def local(make, *steps, captures=8):
    """The program is the same as in eager mode, and nothing runs natively because of where it breaks."""
    stats = check(make, *(steps or CALLS), captures=None, fullgraph=False)
    assert not stats.native_calls and not stats.bailouts and stats.hits and stats.captures <= captures, stats
    return stats


# --- random numbers

def shuffles(x):
    order, rows = list(range(3)), [0, 1, 2]
    random.shuffle(order)
    numpy.random.shuffle(rows)
    print(order, rows)
    return x[order], x[rows] * order[0], random.sample(["a", "b", "c"], 2), random.choices([1, 2.5], k=3)


def shuffles_a_list_of_others(x):
    STATE.order.append(len(STATE.order))
    random.shuffle(STATE.order)
    return x * 2, STATE.order, STATE.order[0]


STATE = SimpleNamespace(order=[])


def draws_from_generators(x):
    scaled = x * GENERATOR.normal(), x * GENERATOR.integers(1, 4), GENERATOR.choice([1.5, 2.5]) * x
    return scaled, GENERATOR.integers(0, 10), GENERATOR.permutation(3)


def chooses_by_numpy(x):
    scaled = x * numpy.random.choice([0.5, 2.0]), float(numpy.random.choice([1.0, 3.0])) * x
    return scaled, numpy.random.choice(5), int(numpy.random.choice(3)) + x


@pytest.mark.parametrize("program", [shuffles, draws_from_generators, chooses_by_numpy], ids=lambda program: program.__name__)
def test_draws_in_one_graph(program) -> None:
    def make():
        GENERATOR.bit_generator.state = numpy.random.default_rng(0).bit_generator.state
        return program
    check(make, *CALLS, graphs=1, breaks=0)


def test_a_list_from_outside_that_is_shuffled() -> None:
    def make():
        STATE.order[:] = range(3)
        return shuffles_a_list_of_others, STATE
    check(make, *CALLS, captures=None, fullgraph=False)


def test_the_type_of_what_is_drawn_is_not_taken_for_granted() -> None:
    def make():
        state = SimpleNamespace(values=[1, 2])

        def program(x):
            return x.long() * numpy.random.choice(state.values), x.long() + random.choice(state.values)
        return program, state
    check(make, call(X), call(X), lambda state: setattr(state, "values", [0.5, 1.5]), call(X), call(X),
          lambda state: state.values.append(3), call(X), call(X), captures=None, fullgraph=False)


def shuffles_objects(x):
    items = [x, x * 2, "a"]
    random.shuffle(items)
    return items


def chooses_a_function(x):
    return random.choice([torch.sin, torch.cos])(x)


def samples_objects(x):
    return random.sample([x, x * 2, "a"], 2)


def permutes_by_numpy(x):
    order = numpy.random.permutation(3)
    return x[order], x[torch.from_numpy(order)] + torch.tensor(numpy.random.randn(3, 2))


def keeps_the_state_of_a_stream(x):
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return x * first, random.random() == first


def makes_a_stream(x):
    stream = random.Random(3)
    return x * stream.random(), stream.randint(0, 5)


@pytest.mark.parametrize("program", [
    shuffles_objects, chooses_a_function, samples_objects, permutes_by_numpy, keeps_the_state_of_a_stream, makes_a_stream],
    ids=lambda program: program.__name__)
def test_draws_between_traces(program) -> None:
    local(lambda: program, *CALLS, *CALLS)


# --- logging and warnings

def logs_an_exception(x):
    try:
        raise ValueError("v")
    except ValueError:
        LOGGER.exception("failed %s", x.sum())
    y = x * 2
    try:
        1 / 0
    except ZeroDivisionError:
        LOGGER.error("divided", exc_info=True)
    return y + 1


def test_logging_with_a_traceback() -> None:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s:%(lineno)d %(funcName)s %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    try:
        compiled, texts = capture.compile(logs_an_exception, backend="eager"), []
        for program in (logs_an_exception, compiled):
            handler.setStream(io.StringIO())
            results = [program(X + n).sum().item() for n in range(4)]
            texts.append((handler.stream.getvalue(), results))
    finally:
        LOGGER.removeHandler(handler)
    assert texts[0] == texts[1] and texts[0][0].count("Traceback") == 8
    stats = capture.stats(compiled)
    assert stats.hits and not stats.native_calls and not stats.breaks and not stats.bailouts


def ignores_warnings(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("ignored")
        y = x * 2
    warnings.warn(f"shown {y.sum():.1f}")
    return y + 1


def records_warnings(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("kept")
    return x * 2, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("program", [ignores_warnings, records_warnings], ids=lambda program: program.__name__)
def test_filters_of_warnings(program) -> None:
    before = list(warnings.filters)
    local(lambda: program)
    assert warnings.filters == before


# --- files and folders

def test_questions_to_the_file_system(tmp_path) -> None:
    path = tmp_path / "flag"

    def program(x):
        scale = 2 if os.path.exists(path) else 3
        known = os.path.isfile(str(path)), os.path.isdir(path), path.exists(), pathlib.Path(str(path)).is_file()
        return x * scale, known

    def toggle(state):
        path.unlink() if path.exists() else path.touch()
    steps = [step for _ in range(6) for step in (toggle, call(X))]
    path.unlink(missing_ok=True)
    local(lambda: program, *steps)


def test_answers_that_are_passed_on_are_asked_again(tmp_path) -> None:
    path = tmp_path / "log"

    def make():
        path.write_text("")

        def program(x):
            size = os.path.getsize(path)
            return x * 2, size, f"{size} bytes", path.exists(), os.path.getmtime(path) > 0
        return program
    check(make, call(X), lambda state: path.write_text("abc"), call(X), lambda state: path.write_text("abcdef"), call(X), graphs=1)


def test_folders_and_files_that_are_made(tmp_path) -> None:
    def make():
        def program(x):
            os.makedirs(tmp_path / "a" / "b", exist_ok=True)
            (tmp_path / "c").mkdir(exist_ok=True)
            note = tmp_path / "c" / "note.txt"
            note.write_text(f"{x.sum():.2f}")
            if (tmp_path / "gone").exists():
                os.remove(tmp_path / "gone")
            return x * 2, note.read_text(), note.name, sorted(os.listdir(tmp_path / "c"))
        return program
    local(make, *CALLS, lambda state: (tmp_path / "gone").touch(), *CALLS)


def test_a_file_that_is_iterated_over(tmp_path) -> None:
    path = tmp_path / "numbers.txt"

    def program(x):
        total = 0
        with open(path) as file:
            for line in file:
                total += int(line)
        with open(path) as file:
            lines = file.readlines()
        return x * total, len(lines), [int(line) for line in lines], path.read_text().split()

    def write(*numbers):
        return lambda state: path.write_text("".join(f"{n}\n" for n in numbers))
    check(lambda: program, write(1, 2, 3), *CALLS[:3], write(4, 5), *CALLS[:2], write(), *CALLS[:2], captures=None, fullgraph=False)


# --- the environment

def test_the_environment_that_is_written(monkeypatch) -> None:
    for name in ("CAPTURE_TEST_A", "CAPTURE_TEST_B"):
        monkeypatch.setenv(name, "0")

    def program(x):
        seen = os.environ["CAPTURE_TEST_A"]
        os.environ["CAPTURE_TEST_A"] = str(x.dim())
        os.environ["CAPTURE_TEST_B"] = f"{x.sum():.1f}"
        os.environ.pop("CAPTURE_TEST_C", None)
        return x * 2, seen, os.environ["CAPTURE_TEST_A"], "CAPTURE_TEST_C" in os.environ
    outcomes = []
    for function in (program, capture.compile(program, backend="eager")):
        os.environ["CAPTURE_TEST_A"] = "start"
        seen = []
        for n in range(4):
            if n == 2:
                os.environ["CAPTURE_TEST_C"] = "set"
            result = function(X + n)[1:]
            with os.popen("echo $CAPTURE_TEST_B") as child:
                seen.append((result, os.environ["CAPTURE_TEST_A"], os.getenv("CAPTURE_TEST_B"), child.read().strip()))
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]
