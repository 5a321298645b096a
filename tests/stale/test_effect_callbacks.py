"""Code of the program's own that runs inside of a call which is repeated on hits, and changes what the compiled function reads."""
from __future__ import annotations

import collections
import io
import json
import logging
import types
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from capture.errors import GraphBreakError
from tests.helpers import call, check
from tests.stale.cases import user_module

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
CALLS = call(X), call(X + 1), call(-X), call(X * 2)


class Counting:
    """Counts how often its text was asked for."""

    def __init__(self):
        self.times = 0

    def __str__(self):
        self.times += 1
        return f"<{self.times}>"

    __repr__ = __str__


class Meter:
    """Its text is read from it."""

    def __init__(self):
        self.total, self.count, self.log = 0.0, 0, []

    @property
    def mean(self):
        return self.total / max(self.count, 1)

    def __repr__(self):
        return f"{type(self).__name__} {self.mean:.2f} of {len(self.log)}, {[round(x, 1) for x in self.log]}"


@dataclass
class Holder:
    part: object


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.times = 0

    def extra_repr(self):
        self.times += 1
        return str(self.times)


PRINTS = {
    "an object": lambda thing: print(thing),
    "two": lambda thing: print(thing, 1, thing, sep=None, end="."),
    "in a list": lambda thing: print([thing], (thing,), {"a": thing}),
    "in a data class": lambda thing: print(Holder(thing)),
    "in a namespace": lambda thing: print(types.SimpleNamespace(a=thing)),
    "its text": lambda thing: print(f"{thing!s:>5} {thing!r}"),
}


@pytest.mark.parametrize("program", PRINTS.values(), ids=PRINTS)
def test_an_object_counts_its_prints(program) -> None:
    def make():
        thing = Counting()

        def function(x):
            before = thing.times
            program(thing)
            return x * thing.times, before
        return function, thing
    check(make, *CALLS, lambda thing: setattr(thing, "times", 10), *CALLS, captures=None, fullgraph=False)
    check(make, *CALLS, captures=None)


SHOWS = {
    "an exception": lambda thing: print(ValueError(thing)),
    "a deque": lambda thing: print(collections.deque([thing])),
    "a warning": lambda thing: warnings.warn(UserWarning(thing)),
    "a JSON text": lambda thing: json.dump({"a": thing}, io.StringIO(), default=str),
    "a message of the logger": lambda thing: logging.getLogger("tests.own").error("%s", thing),
    "a message of the root logger": lambda thing: logging.error("%s", thing),
}


@pytest.mark.parametrize("program", SHOWS.values(), ids=SHOWS)
def test_what_shows_an_object_that_counts_is_cut_out(program) -> None:
    def make():
        thing = Counting()

        def function(x):
            program(thing)
            return x * thing.times
        return function, thing
    stats = check(make, *CALLS, captures=None, fullgraph=False)
    assert stats.hits


def test_a_module_counts_its_prints() -> None:
    def make():
        layer = Layer()

        def function(x):
            print(layer)
            return x * layer.times
        return function, layer
    check(make, *CALLS, captures=None, fullgraph=False)


def test_what_comes_to_be_printed() -> None:
    def make():
        state = types.SimpleNamespace(shown=3, items=[], out=io.StringIO(), times=0)

        def function(x):
            print(state.shown, state.items)
            print("text", file=state.out)
            return x * getattr(state.shown, "times", 1) * (state.items[-1].times if state.items else 1) * state.times
        return function, state

    class Stream:
        def __init__(self, state):
            self.state = state

        def write(self, text):
            self.state.times += 1
    check(make, *CALLS, lambda s: setattr(s, "shown", Counting()), *CALLS, lambda s: s.items.append(Counting()), *CALLS,
          lambda s: setattr(s, "out", Stream(s)), *CALLS, captures=None, fullgraph=False, recompile_limit=64)


def test_texts_that_only_read_are_not_guarded() -> None:
    def make():
        meter = Meter()

        def function(x):
            meter.total += x.sum().item()
            meter.count += 1
            meter.log.append(meter.count)
            print(meter, [meter])
            logging.getLogger("tests.own").info("%s", meter)
            return x * 2
        return function, meter
    check(make, *CALLS, graphs=1)


