"""Entries of the guard tree: their life, what they hold, and what changes between calls do to them."""
import gc
import operator
import struct
import types
import weakref
from collections import OrderedDict, deque

import numpy
import pytest
import torch
from torch import nn

from capture import _C
from capture.guards.guard import Guard, Kind
from capture.guards.tree import GuardTree
from capture.refgraph.source import Attr, Computed, Constant, InstanceDict, Item, Local, TypeAttr, TypeOf


def subject(x, y=None):
    return x


X, Y = Local("x", 0), Local("y", 1)


class Plain:
    pass


def tree_with(*guards, lifted=()):
    tree = GuardTree(subject.__code__)
    return tree, tree.insert(list(guards), list(lifted), None, None)


def applies(tree, *args):
    return tree.check(subject, [*args, None][:2]) is not None


def test_the_oldest_entry_that_applies_is_found():
    tree, first = tree_with(Guard(X, Kind.VALUE, 1))
    second = tree.insert([Guard(X, Kind.TYPE, int)], [], None, None)
    assert tree.check(subject, [1]) is first and tree.check(subject, [2]) is second
    assert tree.check(subject, [True]) is None and tree.check(subject, ["a"]) is None
    assert tree.entries == [first, second]


def test_entries_can_be_removed():
    tree, first = tree_with()
    second = tree.insert([], [], None, None)
    tree.remove(first)
    assert not first.alive and tree.entries == [second] and tree.check(subject, [1]) is second
    with pytest.raises(ValueError):
        tree.remove(first)
    tree.clear()
    assert tree.entries == [] and tree.check(subject, [1]) is None


def test_at_most_64_entries():
    tree = GuardTree(subject.__code__)
    entries = [tree.insert([Guard(X, Kind.VALUE, i)], [], None, None) for i in range(64)]
    assert tree.check(subject, [63]) is entries[63]
    with pytest.raises(ValueError, match="at most 64"):
        tree.insert([], [], None, None)
    assert tree.entries == entries
    tree.remove(entries[0])
    assert tree.check(subject, [63]) is entries[63] and tree.insert([], [], None, None).alive


@pytest.mark.parametrize("kind, expected", [
    (Kind.TYPE, 3), (Kind.TRUTH, 1), (Kind.LENGTH, "a"), (Kind.KEYS, ["a"]), (Kind.NO_ATTR, 3), (Kind.CONTENT, {1}),
    (Kind.TENSOR, None), (Kind.PRESENT, []), (Kind.VALUE, weakref.ref(Plain)), (Kind.LENGTH, 2**80)])
def test_expectations_are_checked(kind, expected):
    tree = GuardTree(subject.__code__)
    with pytest.raises((TypeError, OverflowError)):
        tree.insert([Guard(X, kind, expected)], [], None, None)
    assert tree.entries == [] and not applies(tree, 1)


def test_an_entry_dies_with_an_object_it_expects():
    def world():
        class Local_(Plain):
            pass
        return Local_()

    for make in (lambda o: Guard(X, Kind.ID, o), lambda o: Guard(TypeOf(X), Kind.ID, type(o)),
                 lambda o: Guard(X, Kind.TYPE, type(o)),
                 lambda o: Guard(TypeAttr(Constant(type(o)), "a"), Kind.ID, None),
                 lambda o: Guard(X, Kind.KEYS, (o, "a")), lambda o: Guard(X, Kind.VALUE, [type(o)])):
        thing = world()
        tree, entry = tree_with(make(thing))
        alive = weakref.ref(thing)
        assert entry.alive and tree.entries == [entry]
        del thing
        gc.collect()
        assert alive() is None
        assert not entry.alive and tree.entries == []
        assert not applies(tree, None)
        assert len(entry.guards) == entry.guard_count == 1


