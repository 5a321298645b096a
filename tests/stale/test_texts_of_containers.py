"""Texts of containers: each kind of container, written in each way, captured with one content and called with others."""
from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import capture

KINDS: dict[str, Callable[[Any], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque, "dict": dict.fromkeys,
    "ordered": collections.OrderedDict.fromkeys, "bytearray": lambda numbers: bytearray(numbers),
    **{f"{kind.__name__}.{view}": lambda numbers, kind=kind, view=view: getattr(kind.fromkeys(numbers, len(numbers)), view)()
       for kind in (dict, collections.OrderedDict) for view in ("keys", "values", "items")}}
# 8 and 0 share a slot of a small set: their order is the order in which they were added.
CONTENTS = ([1], [], [2], [1, 2], [0, 8], [8, 0], [1, 3], [3], [1])
FORMS = ("f'{held}'", "f'{held!r}'", "str(held)", "repr(held)", "format(held)", "ascii(held)", "'%s' % (held,)",
         "'{}'.format(held)", "str([held])", "repr((1, held))", "str({1: held})", "f'{[[held]]}'", "'%r %s' % (held, 1)")
WAYS = {"given": "held = box.held", "made": "held = getattr(box.mapping, box.view)()"}


def answers(program: Callable, boxes: Iterable[Any]) -> list[str]:
    return [program(box) for box in boxes]


class Box:
    def __init__(self, kind: str, content: list[int]) -> None:
        self.held = KINDS[kind](content)
        mapping, _, self.view = kind.partition(".")
        if self.view:
            self.mapping = KINDS["ordered" if mapping == "OrderedDict" else mapping](content)
            self.mapping.update(dict.fromkeys(content, len(content)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_a_container(kind: str, form: str) -> None:
    boxes = [Box(kind, content) for content in CONTENTS]
    for way in WAYS if "." in kind else ("given",):
        scope: dict[str, Any] = {}
        exec(f"def program(box):\n    {WAYS[way]}\n    return {form}\n", scope)
        program = scope["program"]
        assert answers(capture.compile(program, backend="eager"), boxes) == answers(program, boxes)


class Named:
    def __str__(self) -> str:
        return "named"


class Shown:
    def __repr__(self) -> str:
        return "shown"


class Plain:
    pass


WRITTEN = {"named": Named(), "shown": Shown(), "plain": Plain(), "class": Plain, "list": [Shown()], "tuple": (1, Shown()),
           "method": Named().__str__, "function": answers, "group": ExceptionGroup("group", [ValueError(1)])}
SPECS = ("", "", ">5", "", 5, "s")


@pytest.mark.parametrize("way", ["format(held, spec)", "f'{held:{spec}}'", "held.__format__(spec)", "'{:{}}'.format(held, spec)"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_format_that_was_empty(name: str, way: str) -> None:
    """`object.__format__` refuses all others."""
    names = {"held": WRITTEN[name]}
    program = eval(f"lambda spec: {way}", names)
    compiled = capture.compile(program, backend="eager")

    def told(function: Callable, spec: Any) -> tuple[str, str]:
        try:
            return "returned", function(spec)
        except Exception as error:
            return type(error).__name__, str(error)
    assert [told(compiled, spec) for spec in SPECS] == [told(program, spec) for spec in SPECS]
