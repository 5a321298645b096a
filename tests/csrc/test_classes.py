"""What the extension tells of classes: no Python code of a metaclass is asked."""
from __future__ import annotations

import gc
from typing import Any

import pytest

from capture import _C
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import ABSENT
from capture.refgraph.source import Constant, Local


class Asking(type):
    """Raises when its classes are hashed, compared or asked for an attribute."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("compared")

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


class Base:
    here, hidden = "of the base", "of the base"


class Asked(Base, metaclass=Asking):
    hidden = None
    own = 1


def test_a_set_of_classes() -> None:
    classes = _C.Classes((int, Asked, int, str))
    assert Asked in classes and int in classes
    assert Base not in classes and 5 not in classes
    assert len(classes) == 3 and {id(cls) for cls in classes} == {id(int), id(Asked), id(str)}
    assert len(_C.Classes(cls for cls in (int, str))) == 2, "anything may be iterated over"


@pytest.mark.parametrize("given", [(), (5,), ((int,), (str,))])
def test_a_set_of_classes_is_made_of_one_iterable(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        _C.Classes(*given)


def test_a_set_of_classes_keeps_them_and_can_be_collected() -> None:
    class Short:
        pass
    name = id(Short)
    Short.kept = _C.Classes((Short,))  # type: ignore[attr-defined]
    del Short
    gc.collect()
    assert not any(id(x) == name and getattr(x, "__name__", "") == "Short" for x in gc.get_objects())


def test_look_ups_go_along_the_mro() -> None:
    assert _C.lookup_class(Asked, "here") == "of the base" and _C.lookup_class(Asked, "own") == 1
    assert _C.lookup_class(Asked, "hidden", "default") is None and _C.has(Asked, "hidden")
    assert _C.lookup_class(Asked, "nothing") is None and _C.lookup_class(Asked, "nothing", 7) == 7 and not _C.has(Asked, "nothing")
    Base.later = 3  # type: ignore[attr-defined]
    try:
        assert _C.lookup_class(Asked, "later") == 3
    finally:
        del Base.later  # type: ignore[attr-defined]
    assert not _C.has(Asked, "later"), "a change of a base is seen"
    positions = type((lambda: 0).__code__.co_lines())
    assert _C.has(positions, "__next__"), "also of a class that C makes ready when it is first asked"


@pytest.mark.parametrize("given", [(Base,), (Base, 5), (5, "name"), (Base, "name", 1, 2)])
def test_look_ups_take_a_class_and_a_name(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        _C.lookup_class(*given)
    with pytest.raises(TypeError):
        _C.has(*given[:2], *given[3:])


def test_what_a_trace_has_noted_of_classes() -> None:
    class Derived(Base):
        pass
    graph = RefGraph()
    assert not graph.is_noted(Derived, "here")
    node = graph.external(Base, Constant(Base))
    assert not graph.is_noted(Derived, "here"), "that a base was met tells nothing of its attributes"
    node.slots["here"] = ABSENT  # type: ignore[attr-defined]
    assert graph.is_noted(Derived, "here") and not graph.is_noted(Derived, "hidden") and not graph.is_noted(int, "here")

    class Made(Base):
        pass
    graph.create(Made)
    assert graph.is_noted(Made, "anything"), "the trace made it"


def test_which_objects_nobody_else_refers_to() -> None:
    graph = RefGraph()
    kept, left = [1], [2]
    nodes = [graph.external(x, Local(f"x{place}", place)) for place, x in enumerate((kept, left))]
    assert _C.unshared(nodes, "_ref") == []
    del left
    assert _C.unshared(nodes, "_ref") == nodes[1:]
    assert kept == [1]
    with pytest.raises(TypeError):
        _C.unshared(tuple(nodes), "_ref")  # type: ignore[type-var]
