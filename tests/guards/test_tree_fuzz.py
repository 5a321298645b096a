"""The guard tree against the definition of its guards, on random worlds that change between checks."""
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capture.guards import expression, helpers
from capture.guards.guard import Kind
from capture.guards.tree import STEP_CODES, GuardTree
from capture.refgraph.source import Function, ImportedModule
from tests.guards import worlds


def subject(v0, v1, v2):
    return v0


def first_failing(guards, world):
    locals_ = {f"v{i}": v for i, v in enumerate(world)}
    for guard in guards:
        if not guard.evaluate(locals_, subject):
            return guard
    return None


def change_something_guarded(guards, world, rng):
    """Changes the object that some guard is about, or one on the way to it."""
    source = rng.choice(guards).source
    if any(isinstance(step, (Function, ImportedModule)) or "__globals__" in str(step) for step in steps_of(source)):
        return                                  # those are not of this world
    while source.base is not None and rng.random() < 0.4:
        source = source.base
    printer = expression.Evaluable({f"v{i}": v for i, v in enumerate(world)}, subject)
    try:
        x = eval(printer.path(source), printer.names)
    except helpers.Unreachable:
        return
    if not worlds.is_namespace(x):
        worlds.change(x, rng)


def steps_of(source):
    while source is not None:
        yield source
        source = source.base


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_check_agrees_with_python(seed):
    rng = random.Random(seed)
    world = [worlds.value(rng) for _ in range(3)]
    tree = GuardTree(subject.__code__)
    entries = []
    for _step in range(60):
        if len(entries) < 6 and rng.random() < 0.15:
            guards = worlds.guards_for(worlds.paths(world, subject, rng, rng.randrange(1, 12)), rng)
            entries.append(tree.insert(guards, [], None, None))
        alive = [entry for entry in entries if entry.alive]
        assert tree.entries == alive
        expected, failing = None, {}
        for entry in alive:
            bad = first_failing(entry.guards, world)
            if bad is None:
                expected = entry
                break
            failing[entry] = bad
        found = tree.check(subject, world)
        assert found is expected, (found and found.guards, failing)
        assert tree.check(subject, world) is expected           # asked again, a miss goes by what ruled the entries out
        reasons = {mismatch.entry: mismatch for mismatch in tree.explain(subject, world)}
        for entry, bad in failing.items():
            if not entry.alive:             # a cycle of objects that it needs was collected meanwhile
                continue
            assert entry in reasons, bad
            if bad.kind not in (Kind.ALIAS, Kind.SEPARATE, Kind.STORAGE):
                assert reasons[entry].guard.kind is bad.kind and reasons[entry].guard.source == bad.source
            assert reasons[entry].found
        del expected, failing, reasons, found, alive
        for _ in range(rng.randrange(3)):
            worlds.mutate(world, rng)
        if tree.entries and rng.random() < 0.5:
            change_something_guarded(rng.choice(tree.entries).guards, world, rng)


def test_the_worlds_exercise_every_kind_and_step():
    rng = random.Random(0)
    kinds, steps = {Kind.MODES}, set()
    for _ in range(300):
        world = [worlds.value(rng) for _ in range(3)]
        for guard in worlds.guards_for(worlds.paths(world, subject, rng, 12), rng):
            kinds.add(guard.kind)
            steps.update(type(step).__name__ for step in steps_of(guard.source))
    assert kinds == set(Kind)
    assert steps == set(STEP_CODES)
