"""Objects that calls are shown, in the trace: each call sees them as they were; and exceptions, with their tracebacks."""
from __future__ import annotations

import contextlib
import io
import itertools
import logging
import traceback
import uuid
import warnings
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from capture.refgraph.recipes import READ_ONLY
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
LOGGER = logging.getLogger("tests.effects.objects")
CALLS = call(X), call(X + 1), call(-X)
str(X), float(torch.ones(1, requires_grad=True))    # torch imports, and warns, at the first use only


class Counter:
    def __init__(self) -> None:
        self.n = 0

    def __str__(self) -> str:
        return f"<{self.n}>"


class Meter:
    """An average, as training scripts keep it."""

    __slots__ = ("name", "total", "count", "log")

    def __init__(self, name: str) -> None:
        self.name, self.total, self.count, self.log = name, 0.0, 0, []

    def update(self, value: float) -> None:
        self.total += value
        self.count += 1
        self.log.append(round(value, 2))

    def __repr__(self) -> str:
        return f"{self.name} {self.total / max(self.count, 1):.3f} of {self.log}"


@dataclass
class Metrics:
    loss: float = 0.0
    history: list = field(default_factory=list)
    best: dict = field(default_factory=dict)


def a_counter(x):
    counter = Counter()
    for _ in range(3):
        x = x * 2
        print(counter, x.sum())
        counter.n += 1
    return x, counter.n


def a_meter(x):
    meter = Meter("loss")
    for row in x:
        meter.update(row.sum().item())
        print(meter)
    return x * 2, meter


def a_data_class(x):
    metrics = Metrics()
    for i in range(3):
        loss = (x * i).sum().item()
        metrics.loss += loss
        metrics.history.append(loss)
        metrics.best[f"step {i}"] = max(metrics.history)
        print(metrics)
        LOGGER.info("%s", metrics)
    return metrics, x + 1


def containers_in_an_object(x):
    holder = SimpleNamespace(items=[1], table={"a": 1}, members={1}, queue=deque([1], 2), order=OrderedDict(a=1))
    print(holder)
    holder.items.extend([x.shape, 3])
    holder.items[0] = "first"
    holder.table["b"] = x.sum().item()
    del holder.table["a"]
    holder.members.add(2)
    holder.queue.append(2)
    holder.queue.append(3)
    holder.order["b"] = 2
    holder.order.move_to_end("a")
    print(holder)
    holder.items = holder.items[1:]
    holder.__dict__["new"] = 4
    del holder.members
    print(holder, x.mean())
    holder.items.sort(key=str)
    holder.items.reverse()
    holder.table.clear()
    return holder, x * 2


def objects_that_hold_each_other(x):
    one, other = SimpleNamespace(name="one"), SimpleNamespace(name="other")
    one.other, other.one = other, one
    print(one)
    other.name = "changed"
    print(one)
    one.other = None
    return one, other, x * 2


def what_is_put_into_a_shown_object(x):
    outer = SimpleNamespace(parts=[])
    print(outer)
    part = SimpleNamespace(n=0)
    outer.parts.append(part)
    part.n = 1
    print(outer)
    part.n = 2
    outer.parts.append(SimpleNamespace(n=x.sum().item()))
    print(outer)
    return x * 2, outer


def variables_of_a_closure(x):
    n = 0

    class Shown:
        def __repr__(self):
            return f"n is {n}"
    shown = Shown()
    print(shown)
    n = 5
    print(shown)
    return x * n


def shown_in_a_callee(x):
    def show(counter, x):
        print("now", counter, x.shape)
        return x + counter.n
    counter = Counter()
    y = show(counter, x)
    counter.n = 5
    return show(counter, y)


def what_the_graph_computes_is_put_into_it(x):
    state = SimpleNamespace(best=None)
    print(state)
    state.best = x.max().item()
    print(state)
    state.best = (x * 2).max()
    return state


@pytest.mark.parametrize("program", [
    a_counter, a_meter, a_data_class, containers_in_an_object, objects_that_hold_each_other, what_is_put_into_a_shown_object,
    variables_of_a_closure, shown_in_a_callee, what_the_graph_computes_is_put_into_it], ids=lambda program: program.__name__)
