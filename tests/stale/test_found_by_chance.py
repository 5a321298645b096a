"""What random programs found (tests/fuzz), each as a program of its own."""
from __future__ import annotations

import collections
import functools
import operator
import types
import warnings

import pytest
import torch

import capture
from tests.helpers import call, call_with, check

X = torch.arange(6.0).reshape(2, 3)


def test_a_list_whose_class_says_that_it_is_empty() -> None:
    def make():
        class Stack(list):
            pass
        stack = Stack([1.0])

        def program(x):
            stack[0] = stack[0]
            return x * stack[-1], [*stack], bool(stack)
        return program, types.SimpleNamespace(stack=stack, cls=Stack)
    check(make, call(X), call(X), lambda s: setattr(s.cls, "__len__", lambda self: 0), call(X), call(X), captures=None,
          fullgraph=False)


def test_a_named_tuple_whose_class_says_that_it_is_empty() -> None:
    def make():
        Pair = collections.namedtuple("Pair", "a b")
        pair = Pair(1.0, 2.0)
        return (lambda x: x * pair.a + pair[1]), types.SimpleNamespace(pair=pair, cls=Pair)
    check(make, call(X), lambda s: setattr(s.cls, "__len__", lambda self: 0), call(X), call(X), captures=None, fullgraph=False)


def test_a_module_without_a_name() -> None:
    def make():
        settings = types.ModuleType("settings")
        vars(settings).clear()

        def program(x):
            vars(settings).setdefault("scale", 2.0)
            settings.scale += 1
            return x * settings.scale
        return program, settings.__dict__
    check(make, call(X), call(X), captures=None, fullgraph=False)


def test_an_attribute_assigned_to_a_class_and_read_through_one_that_has_its_own_later() -> None:
    def make():
        class Base:
            scale = 2.0

        class Derived(Base):
            pass

        def program(x):
            Base.scale = x.shape[0]
            found = Derived.scale
            Derived.scale = 5.0
            return x * found
        return program, types.SimpleNamespace(base=Base, derived=Derived)
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)


def test_an_empty_slot_that_is_filled_later() -> None:
    def make():
        class Slotted:
            __slots__ = ("value", "other", "third")
        slotted = Slotted()

        def program(x):
            found = [hasattr(slotted, "value"), getattr(slotted, "other", 3.0)]
            try:
                found.append(slotted.third)
            except AttributeError as error:
                found.append(str(error))
            return x + 1, found
        return program, slotted
    for name in ("value", "other", "third"):
        check(make, call(X), call(X), lambda s: setattr(s, name, 1.0), call(X), call(X), lambda s: delattr(s, name), call(X),
              captures=None, fullgraph=False)


def test_another_type_where_an_integer_was() -> None:
    """Why no entry fits is found out in time, too."""
    check(lambda: lambda x, n: x - n, call(X, 1), call(X, 2), call(X, 3), call(X, -0.0), call(X, 1.5), call(X, True), captures=None,
          fullgraph=False)


def test_a_builtin_without_the_argument_it_needs() -> None:
    def program(x):
        found = []
        for function in (len, iter, next, repr, isinstance, getattr, hash, min, operator.add):
            try:
                function()
            except TypeError as error:
                found.append(str(error))
        return x + 1, found
    check(lambda: program, call(X), call(X), captures=None, fullgraph=False)
    check(lambda: lambda x: len(), call(X), captures=None, fullgraph=False)


def test_methods_without_the_arguments_they_need_and_what_cannot_be_called() -> None:
    def make():
        items, table, kinds = [1.0], {"a": 2.0}, {3}

        def program(x):
            found = []
            for function in (items.append, items.insert, items.index, table.get, table.pop, table.setdefault, kinds.add, items,
                             table, (), 1):
                try:
                    function()
                except TypeError as error:
                    found.append(str(error))
            return x + 1, found
        return program, (items, table, kinds)
    check(make, call(X), call(X), captures=None, fullgraph=False)


def test_the_gradient_of_a_tensor_that_is_no_leaf_of_which_torch_warns() -> None:
    def make():
        state = types.SimpleNamespace(tensor=torch.ones(3, requires_grad=True))

        def program(x):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                return x + 1, state.tensor.grad is None
        return program, state
    check(make, call(X), call(X), lambda s: setattr(s, "tensor", torch.ones(3, requires_grad=True) * 2), call(X), call(X),
          captures=None, fullgraph=False)


def test_nobody_is_warned_of_what_a_guard_looks_at() -> None:
    state = types.SimpleNamespace(tensor=torch.ones(3, requires_grad=True))

    def program(x):
        return x + 1, state.tensor.grad is None
    compiled, told = capture.compile(program, backend="eager"), []
    for tensor in (state.tensor, state.tensor * 2, state.tensor * 3, state.tensor):
        state.tensor = tensor
        for function in (program, compiled, compiled):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                function(X)
            told.append(len(caught))
    assert told == [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]