def test_entries_hold_nothing_of_the_program():
    model = nn.Linear(2, 2)
    parameters = Item(InstanceDict(X), "_parameters")
    tree, entry = tree_with(
        Guard(X, Kind.ID, model), Guard(X, Kind.TYPE, nn.Linear),
        Guard(Item(parameters, "weight"), Kind.ID, model.weight),
        Guard(Item(parameters, "weight"), Kind.TENSOR, _C.tensor_properties(model.weight)),
        Guard(Constant(model), Kind.ALIAS, X), lifted=[Item(parameters, "weight"), Constant(model)])
    assert applies(tree, model)
    gone = weakref.ref(model), weakref.ref(model.weight)
    del model
    gc.collect()
    assert gone[0]() is None and gone[1]() is None and not entry.alive


def test_address_reuse_is_no_hit():
    tree, _ = tree_with(Guard(X, Kind.TYPE, Plain), Guard(Item(InstanceDict(X), "a"), Kind.VALUE, 10**20))
    addresses, reused = set(), 0
    for i in range(2000):
        thing = Plain()
        thing.a = 10**20 + i % 3
        reused += id(thing) in addresses
        addresses.add(id(thing))
        assert applies(tree, thing) == (i % 3 == 0)
        del thing
    assert reused


def test_attributes_are_seen_when_they_change():
    inner, outer = Plain(), Plain()
    inner.flag, outer.inner, outer.other = True, inner, 0
    flag = Item(InstanceDict(Item(InstanceDict(X), "inner")), "flag")
    tree, _ = tree_with(Guard(flag, Kind.VALUE, True))
    assert applies(tree, outer)
    inner.flag = False
    assert not applies(tree, outer)
    inner.flag = True
    outer.other = 1
    assert applies(tree, outer)
    outer.inner = Plain()
    assert not applies(tree, outer)
    outer.inner = inner
    assert applies(tree, outer)
    inner.__dict__ = {"flag": 1}
    assert not applies(tree, outer)
    inner.__dict__ = {"flag": True}
    assert applies(tree, outer)
    del inner.flag
    assert not applies(tree, outer)


def test_class_assignment_is_seen_though_no_dict_changes():
    class Other(Plain):
        pass

    inner, outer = Plain(), Plain()
    outer.inner = inner
    tree, _ = tree_with(Guard(Item(InstanceDict(X), "inner"), Kind.TYPE, Plain))
    assert applies(tree, outer)
    inner.__class__ = Other
    assert not applies(tree, outer)
    inner.__class__ = Plain
    assert applies(tree, outer)


def test_class_attributes_are_seen_when_they_change():
    class Base:
        limit = 1

    class Derived(Base):
        pass

    thing = Derived()
    tree, _ = tree_with(Guard(TypeAttr(TypeOf(X), "limit"), Kind.VALUE, 1), Guard(TypeOf(X), Kind.NO_ATTR, "extra"))
    assert applies(tree, thing)
    Base.limit = 2
    assert not applies(tree, thing)
    Base.limit = 1
    assert applies(tree, thing)
    Derived.extra = None
    assert not applies(tree, thing)


def test_many_instances_share_an_entry():
    things = [Plain() for _ in range(100)]          # more than the tree remembers
    for i, thing in enumerate(things):
        thing.a, thing.b = 1, Plain()
        thing.b.c = i % 2
    tree, _ = tree_with(Guard(Item(InstanceDict(X), "a"), Kind.VALUE, 1),
                        Guard(Item(InstanceDict(Item(InstanceDict(X), "b")), "c"), Kind.VALUE, 0))
    for _ in range(3):
        assert [applies(tree, thing) for thing in things] == [i % 2 == 0 for i in range(100)]
        assert [applies(tree, things[2]) for _ in range(3)] == [True] * 3
    things[2].b.c = 1
    assert not applies(tree, things[2])


def test_the_order_of_an_ordered_dict_counts():
    thing = Plain()
    thing.d = OrderedDict(a=1, b=2)
    tree, _ = tree_with(Guard(Item(InstanceDict(X), "d"), Kind.KEYS, ("a", "b")))
    assert applies(tree, thing)
    thing.d.move_to_end("a")
    assert not applies(tree, thing)
    thing.d.move_to_end("b")
    assert applies(tree, thing)


