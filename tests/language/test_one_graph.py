"""What used to end a trace: each is one graph, and sees what changes from outside."""
from __future__ import annotations

import collections
import types
import typing

import pytest
import torch

import capture
from capture.interp.dispatch import speculation
from tests.helpers import call, check

X = torch.tensor([1.0, 2.0])
ONCE = call(X)


@pytest.mark.parametrize("options", [{"backend": "eager"}, {"backend": "native", "options": {"background": False}}], ids=str)
def test_the_identity_of_an_object_is_compared_with_a_number(options) -> None:
    def make():
        class Owner:
            def __init__(self):
                self.known = id(self)

            def forward(self, x):
                return x + 1 if id(self) == self.known else x - 1
        state = types.SimpleNamespace(owner=Owner())
        return lambda x: state.owner.forward(x), state
    run = make()[1].owner.forward
    assert torch.equal(run(X), X + 1)
    _, state = make()
    compiled = capture.compile(lambda x: state.owner.forward(x), fullgraph=True, **options)
    for _ in range(3):
        assert torch.equal(compiled(X), X + 1)
    known, state.owner.known = state.owner.known, 0
    assert torch.equal(compiled(X), X - 1) and torch.equal(compiled(X), X - 1)
    state.owner.known = known
    assert torch.equal(compiled(X), X + 1)
    other = type(state.owner)()
    other.known = known
    state.owner = other
    assert torch.equal(compiled(X), X - 1)


def test_subclasses() -> None:
    def make():
        class Base:
            pass

        class First(Base):
            pass
        state = types.SimpleNamespace(Base=Base, kept=[First])
        return lambda x: (x * len(Base.__subclasses__()), [cls.__name__ for cls in Base.__subclasses__()]), state
    check(make, ONCE, ONCE, lambda s: s.kept.append(type("Second", (s.Base,), {})), ONCE, ONCE, captures=2)


def test_from_keys_of_subclasses_of_dict() -> None:
    class Own(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, (value, len(self)))

    def program(x):
        made = collections.defaultdict.fromkeys(["a", "b"], 3)
        return x * made["a"], made, made.default_factory, Own.fromkeys("ab", x.sum()), dict.fromkeys("ab")
    check(lambda: program, ONCE, ONCE)


@pytest.mark.parametrize("item", [1.0, 5, True, torch.tensor(2.0)], ids=str)
def test_membership_in_a_tensor_is_a_number(item) -> None:
    check(lambda: lambda x: (x + 1, item in x, item not in x), ONCE, ONCE, call(torch.tensor([5.0, 3.0])), call(torch.zeros(2)))


def test_membership_that_decides() -> None:
    def program(x):
        return x + 1 if 1.0 in x else x - 1
    check(lambda: program, ONCE, ONCE, call(torch.zeros(2)), call(torch.zeros(2)), ONCE, captures=None, fullgraph=False)