def test_a_text_that_comes_to_write() -> None:
    def make():
        cls = type("Own", (Meter,), {})
        meter = cls()

        def function(x):
            print(meter)
            return x * meter.count
        return function, types.SimpleNamespace(cls=cls, meter=meter)

    def text(self):
        self.count += 1
        return "changed"
    check(make, *CALLS, lambda s: setattr(s.cls, "__str__", text), *CALLS, lambda s: delattr(s.cls, "__str__"), *CALLS,
          lambda s: setattr(s.meter, "log", [Counting()]), *CALLS, captures=None, fullgraph=False, recompile_limit=64)


# --- logging and warnings

def logging_program(state):
    logger = logging.Logger("tests.own.code")
    logger.addHandler(logging.StreamHandler(state.out))
    state.logger, state.times, state.seen = logger, 0, []

    def function(x):
        before = state.times
        logger.warning("message %d", 1)
        logger.log(logging.INFO, "message %s", 2)
        return x * state.times, before
    return function, state


def count(state, *_):
    state.times += 1
    return True


def handler(state):
    class Handler(logging.Handler):
        def emit(self, record):
            state.times += 1
    return Handler()


def formatter(state):
    class Formatter(logging.Formatter):
        def format(self, record):
            state.times += 1
            return super().format(record)
    return Formatter()


def stream(state):
    class Stream(io.StringIO):
        def write(self, text):
            state.times += 1
            return super().write(text)
    return Stream()


TAKES_PART = {
    "a handler": lambda s: s.logger.addHandler(handler(s)),
    "a filter": lambda s: s.logger.addFilter(lambda record: count(s)),
    "a filter of a handler": lambda s: s.logger.handlers[0].addFilter(lambda record: count(s)),
    "a formatter": lambda s: s.logger.handlers[0].setFormatter(formatter(s)),
    "a stream": lambda s: s.logger.handlers[0].setStream(stream(s)),
    "a method of a handler": lambda s: setattr(s.logger.handlers[0], "emit", lambda record: count(s)),
    "a handler of its parent": lambda s: (setattr(s.logger, "parent", logging.Logger("parent")),
                                          s.logger.parent.addHandler(handler(s))),
}


@pytest.mark.parametrize("change", TAKES_PART.values(), ids=TAKES_PART)
def test_code_takes_part_in_logging(change) -> None:
    def make():
        return logging_program(types.SimpleNamespace(out=io.StringIO()))
    check(make, *CALLS, change, *CALLS, captures=None, fullgraph=False)

    def make_changed():
        function, state = make()
        change(state)
        return function, state
    stats = check(make_changed, *CALLS, captures=None, fullgraph=False)
    assert stats.hits and stats.breaks
    with pytest.raises(GraphBreakError, match="own-code"):
        check(make_changed, *CALLS, captures=None)


def test_a_logger_that_lacks_its_parts() -> None:
    """The error is the one of logging."""
    check(lambda: logging_program(types.SimpleNamespace(out=io.StringIO())), *CALLS,
          lambda state: vars(state.logger).clear(), *CALLS, captures=None, fullgraph=False, breaks=None, hits=None)


def test_a_logger_that_is_silent_writes_no_text() -> None:
    def make():
        thing, logger = Counting(), logging.Logger("tests.own.code", logging.WARNING)
        logger.addHandler(logging.StreamHandler(io.StringIO()))

        def function(x):
            logger.info("%s", thing)
            return x * thing.times
        return function, types.SimpleNamespace(thing=thing, level=logger.setLevel)
    check(make, *CALLS, graphs=1)
    check(make, *CALLS, lambda s: s.level(logging.INFO), *CALLS, lambda s: s.level(logging.WARNING), *CALLS, captures=None,
          fullgraph=False)


def test_code_takes_part_in_warnings(monkeypatch) -> None:
    def make():
        state = types.SimpleNamespace(times=0)
        monkeypatch.setattr(warnings, "showwarning", warnings._showwarning_orig)

        def function(x):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = state.show
                warnings.warn("text")
            return x * state.times

        def plain(x):
            warnings.warn("text")
            return x * state.times
        state.show = lambda *args: count(state)
        return (lambda x, inside: function(x) if inside else plain(x)), state
    check(make, call(X, True), call(X, True), call(X, False), call(X, True), captures=None, fullgraph=False)


# --- autograd functions, which a graph runs as a whole

FACTOR = 2.0
SETTINGS = {"eps": 0.5}


