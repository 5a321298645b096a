"""Memory: the peak while capturing, and that nothing of the user's is kept alive."""
from __future__ import annotations

import functools
import gc
import weakref
from types import BuiltinMethodType, SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from benchmarks import growth
from capture.api import unit_of
from capture.unit import UNITS
from tests import compiling
from tests.peak import peak

SIZE = 1 << 18
X = torch.randn(4, 4)


def chain(x):
    for k in range(20):
        x = x * 1.01 + k
    return x.sum()


def branches(x):
    pieces = []
    for k in range(10):
        y = x * k
        pieces.append(y.sum())
        del y
    return torch.stack(pieces)


def nested_calls(x):
    def layer(t):
        hidden = torch.relu(t)
        return hidden + 1

    def block(t):
        return layer(layer(t))
    for _ in range(5):
        x = block(x)
    return x


def containers(x):
    state = {"hidden": x}
    for k in range(10):
        state["hidden"] = state["hidden"] + k
        pair = state["hidden"], [state["hidden"]]
        state["hidden"] = pair[0] * 2
    return state["hidden"]


def generators(x):
    def steps(t):
        for k in range(10):
            t = t + k
            yield t.mean()
    return sum(steps(x))


def handled_exceptions(x):
    for k in range(10):
        try:
            y = x * k
            raise ValueError
        except ValueError:
            x = y + 1
            del y
    return x


PROGRAMS = [chain, branches, nested_calls, containers, generators, handled_exceptions]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_peak_while_capturing_is_that_of_eager(program) -> None:
    x = torch.ones(SIZE)
    compiled = capture.compile(program, fullgraph=True)
    eager, capturing, hit = peak(program, x), peak(compiled, x), peak(compiled, x)
    assert capture.stats(compiled).hits == 1
    assert capturing <= 1.1 * eager and hit <= 1.1 * eager, (eager, capturing, hit)