def test_items_of_deques_are_seen_when_they_change():
    thing = Plain()
    thing.d = deque([1, 2])
    tree, _ = tree_with(Guard(Item(Item(InstanceDict(X), "d"), -1), Kind.VALUE, 2))
    assert applies(tree, thing)
    thing.d.rotate()
    assert not applies(tree, thing)
    thing.d.rotate()
    assert applies(tree, thing)
    thing.d.clear()
    assert not applies(tree, thing)


def test_lists_cells_and_slots_are_read_anew():
    class Slotted:
        __slots__ = ("a",)

    cell = types.CellType([1, 2])
    thing, slotted = Plain(), Slotted()
    slotted.a = cell
    thing.s = slotted
    contents = Attr(Attr(Item(InstanceDict(X), "s"), "a"), "cell_contents")
    tree, _ = tree_with(Guard(Item(contents, -1), Kind.VALUE, 2))
    assert applies(tree, thing)
    cell.cell_contents[1] = 3
    assert not applies(tree, thing)
    cell.cell_contents = (1, 2)
    assert applies(tree, thing)
    del cell.cell_contents
    assert not applies(tree, thing)
    cell.cell_contents = [2]
    assert applies(tree, thing)
    del slotted.a
    assert not applies(tree, thing)


def test_function_attributes():
    def f(a=1):
        return a

    thing = Plain()
    thing.f = f
    source = Item(InstanceDict(X), "f")
    tree, _ = tree_with(Guard(Attr(source, "__code__"), Kind.ID, f.__code__),
                        Guard(Item(Attr(source, "__defaults__"), 0), Kind.VALUE, 1))
    assert applies(tree, thing)
    f.__defaults__ = (2,)
    assert not applies(tree, thing)
    f.__defaults__ = (1,)
    assert applies(tree, thing)
    f.__code__ = (lambda a: a).__code__
    assert not applies(tree, thing)


def test_values_are_exact():
    for expected, others in [(1, [True, 1.0]), (0.0, [-0.0, 0, False]), (float("nan"), [1.0]), ((1,), [(1.0,), [1]]),
                             ({"a": 1}, [{"a": 1.0}, {"b": 1}]), ({"a": 1, "b": 2}, [{"b": 2, "a": 1}])]:
        tree, _ = tree_with(Guard(X, Kind.VALUE, expected))
        assert applies(tree, expected) and not any(applies(tree, other) for other in others)
    tree, _ = tree_with(Guard(X, Kind.VALUE, float("nan")))
    assert applies(tree, float("nan"))
    assert not applies(tree, struct.unpack("d", struct.pack("q", 0x7FF8000000000001))[0])


def test_an_expected_container_is_a_copy():
    mine = [1, 2]
    tree, _ = tree_with(Guard(X, Kind.VALUE, mine))
    assert applies(tree, mine)
    mine.append(3)
    assert not applies(tree, mine)


def test_tensors():
    thing = Plain()
    thing.w = nn.Parameter(torch.ones(2, 3))
    source = Item(InstanceDict(X), "w")
    tree, _ = tree_with(Guard(source, Kind.TENSOR, _C.tensor_properties(thing.w)))
    assert applies(tree, thing)
    with torch.no_grad():
        thing.w.mul_(2)
    assert applies(tree, thing)
    for change, undo in [(lambda w: w.requires_grad_(False), lambda w: w.requires_grad_(True)),
                         (lambda w: setattr(w, "data", w.data.t()), lambda w: setattr(w, "data", w.data.t())),
                         (lambda w: setattr(w, "data", w.data.double()), lambda w: setattr(w, "data", w.data.float())),
                         (lambda w: setattr(thing, "w", torch.ones(2, 3)), lambda w: setattr(thing, "w", w))]:
        w = thing.w
        change(w)
        assert not applies(tree, thing)
        undo(w)
        assert applies(tree, thing)