def test_keywords_of_a_partial_function_that_are_no_strings() -> None:
    def make():
        held = functools.partial(dict, a=1), functools.partial(lambda **named: named, a=1)

        def program(x):
            found = []
            for function in held:
                try:
                    found.append(function(b=2))
                except TypeError as error:
                    found.append(str(error))
            return x + 1, found
        return program, held
    check(make, call(X), call(X), lambda s: [partial.keywords.update({1: 3}) for partial in s], call(X), call(X), captures=None,
          fullgraph=False)


def test_a_mode_whose_method_is_static() -> None:
    def make():
        class Mode(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        def program(x):
            with Mode():
                return torch.add(x, 1)
        return program, types.SimpleNamespace(mode=Mode)

    def replace(state, kind):
        method = state.mode.__torch_function__
        state.mode.__torch_function__ = kind(lambda *args, **kwargs: method(None, *args[-4:], **kwargs))
    check(make, call(X), call(X), lambda s: replace(s, staticmethod), call(X), call(X), lambda s: replace(s, classmethod), call(X),
          captures=None, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("kind", ["defaultdict", "Counter", "OrderedDict", "__missing__"])
def test_a_missing_key_that_was_there_stays_missing(kind: str, backend: str) -> None:
    class Filling(dict):
        def __missing__(self, key):
            self[key] = made = []
            return made

    def make():
        table = {"defaultdict": collections.defaultdict(list), "Counter": collections.Counter(), "__missing__": Filling(),
                 "OrderedDict": collections.OrderedDict()}[kind]
        table[1] = [5]
        state = types.SimpleNamespace(table=table, key=1)

        def program(x):
            if state.key in table:
                return x + 1 if table[state.key][-1] == 5 else x - table[state.key][-1]
            return x * 2
        return program, state

    def next_key(state):
        state.key += 1

    def store(state):
        state.table[4] = [7]
    check(make, call(X), call(X), next_key, call(X), call(X), next_key, call(X), store, next_key, call(X), call(X), next_key,
          call(X), captures=None, fullgraph=False, backend=backend)


@pytest.mark.parametrize("read", ["cls.count", "cls().count", "super(cls.kind, cls).count", "getattr(cls, 'count')", "cls.later()"])
def test_an_attribute_that_hides_the_one_which_a_base_was_given_is_deleted(read: str) -> None:
    def make():
        class Base:
            count, kind = 0, None

            @classmethod
            def later(cls):
                return cls.count

        class Middle(Base):
            count = 10

        class Last(Middle):
            pass
        Last.kind = Last
        namespace = {"Base": Base, "cls": Last}
        exec(f"def program(x):\n    Base.count += 1\n    return x * {read}, {read}, Base.count", namespace)
        return namespace["program"], types.SimpleNamespace(base=Base, middle=Middle, last=Last)

    def assign(name, count):
        return lambda state: setattr(getattr(state, name), "count", count)

    def delete(name):
        return lambda state: delattr(getattr(state, name), "count")
    check(make, call(X), assign("middle", 11), call(X), call(X), delete("middle"), call(X), call(X), assign("middle", 12), call(X),
          assign("last", 13), call(X), assign("base", 20), call(X), delete("last"), call(X), delete("middle"), call(X), call(X),
          captures=None)


@pytest.mark.parametrize("kind", [lambda cls: (cls, int), lambda cls: (int, (str, cls)), lambda cls: cls])
def test_a_class_among_others_that_decides_by_code_what_belongs_to_it(kind) -> None:
    class Meta(type):
        def __instancecheck__(cls, instance):
            return instance != 3.0

        def __subclasscheck__(cls, other):
            return other is not float

    class Odd(metaclass=Meta):
        pass

    def make():
        return lambda x, value: (x + 1, isinstance(value, kind(Odd)), issubclass(type(value), kind(Odd)))
    check(make, *[call(X, value) for value in (2.5, 2.5, 3.0, 2, "a", 3.0, None)], captures=None, fullgraph=False)


def test_iterators_over_a_byte_array_that_changes() -> None:
    def make():
        def program(x, data):
            items = iter(data)
            first = next(items)
            data.append(5)
            return x + first, list(items), next(items, None)
        return program, types.SimpleNamespace(data=bytearray(b"ab"))
    check(make, *[call_with(lambda state: (X, state.data))] * 3, captures=None, fullgraph=False)

    def make_stored():
        state = types.SimpleNamespace(data=bytearray(b"ab"), iterators=[])
        return (lambda x: (x + 1, state.iterators.append(iter(state.data)))), state

    def go_on(state):
        state.seen = [next(state.iterators[-1])]
        state.data.append(7)
        state.seen += state.iterators.pop()
    check(make_stored, call(X), go_on, call(X), go_on, call(X), go_on, call(X), go_on, captures=None, fullgraph=False)


def test_the_name_of_what_cannot_be_awaited() -> None:
    async def inner(value):
        return await value

    def make():
        def program(x, value):
            try:
                inner(value).send(None)
            except TypeError as error:
                return x + 1, str(error)
        return program
    check(make, *[call(X, value) for value in (bytearray(b"a"), range(3), range(3), 5, 5.0, [1], None)], captures=None,
          fullgraph=False)