def test_membership_asked_by_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is supposed to come out as it did; a call for which it does not runs natively."""
    monkeypatch.setattr(speculation, "is_of_library", lambda file: file == __file__)

    def program(x):
        if 0.0 in x[-1]:
            return x - 1
        return x + 1
    x = torch.tensor([[1.0], [2.0]])
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(x), x + 1)
    assert capture.stats(compiled).captures == 1
    zeros = torch.zeros(2, 1)
    assert torch.equal(compiled(zeros), zeros - 1) and torch.equal(compiled(x), x + 1)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * x * 3


LEAF = call(torch.tensor([1.0, 2.0], requires_grad=True))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("made", ["before", "inside"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_autograd_function_is_applied_through_an_instance(made: str, backend: str) -> None:
    def make():
        class Scaled(Square):
            def __init__(self, bits):
                super().__init__()
                self.bits = bits

        state = types.SimpleNamespace(function=Scaled(3), cls=Scaled)

        def inside(x):
            function = state.cls(5)
            return function.apply(x) * function.bits, Square().apply(x), function

        def before(x):
            return state.function.apply(x) * state.function.bits
        return (inside if made == "inside" else before), state

    def change(state):
        state.cls = type("Other", (state.cls,), {"forward": staticmethod(lambda ctx, x: x.exp())})
        state.function = state.cls(7)
    options = {"options": {"background": False}} if backend == "native" else {}
    check(make, LEAF, LEAF, change, LEAF, LEAF, captures=2, backend=backend, **options)


def test_state_of_an_instance_of_an_autograd_function() -> None:
    def program(x):
        function = Square()
        function.save_for_backward(x)
        function.mark_dirty(x)
        return x + 1, function.to_save, function.needs_input_grad, function.next_functions
    check(lambda: program, LEAF, LEAF, captures=None, fullgraph=False)


class Plain:
    def method(self):
        return self


def plain():
    return Plain


TOLD = {"function": plain, "function of torch": torch.nn.functional.relu, "builtin": torch.relu, "class": Plain, "module": torch,
        "object": Plain(), "method": Plain().method, "property": property(plain), "iterator": iter([]), "list": [plain, Plain(), 1]}
TEXTS = {"str": str, "repr": repr, "format": format, "f": lambda x: f"{x}", "f!r": lambda x: f"{x!r}",
         "percent": lambda x: "%s" % (x,)}


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_with_an_address(text, told) -> None:
    def program(x, told):
        return x + 1 if "relu" in text(told) else x - 1, text(told)
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for _ in range(2):
        assert compiled(X, told)[1] == text(told)
        assert torch.equal(compiled(X, told)[0], X + 1 if "relu" in text(told) else X - 1)
    assert capture.stats(compiled).captures == 1


def test_text_of_a_function_that_decides() -> None:
    def make():
        def relu(x):
            return x
        state = types.SimpleNamespace(function=relu, object=Plain())

        def program(x):
            return (x + 1 if "relu" in str(state.function) else x - 1), repr(state.object).split(" at ")[0]
        return program, state

    def rename(state):
        state.function.__qualname__ = "other"

    def replace(state):
        state.function = torch.nn.functional.relu
        state.object = type("Relu", (Plain,), {})()
    check(make, ONCE, ONCE, rename, ONCE, ONCE, replace, ONCE, ONCE, captures=3)


def test_text_of_an_object_of_the_traces_own() -> None:
    def own(x):
        def inner():
            return x
        made = Plain()
        return x + 1, made, repr(made), inner, f"{inner}", [str(made.method)]
    compiled = capture.compile(own, fullgraph=True, backend="eager")
    for _ in range(3):
        _, made, text, inner, name, method = compiled(X)
        assert text == repr(made) and name == repr(inner) and method == [repr(made.method)]

    def decides(x):
        return x + 1 if int(repr(Plain()).rsplit("x", 1)[1][:-1], 16) >> 4 & 1 else x + 1
    check(lambda: decides, ONCE, ONCE, ONCE, captures=None, fullgraph=False)


@pytest.mark.parametrize("name", ["__repr__", "__str__", "__format__"])
def test_text_of_an_object_whose_class_tells_it_later(name: str) -> None:
    def make():
        state = types.SimpleNamespace(object=type("Derived", (Plain,), {})())

        def program(x):
            texts = f"{state.object}", repr(state.object), str(state.object), f"{[state.object]}"
            return x + 1, [text.split(" at ")[0] for text in texts]
        return program, state

    def change(state):
        setattr(type(state.object), name, lambda self, spec="": "changed")
    check(make, ONCE, ONCE, change, ONCE, ONCE, captures=2)


T = typing.TypeVar("T")
Function = collections.abc.Callable[[T], typing.Any]


@pytest.mark.parametrize("made", [lambda: Function[int], lambda: list[T], lambda: list[T][int], lambda: dict[str, T][Plain],
                                  lambda: collections.abc.Callable[[int], str], lambda: types.GenericAlias(Plain, (int, T))])
def test_generic_aliases(made) -> None:
    check(lambda: lambda x: (x + 1, repr(made()), made() == made(), made().__args__), ONCE, ONCE)


def test_generic_aliases_of_what_the_call_makes() -> None:
    def program(x):
        class Made:
            pass
        Own = typing.TypeVar("Own")
        made = list[Made], list[Own], Made | int, types.GenericAlias(Made, int)
        nested = dict[str, list[Made]].__args__[1]
        return x + 1, made[0].__args__[0] is Made, made, Made, Own, nested
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        _, same, (items, general, union, own), Made, Own, nested = compiled(X)
        assert nested == items
        assert same and items.__args__ == union.__args__[:1] == (own.__origin__,) == (Made,) and general.__args__ == (Own,)


def type_variables(x):
    class Made:
        pass
    return x + 1, [typing.TypeVar("A"), typing.TypeVar("B", int, str), typing.TypeVar("C", bound=Made, covariant=True),
                   typing.ParamSpec("D"), typing.TypeVarTuple("E")]


def test_type_variables() -> None:
    def told(made):
        return [(type(one), repr(one), one.__module__, getattr(one, "__constraints__", None), str(getattr(one, "__bound__", None)))
                for one in made]
    compiled = capture.compile(type_variables, fullgraph=True, backend="eager")
    expected, before = told(type_variables(X)[1]), []
    for _ in range(3):
        _, made = compiled(X)
        assert told(made) == expected and made != before
        before = made
    assert capture.stats(compiled).hits == 2


def test_map_only_of_pytree() -> None:
    def program(x):
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda leaf: leaf + 1, {"a": x, "b": [x * 2, 3, "c"]})
    check(lambda: program, ONCE, ONCE)


def own_subclasses(x, state):
    return x * len(state.base.__subclasses__()), [cls.__name__ for cls in state.base.__subclasses__()]


def own_keys(x, state):
    made = collections.defaultdict.fromkeys(state.keys, state.scale)
    return x * made["a"], made


def own_name(x, state):
    return x + 1 if "plain" in str(state.function) else x - 1


def own_leaves(x, state):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda leaf: leaf * state.scale, {"a": x, "b": [x + 2, 3, "c"]})


def own_members(x, state):
    return x * state.scale, state.scale in x


CHANGES = {own_subclasses: lambda state: setattr(state, "more", type("More", (state.base,), {})),
           own_keys: lambda state: state.keys.append("c"), own_name: lambda state: setattr(state, "function", torch.relu),
           own_leaves: lambda state: setattr(state, "scale", 5), own_members: lambda state: setattr(state, "base", None)}


@pytest.mark.parametrize("program", CHANGES, ids=lambda program: program.__name__)
def test_with_kernels(program) -> None:
    def make():
        state = types.SimpleNamespace(base=type("Base", (), {}), keys=["a", "b"], function=plain, scale=2)
        return lambda x: program(x, state), state
    check(make, ONCE, ONCE, ONCE, CHANGES[program], ONCE, ONCE, captures=1 if program is own_members else 2, backend="native",
          options={"background": False})