@pytest.mark.parametrize("make", [
    lambda: torch.ones(2, 3).t(), lambda: torch.ones(2, 3, dtype=torch.half), lambda: torch.ones(2, 3, device="meta"),
    lambda: torch.ones(2, 3, requires_grad=True), lambda: torch.ones(2, 3, requires_grad=True) * 1,
    lambda: nn.Parameter(torch.ones(2, 3)), lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
    lambda: torch.ones(2, 3).to_sparse(), lambda: torch.ones(2, 3).to_sparse_csr(), lambda: torch.ones(3, 2),
    lambda: torch.ones(6), lambda: torch.ones(2, 3, 1, 1, 1, 1, 1), lambda: torch.ones(()), lambda: None])
def test_tensor_properties_tell_tensors_apart(make):
    plain = _C.tensor_properties(torch.ones(2, 3))
    assert plain.matches(torch.zeros(2, 3)) and plain == _C.TensorProperties.of(torch.zeros(2, 3))
    other = make()
    assert not plain.matches(other)
    if other is not None:
        properties = _C.tensor_properties(other)
        assert properties != plain and properties.matches(other) and properties.matches(make())
        assert hash(properties) == hash(_C.tensor_properties(make()))
        tree, _ = tree_with(Guard(X, Kind.TENSOR, plain))
        mismatch, = tree.explain(subject, [other])
        assert mismatch.guard.kind is Kind.TENSOR and mismatch.expected != mismatch.found


def test_every_guard_that_fails_is_told():
    tree, _ = tree_with(Guard(X, Kind.TYPE, list), Guard(X, Kind.LENGTH, 2), Guard(X, Kind.TRUTH, True))
    assert [mismatch.guard.kind for mismatch in tree.explain(subject, [[]], every=True)] == [Kind.LENGTH, Kind.TRUTH]
    assert [mismatch.guard.kind for mismatch in tree.explain(subject, [[]])] == [Kind.LENGTH]
    assert len(tree.explain(subject, [0], every=True)) == 3 and not tree.explain(subject, [[1, 2]], every=True)


def test_parts_of_a_key_are_told_by_name():
    tree, _ = tree_with(Guard(X, Kind.PRESENT, (Plain, "registered")))
    mismatch, = tree.explain(subject, [{}])
    assert mismatch.expected == "a dict with key (Plain, 'registered')"
    assert applies(tree, {(Plain, "registered"): 1})


def test_inference_tensors_differ():
    with torch.inference_mode():
        made = torch.ones(2, 3)
    assert not _C.tensor_properties(torch.ones(2, 3)).matches(made)


def test_tensors_that_are_not_plain_are_refused():
    from torch._subclasses import FakeTensorMode
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    for bad in (fake, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), 3, None):
        with pytest.raises(TypeError):
            _C.tensor_properties(bad)
    assert not _C.tensor_properties(torch.ones(2)).matches(fake)


def test_separate():
    first, other, third = [], [], []
    tree, _ = tree_with(Guard(X, Kind.SEPARATE, ((X, True), (Y, True), (Item(X, 0), False))))
    assert applies(tree, [third], other) and applies(tree, first, other)        # of the other side one may be missing
    for x, y in (([third], third), (first, first), (first, Ellipsis)):
        assert applies(tree, x, y) is (y is Ellipsis)
    first.append(first)
    assert not applies(tree, first, other)                                      # one of the first side is the other
    tree, _ = tree_with(Guard(X, Kind.SEPARATE, ((X, True), (Item(Y, 0), False), (Item(Y, 1), False))))
    assert applies(tree, other, [third, third]) and not applies(tree, other, [third, other])