def test_each_call_sees_an_object_as_it_was(program) -> None:
    check(lambda: program, *CALLS, graphs=1, breaks=0)


def test_an_object_that_an_outside_one_holds() -> None:
    def make():
        state = SimpleNamespace(total=0, meter=None, log=[])

        def program(x):
            meter = state.meter = Meter("inner")
            state.log.append(meter)
            print(state.meter, state.total)
            state.meter.update(x.sum().item())
            state.total += 1
            print(state)
            meter.count = 7
            return x * 2
        return program, state
    check(make, call(X), call(X + 1), lambda state: setattr(state, "total", 5), call(-X), graphs=1, breaks=0)


def test_a_tensor_that_is_written_to_later_in_a_printed_object() -> None:
    def program(x):
        holder = SimpleNamespace(y=x * 2)
        print(holder)
        holder.y.add_(1)
        print(holder)
        return holder.y
    stats = check(lambda: program, *CALLS, *CALLS, captures=None, fullgraph=False)
    assert stats.breaks and stats.hits and not stats.native_calls, stats


def test_a_buffer_is_printed_before_its_module_writes_to_it() -> None:
    def make():
        model = nn.BatchNorm1d(2)
        holder = Counter()
        holder.__class__ = type("Holder", (Counter,), {"__str__": lambda self: str(model.running_mean)})

        def program(x):
            print(holder)
            return model(x)
        return program, model
    check(make, *CALLS)


@pytest.mark.parametrize("written", [False, True])
def test_a_tensor_from_outside_is_printed_with_its_own_node_of_autograd(written) -> None:
    """Which may be another one on each call, and is the one that it has before the graph writes to it."""
    def make():
        state = SimpleNamespace(held=None, leaf=torch.ones(2, requires_grad=True))

        def program(x):
            y = state.held * 2
            print(state.held, [state.held], f"{state.held}")
            if written:
                state.held.mul_(x)
                print(state.held)
            return y + x
        return program, state

    def sets(operation):
        return lambda state: setattr(state, "held", operation(state.leaf))
    x = torch.ones(2)
    check(make, sets(torch.clone), call(x), sets(torch.exp), call(x), sets(lambda leaf: leaf + 1), call(x),
          lambda state: state.held.sub_(1), call(x), captures=None, fullgraph=False)


def test_a_warning_of_a_category_before_a_write() -> None:
    class Counts(nn.BatchNorm1d):
        def forward(self, x):
            warnings.warn("is deprecated", DeprecationWarning, stacklevel=2)
            return super().forward(x)
    check(lambda: Counts(2), *CALLS, *CALLS, captures=1)


# --- exceptions that are told of

