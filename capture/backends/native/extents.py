"""The sizes of a call of a graph whose inputs change in size, and the calls for which its compiled code is valid."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from capture.backends.native.index import Atom, Div, Index, Mod, Size, Symbol

Values = Mapping[Symbol, int]       # what symbols are in a call

@dataclass(frozen=True, slots=True)
class Condition:
    """A relation of two sizes, by its name in Python."""

    relation: str
    left: Index
    right: Index

    def text(self, of: Callable[[Symbol], str]) -> str:
        """As Python has it, with `of` giving the texts of symbols."""
        return f"{text_of(self.left, of)} {self.relation} {text_of(self.right, of)}"


def text_of(size: Index, of: Callable[[Symbol], str]) -> str:
    """A size as Python has it."""
    def atom(one: Atom) -> str:
        if isinstance(one, (Div, Mod)):
            return f"(({text_of(one.dividend, of)}) {'//' if isinstance(one, Div) else '%'} ({text_of(one.divisor, of)}))"
        assert isinstance(one, Symbol), one
        return of(one)
    return size.text(atom)


def value_of(size: Size, values: Values) -> int:
    """What a size is where symbols have these values."""
    if isinstance(size, int):
        return size
    found = size.substitute(lambda atom: values.get(atom) if isinstance(atom, Symbol) else None).constant
    assert found is not None, size
    return found


def values_of(sizes: Sequence[Size], values: Values) -> tuple[int, ...]:
    """What a shape is where symbols have these values."""
    return tuple(value_of(size, values) for size in sizes)