def test_storage():
    base = torch.ones(6)
    guard = Guard(X, Kind.STORAGE, ((X, 0, 0), (Y, 0, 8)))
    tree, _ = tree_with(guard)
    assert applies(tree, base, base[2:]) and applies(tree, base[:2], base[2:])
    for other in (base[1:], torch.ones(6)[2:], 3):
        assert not applies(tree, base, other)
    tree, _ = tree_with(Guard(X, Kind.STORAGE, ((X, 0, 0), (Y, 1, 0))))
    assert applies(tree, base, torch.ones(2))
    assert not applies(tree, base, base) and not applies(tree, base, base.view(2, 3))
    tree, _ = tree_with(Guard(X, Kind.STORAGE, ((X, 0, None), (Y, 1, 8))))
    assert applies(tree, base, torch.ones(6)[2:]) and applies(tree, base[3:], torch.ones(6)[2:])
    assert not applies(tree, base[3:], base[2:]) and not applies(tree, base[3:], torch.ones(6)[1:])
    array = numpy.ones(3)
    tree, _ = tree_with(Guard(X, Kind.STORAGE, ((X, 0, 0), (Y, 1, 0))))
    assert not applies(tree, torch.from_numpy(array), torch.from_numpy(array))


@pytest.mark.parametrize("mode", [
    torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"), lambda: torch.autocast("cpu", enabled=False),
    lambda: torch.device("cpu"),
    lambda: torch.autograd.set_multithreading_enabled(False), lambda: torch.autograd.detect_anomaly(),
    lambda: torch.autograd.forward_ad.dual_level(), lambda: torch._C.DisableTorchFunctionSubclass(),
    lambda: torch.backends.cudnn.flags(deterministic=True),
    lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    lambda: setting(torch.use_deterministic_algorithms, True, False),
    lambda: setting(lambda d: torch.set_autocast_dtype("cpu", d), torch.float16, torch.bfloat16),
    lambda: setting(torch.set_autocast_cache_enabled, False, True)])
def test_modes(mode):
    before = _C.modes()
    tree, _ = tree_with(Guard(None, Kind.MODES, before))
    assert applies(tree, 1) and before == _C.Modes.current() and hash(before) == hash(_C.modes())
    with mode():
        assert not applies(tree, 1) and before != _C.modes() and repr(before) != repr(_C.modes())
        mismatch, = tree.explain(subject, [1])
        assert mismatch.guard.kind is Kind.MODES and mismatch.subject and mismatch.expected != mismatch.found
    assert applies(tree, 1)


class setting:
    def __init__(self, setter, inside, outside):
        self.setter, self.inside, self.outside = setter, inside, outside

    def __enter__(self):
        self.setter(self.inside)

    def __exit__(self, *_):
        self.setter(self.outside)


def test_computed_values():
    remainder = Computed(operator.mod, (X, Y))
    tree, _ = tree_with(Guard(remainder, Kind.VALUE, 1))
    assert applies(tree, 7, 3) and not applies(tree, 6, 3) and not applies(tree, 7, 0) and not applies(tree, "a", 3)

    class Number(int):
        def __mod__(self, other):
            raise AssertionError("a guard ran user code")

    assert not applies(tree, Number(7), 3)


def test_an_entry_may_come_while_guards_are_evaluated():
    """As another thread adds one: guards may run Python functions of capture's own."""
    tree, added = GuardTree(subject.__code__), []

    def itself(x):
        if not added:
            added.append(tree.insert([Guard(X, Kind.VALUE, 2)], [], None, None))
        return x
    first = tree.insert([Guard(Computed(itself, (X,)), Kind.VALUE, 1)], [], None, None)
    assert tree.check(subject, [3]) is None and tree.entries == [first, *added]
    assert [mismatch.entry for mismatch in tree.explain(subject, [3])] == [first, *added]
    assert tree.check(subject, [2]) is added[0] and tree.check(subject, [1]) is first