@contextlib.contextmanager
def logged():
    """What is logged, tracebacks included."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    try:
        yield stream
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = True


def fails(table, key):
    return table[key]


def logs_an_exception(x):
    try:
        fails({}, "missing")
    except KeyError:
        LOGGER.exception("looked for %s in %s", "it", x.shape)
    return x * 2


def logs_with_exc_info(x):
    y = x * 2
    try:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise TypeError("second") from error
    except TypeError as error:
        LOGGER.error("sum %.1f", y.sum(), exc_info=True)
        LOGGER.warning("again", exc_info=error)
        LOGGER.info("not shown", exc_info=False)
    return y + 1


def prints_tracebacks(x):
    y = x * 2
    try:
        fails([], 3)
    except IndexError:
        text = traceback.format_exc()
        traceback.print_exc(file=BUFFER)
        traceback.print_exc(1, BUFFER)
    return y + 1, text


def logs_and_raises_again(x):
    def inner():
        try:
            fails({}, 1)
        except KeyError:
            LOGGER.exception("inside")
            raise
    y = x * 2
    try:
        inner()
    except KeyError:
        LOGGER.exception("outside")
    return y + 1


BUFFER = io.StringIO()


@pytest.mark.parametrize(("program", "graphs"), [(logs_an_exception, 1), (logs_with_exc_info, 1), (prints_tracebacks, 1),
                                                  (logs_and_raises_again, None)], ids=lambda value: getattr(value, "__name__", ""))
def test_exceptions_are_told_of_with_their_tracebacks(program, graphs: int | None) -> None:
    compiled = capture.compile(program, backend="eager")
    told = []
    for function in (program, compiled):
        BUFFER.seek(0)
        BUFFER.truncate()
        with logged() as stream:
            results = [function(x) for x in (X, X + 1, -X, X * 3)]
        told.append((stream.getvalue(), BUFFER.getvalue(), str(results)))
    assert told[0] == told[1] and "Traceback" in told[0][0] + told[0][1]
    stats = capture.stats(compiled)
    assert stats.hits and not stats.native_calls and graphs in (None, stats.graphs), stats
    assert graphs is None or stats.breaks == 0


def test_whether_an_exception_is_told_of_is_guarded() -> None:
    def program(x, told):
        try:
            fails({}, "key")
        except KeyError:
            LOGGER.error("failed", exc_info=told)
        return x * 2
    compiled, texts = capture.compile(program, fullgraph=True, backend="eager"), []
    for function in (program, compiled):
        with logged() as stream:
            for told in (False, True, False, True):
                function(X, told)
        texts.append(stream.getvalue())
    assert texts[0] == texts[1] and capture.stats(compiled).captures == 2


def test_the_exception_of_the_caller_is_told_of_outside_of_the_trace() -> None:
    def program(x):
        y = x * 2
        LOGGER.exception("of the caller")
        return y + 1
    compiled, texts = capture.compile(program, backend="eager"), []
    for function in (program, compiled):
        with logged() as stream:
            for number in range(3):
                try:
                    raise ValueError(number)
                except ValueError:
                    function(X)
        texts.append(stream.getvalue().replace("compiled", "program"))
    assert [f"ValueError: {n}" in texts[1] for n in range(3)] == [True] * 3
    assert capture.stats(compiled).breaks


def decides(value) -> bool:
    if isinstance(value, uuid.UUID):
        return value.version != 4
    return bool(value.tzinfo) if isinstance(value, datetime) else value.closed


WAYS = {
    "list": lambda value: [value, 2],
    "values": lambda value: {"a": value}.values(),
    "items": lambda value: [item for _, item in {1: value}.items()],
    "set": lambda value: {value},
    "deque": lambda value: deque([value]),
    "reversed": lambda value: reversed([value]),
    "enumerate": lambda value: (item for _, item in enumerate([value])),
    "zip": lambda value: (item for item, _ in zip([value], "a", strict=True)),
    "inside": lambda value: iter([[value]][0]),
    "chain": lambda value: itertools.chain([], [value]),
    "generator": lambda value: (item for item in [value])}


@pytest.mark.parametrize("make", [uuid.uuid4, lambda: datetime.now(UTC), io.StringIO], ids=["uuid", "date", "stream"])
@pytest.mark.parametrize("way", WAYS)
def test_iterators_over_what_a_call_has_returned_cross_a_break(way: str, make) -> None:
    def program(x):
        y = x * 2
        found = 0
        for value in WAYS[way](make()):
            if value != 2 and not decides(value):
                found += 1
        return y + found
    compiled = capture.compile(program, backend="eager")
    assert [compiled(X).tolist() for _ in range(3)] == [program(X).tolist()] * 3


@pytest.mark.parametrize("name", sorted(READ_ONLY - {"()"}))
def test_a_slot_is_named_like_a_part_that_objects_of_c_are_created_with(name: str) -> None:
    cls = type("Slotted", (), {"__slots__": (name, "other"), "__module__": __name__, "__qualname__": "Slotted"})

    def program(x, value):
        made = cls()
        setattr(made, name, value)
        made.other = [value]
        print(getattr(made, name))
        return x + 1, made
    check(lambda: program, *(call(X, value) for value in (1.0, 1.0, "a", "a")), captures=None)