class Scales(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.save_for_backward(x)
        return shifted(x * factor * FACTOR)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def shifted(x):
    return x + SETTINGS["eps"]


def test_an_autograd_function_that_keeps_to_itself_is_part_of_the_graph() -> None:
    check(lambda: lambda x: Scales.apply(x, 3.0) * 2, *CALLS, graphs=1)


def function_of(state, reads):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * state.factor

    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            state.factor += 1
            print("runs", state.factor)
            return x * 2
    return (Reads if reads else Writes).apply


FUNCTIONS = {
    "reads what was changed": (True, lambda s, f, x: (setattr(s, "factor", s.factor + 1), f(x), setattr(s, "factor", 7.0))),
    "writes what is read": (False, lambda s, f, x: (f(x), x * s.factor)),
    "writes what was read": (False, lambda s, f, x: (x * s.factor, f(x), s.factor)),
    "prints": (False, lambda s, f, x: (print("before"), f(x), print("after"))),
}


@pytest.mark.parametrize(("reads", "program"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_an_autograd_function_works_on_objects_of_the_program(reads, program) -> None:
    def make():
        state = types.SimpleNamespace(factor=1.0)
        function = function_of(state, reads)
        return (lambda x: program(state, function, x)), state
    check(make, *CALLS, lambda s: setattr(s, "factor", 10.0), *CALLS, captures=None, fullgraph=False)


def test_an_autograd_function_that_reads_settings_is_part_of_the_graph() -> None:
    def make():
        state = types.SimpleNamespace(factor=1.0)
        function = function_of(state, True)
        return (lambda x: function(x) * 2), state
    check(make, *CALLS, lambda s: setattr(s, "factor", 10.0), *CALLS, graphs=1)


class World:
    """What an autograd function may change: lists in a namespace, a table, and a closure; and settings that it reads."""

    def __init__(self):
        self.box = types.SimpleNamespace(log=[], scale=2.0)
        self.table, self.closed = {"log": [], "scale": 0.5}, []

    def state(self):
        return list(self.box.log), list(self.table["log"]), sorted(map(str, self.table)), list(self.closed)


def extend(items):
    items += [1]


def extended_in_place(items):
    same = items
    same += [1]


CHANGES = {
    "a method of a list of an object": lambda box, table, closed: box.log.append(1),
    "a method of a list of a table": lambda box, table, closed: table["log"].append(1),
    "a method of a list that a table gives": lambda box, table, closed: table.get("log").append(1),
    "a slice of a list of an object": lambda box, table, closed: box.log.__setitem__(slice(0, 0), [1]),
    "a list of a closure": lambda box, table, closed: closed.append(1),
    "in place, by another name": lambda box, table, closed: extended_in_place(box.log),
    "in place, in another function": lambda box, table, closed: extend(closed),
    "a table in place": lambda box, table, closed: table.update({len(table): 1}),
}


def changing(world, change):
    box, table, closed = world.box, world.table, world.closed

    class Changes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            change(box, table, closed)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2
    return Changes.apply


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_autograd_function_changes_what_is_read_after_it(change) -> None:
    def make():
        world = World()
        function = changing(world, change)
        return (lambda x: (function(x) + 1, world.state())), world
    check(make, *CALLS, captures=None, fullgraph=False)


def test_an_autograd_function_changes_a_list_by_another_name() -> None:
    def make():
        world = World()

        class Changes(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                log = world.box.log
                log += [1]
                world.table["log"][len(world.table["log"]):] = [2]
                return x * 2
        return (lambda x: (Changes.apply(x) + 1, world.state())), world
    check(make, *CALLS, captures=None, fullgraph=False)


def test_an_autograd_function_reads_settings_with_lists_and_changes_its_own_tensors() -> None:
    def make():
        table, box = {"scale": 0.5, "sizes": [1, 2]}, types.SimpleNamespace(scale=2.0, sizes=[3])

        class Reads(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                result = x * table["scale"]
                result += box.scale * len(box.sizes) + table["sizes"][0]
                result *= 2
                return result
        return (lambda x: Reads.apply(x) + 1), table
    check(make, *CALLS, lambda table: table.update(scale=3.0), *CALLS, graphs=1)


@pytest.mark.parametrize("source", ["return x + EPS", "SEEN.append(1); return x + len(SEEN)"])
def test_an_autograd_function_calls_a_module_of_the_program(source) -> None:
    """What the module's function does with its own globals decides."""
    quiet = "SEEN" not in source

    def make():
        module = user_module(f"EPS, SEEN = 0.5, []\ndef shift(x):\n    {source}", __file__="/program/operations.py")

        class Shifts(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return module.shift(x)
        return (lambda x: (Shifts.apply(x) * 2, len(module.SEEN))), module
    check(make, *CALLS, lambda module: setattr(module, "EPS", 2.0), *CALLS, captures=None, fullgraph=quiet)