def test_entries_may_come_while_the_tree_is_built():
    tree, numbers = GuardTree(subject.__code__), iter(range(40))

    class Key:
        def __hash__(self):
            for number in numbers:
                tree.insert([Guard(X, Kind.VALUE, number)], [], None, None)
            return 1
    key = Key()
    first = tree.insert([Guard(Item(X, key), Kind.VALUE, 1)], [], None, None)
    assert tree.check(subject, [{key: 1}]) is first and len(tree.entries) == 41
    assert [tree.check(subject, [number]) in tree.entries for number in range(41)] == [True] * 40 + [False]


def test_missing_lifted_values_are_a_miss():
    tree, _ = tree_with(lifted=[Item(InstanceDict(X), "a")])
    thing = Plain()
    assert not applies(tree, thing)
    assert tree.explain(subject, [thing])[0].guard is None
    thing.a = 1
    assert applies(tree, thing)


def test_explanations_run_no_user_code():
    class Rude:
        def __repr__(self):
            raise AssertionError("a guard ran user code")

        __eq__ = __len__ = __bool__ = __repr__
        __hash__ = None

    for kind, expected in [(Kind.VALUE, 1), (Kind.LENGTH, 2), (Kind.TRUTH, True), (Kind.TYPE, int), (Kind.ID, None),
                           (Kind.KEYS, ("a",)), (Kind.PRESENT, "a"), (Kind.CONTENT, frozenset({1}))]:
        tree, entry = tree_with(Guard(X, kind, expected))
        mismatch, = tree.explain(subject, [Rude()])
        assert mismatch.entry is entry and mismatch.guard.kind is kind and mismatch.subject == "x" and "Rude" in mismatch.found


def test_guards_print_as_python():
    guard = Guard(Item(InstanceDict(X), "a"), Kind.VALUE, 3)
    assert guard.as_python() == str(guard) == "same(x.a, 3)"
    assert Guard(X, Kind.TYPE, nn.Linear).as_python() == "type(x) is torch.nn.modules.linear.Linear"
    assert Guard(X, Kind.ID, list.append).as_python() == "x is list.append"
    assert Guard(X, Kind.ID, object.__eq__).as_python() == "x is object.__eq__"
    assert Guard(X, Kind.ID, torch).as_python() == "x is sys.modules['torch']"
    assert Guard(X, Kind.ID, applies.__code__).as_python() == "x is <code of applies>"
    assert Guard(X, Kind.DISTINCT, Y).as_python() == "distinct(x, lambda: y)"
    properties = _C.tensor_properties(torch.ones(1)).of_any_shape()
    assert Guard(X, Kind.TENSOR, properties).as_python().startswith("tensor_properties(x, any_shape=True) == ")
    for kind in Kind:
        expected = {Kind.ALIAS: Y, Kind.DISTINCT: Y, Kind.SEPARATE: ((X, True), (Y, False)), Kind.STORAGE: ((X, 0, 0),),
                    Kind.MODES: _C.modes(),
                    Kind.TENSOR: _C.tensor_properties(torch.ones(1))}.get(kind, 1)
        assert Guard(None if kind is Kind.MODES else X, kind, expected).as_python()


@pytest.mark.parametrize("kind, expected", [
    (Kind.CONTENT, frozenset({1, 2})), (Kind.MEMBER, 2), (Kind.NOT_MEMBER, 3), (Kind.LENGTH, 2), (Kind.KEYS, (1, 2))])
def test_sets_are_seen_when_they_change(kind, expected):
    thing = Plain()
    thing.s = {1, 2}
    tree, _ = tree_with(Guard(Item(InstanceDict(X), "s"), kind, expected))
    for _ in range(2):
        assert applies(tree, thing)
        thing.s.add(3)
        assert applies(tree, thing) == (kind is Kind.MEMBER)
        thing.s -= {3, 2}
        assert applies(tree, thing) == (kind is Kind.NOT_MEMBER)
        thing.s.add(2)
    thing.s = frozenset(thing.s)
    assert applies(tree, thing)