def test_the_peak_of_training_while_capturing_is_that_of_eager() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)])
    x = torch.randn(512, 256)

    def train(forward, x):
        forward(x).sum().backward()
    compiled = capture.compile(model, fullgraph=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    eager, capturing, hit = peak(train, model, x), peak(train, compiled, x), peak(train, compiled, x)
    assert capturing <= 1.1 * eager and hit <= 1.1 * eager, (eager, capturing, hit)


# --- what must be freed

class Box(SimpleNamespace):
    """A namespace that can be referred to weakly."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(1))
        self.history = []

    def forward(self, x):
        self.steps += 1
        return self.linear(x) * self.steps


def freed(*objects) -> bool:
    """Whether the objects, given as weak references, are gone."""
    gc.collect()
    return all(reference() is None for reference in objects)


def used(compiled, *args, times: int = 3):
    for _ in range(times):
        compiled(*args)
    return compiled


def test_a_compiled_function_and_what_it_closes_over_are_freed() -> None:
    def use():
        weight, state = torch.ones(4), Box(log=[], model=Model())

        def program(x):
            state.log.append(x)
            return state.model(x) * weight
        compiled = used(capture.compile(program), X)
        return [weakref.ref(o) for o in (weight, state, state.model, state.model.linear, program, compiled)]
    assert freed(*use())


def test_a_compiled_module_is_freed() -> None:
    compiled = used(capture.compile(Model()), X)
    references = [weakref.ref(o) for o in (compiled, compiled.linear, compiled.linear.weight, compiled.steps)]
    del compiled
    assert freed(*references)


def test_inputs_and_outputs_are_freed_at_once() -> None:
    compiled = capture.compile(lambda x, items: (x * 2, [x, *items]))
    gc.disable()
    try:
        for _ in range(3):
            x, item = torch.ones(4), torch.ones(3)
            result = compiled(x, [item])
            references = [weakref.ref(o) for o in (x, item, result[0])]
            del x, item, result
            assert all(reference() is None for reference in references)
    finally:
        gc.enable()


def test_results_are_freed_at_once_after_iterations_in_the_capture() -> None:
    class Result:
        pass

    def program(x, items):
        result = Result()
        result.total, result.pairs = sum(item for item in items), dict(zip("ab", items))
        return result
    compiled = capture.compile(program, fullgraph=True)
    gc.disable()
    try:
        for _ in range(3):
            result = compiled(torch.ones(4), [torch.ones(4), torch.ones(4)])
            reference = weakref.ref(result)
            del result
            assert reference() is None
    finally:
        gc.enable()


def test_inputs_of_a_native_run_and_of_a_failed_call_are_freed() -> None:
    compiled = capture.compile(lambda x: x * float(x.sum().numpy()))
    failing = capture.compile(lambda x: x.no_such_attribute)
    for function in (compiled, failing):
        for _ in range(3):
            x = torch.ones(4)
            reference = weakref.ref(x)
            try:
                function(x)
            except AttributeError:
                pass
            del x
            assert freed(reference)


@capture.disable
def outside(x):
    return x


def missing_attribute(x, box):
    with torch.no_grad():
        return box.missing


def raised(x, box):
    raise ValueError(box)


def raised_in_a_match(x, box):
    match {"a": box, "b": x}:
        case {"a": value, "b": _}:
            raise ValueError(value)


def raised_behind_a_break(x, box):
    outside(x)
    try:
        raise KeyError(box)
    except KeyError as error:
        raise ValueError(box) from error


def raised_outside(x, box):
    return outside(x, box)


def advanced(x, box):
    return x + next(box.rows)


def computed(x, box):
    box.number = float(x.sum().numpy())
    return x * box.number


RAISING = [missing_attribute, raised, raised_in_a_match, raised_behind_a_break, raised_outside]


@pytest.mark.parametrize("program", [*RAISING, advanced, computed], ids=lambda program: program.__name__)
def test_what_was_captured_is_freed_at_once(program) -> None:
    """Neither an exception of the program's nor a break of ours is part of a cycle."""
    compiled = capture.compile(program)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            box = Box(rows=(row for row in X))
            reference = weakref.ref(box)
            try:
                compiled(X, box)
            except (AttributeError, TypeError, ValueError):
                pass
            del box
            assert reference() is None
    finally:
        gc.enable()


def test_a_model_passed_as_argument_is_freed_while_the_compiled_function_lives() -> None:
    compiled = capture.compile(lambda model, x: model(x))
    for _ in range(3):
        model = Model()
        used(compiled, model, X)
        references = [weakref.ref(o) for o in (model, model.linear, model.linear.weight, model.steps)]
        del model
        assert freed(*references)
    assert torch.equal(compiled(nn.Identity(), X), X)


def test_a_class_is_freed_while_the_compiled_function_lives() -> None:
    compiled = capture.compile(lambda obj, x: obj.scale(x))

    def use():
        class Scaler:
            factor = 3

            def scale(self, x):
                return x * self.factor
        used(compiled, Scaler(), X)
        return weakref.ref(Scaler)
    assert freed(use())


def test_globals_and_closure_cells_that_were_replaced_are_freed() -> None:
    namespace = {"weight": torch.ones(4), "config": Box(scale=2.0), "model": Model(), "torch": torch}
    exec("def program(x):\n    return model(x) * weight * config.scale", namespace)
    cell = torch.ones(4)

    def closure(x):
        return x * cell
    compiled, closed = used(capture.compile(namespace["program"]), X), used(capture.compile(closure), X)
    references = [weakref.ref(namespace[name]) for name in ("weight", "config", "model")] + [weakref.ref(cell)]
    namespace.update(weight=torch.zeros(4), config=Box(scale=1.0), model=nn.Identity())
    cell = torch.zeros(4)
    assert freed(*references)
    assert torch.equal(compiled(X), X * 0) and torch.equal(closed(X), X * 0)


def test_a_submodule_that_was_replaced_is_freed() -> None:
    model = Model()
    compiled = used(capture.compile(model), X)
    references = [weakref.ref(model.linear), weakref.ref(model.linear.weight)]
    model.linear = nn.Linear(4, 4)
    assert freed(*references)
    used(compiled, X)


def test_entries_of_dead_objects_go_away() -> None:
    compiled = capture.compile(lambda obj, x: x * obj.scale(2))

    def use(k):
        class Scaler:
            def scale(self, n):
                return n * k
        scaler = Scaler()
        for _ in range(2):                              # what is never hit waits (`admission.py`)
            assert torch.equal(compiled(scaler, X), X * 2 * k)
    for k in range(20):                                 # more than the limit of recaptures: the dead do not count
        use(k)
        gc.collect()
    assert capture.stats(compiled).native_calls == 0


def test_reset_frees_what_entries_hold() -> None:
    compiled = used(capture.compile(lambda x: x.relu()), X)
    unit = compiled.capture_unit
    references = [weakref.ref(entry.payload.graph_module) for entry in unit.tree.entries]
    assert references
    capture.reset()
    assert freed(*references)


GROWTH = """
import gc, sys, torch, capture
log, table = [], {}

def growth(program):
    compiled = capture.compile(program)
    x = torch.ones(2)
    def many(n):
        for _ in range(n):
            try:
                compiled(x)
            except (AttributeError, KeyError):
                pass
            log.clear()
        gc.collect()
        return sys.getallocatedblocks()
    many(2000)
    before = many(100)
    return many(5000) - before

for program in (lambda x: x + 1, lambda x: log.append(x), lambda x: print(end=''), lambda x: x.missing, lambda x: table[0],
                lambda x: [r for r in x]):
    print(growth(program))
"""


def test_no_memory_grows_with_the_number_of_calls() -> None:
    """Blocks of Python's allocator after many calls of each program, in a process of their own."""
    done = compiling.programs().run(["-c", GROWTH], timeout=120)
    growth = list(map(int, done.stdout.split()))
    assert done.returncode == 0, done.stderr
    assert len(growth) == 6 and all(blocks < 200 for blocks in growth), growth


def test_no_python_code_runs_as_a_compiled_function_dies() -> None:
    """An interrupt of the program that came in a callback of a weak reference would be lost, and its loop go on for ever."""
    function = capture.compile(lambda x: x + 1, backend="eager")
    reference = UNITS[id(unit_of(function))]
    assert isinstance(reference.__callback__, functools.partial) and isinstance(reference.__callback__.func, BuiltinMethodType)


def test_no_object_is_left_by_captures_that_were_forgotten() -> None:
    """Programs of all kinds; `python -m benchmarks.growth` is the long form."""
    growth.captures(70, "eager")                        # fills what is kept for good
    blocks, objects = growth.census()
    growth.captures(280, "eager")
    blocks_after, objects_after = growth.census()
    assert objects_after.total() - objects.total() < 20, growth.grown(objects, objects_after)
    assert blocks_after - blocks < 20 * 280     # bounded caches fill for some thousand captures; one that is kept has hundreds
