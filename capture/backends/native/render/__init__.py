"""Scheduled kernels as C++: the text of translation units, and how each kernel's function is called.

One renderer for C-like languages; what differs between machines is a table (`target.py`).
"""
from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from capture.backends.native.index import Index
from capture.backends.native.render.launch import Form, Launch
from capture.backends.native.render.printer import printed
from capture.backends.native.render.statements import Function
from capture.backends.native.render.target import CPU, CUDA, CUDA_ON_CPU, Dialect
from capture.errors import InternalError

__all__ = ["CPU", "CUDA", "CUDA_ON_CPU", "INVALID", "Dialect", "Form", "Launch", "Rendered", "render", "text"]

INVALID = "<invalid>"       # in the place of a buffer: one byte, bits of which a kernel sets when an index is out of range
WIDE = "_wide"              # behind the symbol of a function: its wide form (`Function.wide`)
MOST_NAMED = 4              # kernels that the comment above their function names


@dataclass(frozen=True)
class Rendered:
    """C++ of some kernels.

    sources: translation units, for one shared library. symbols: kernel name -> C function; kernels that do the same share one.
    buffers: kernel name -> names of the buffers whose addresses the function takes as `buffers`, in order; the last is INVALID if
    the kernel can meet an index out of range. numbers: kernel name -> the sizes that it takes as `numbers`, in order, and behind
    them where in buffers it begins. forms: kernel name -> how it is launched, where that is not the caller's choice: the first form
    whose conditions hold is the best, the last one has none. rooms: kernel name -> `Function.room`.
    """

    sources: tuple[str, ...]
    symbols: dict[str, str]
    buffers: dict[str, tuple[str, ...]]
    numbers: dict[str, tuple[Index, ...]]
    forms: dict[str, tuple[Form, ...]] = field(default_factory=dict)
    rooms: dict[str, int] = field(default_factory=dict)


def render(functions: Iterable[Function], target: Dialect = CPU) -> Rendered:
    """Kernels as C++. Raises InternalError where two have one name."""
    rendered = Rendered((), {}, {}, {})
    symbols: dict[str, str] = {}                # text -> symbol
    alike: dict[str, list[Function]] = {}       # symbol -> functions
    for function in functions:
        name = function.name
        if name in rendered.symbols:
            raise InternalError(f"there are two kernels {name}")
        symbol = symbols.setdefault(text(function, target, ""), f"kernel{len(symbols)}_{_identifier(name)}")
        alike.setdefault(symbol, []).append(function)
        rendered.symbols[name] = symbol
        rendered.buffers[name] = (*function.buffers, *([INVALID] if function.flags else []))
        rendered.numbers[name] = function.numbers
        if function.launch is not None:
            rendered.forms[name] = tuple(_forms(function, symbol))
            rendered.rooms[name] = function.room
    texts = [_heading(same, rendered.buffers[same[0].name]) + text(same[0], target, symbol) for symbol, same in alike.items()]
    sources = tuple("\n".join([target.prologue, *part]) for part in _balanced(texts, target.unit_lines))
    return replace(rendered, sources=sources)


def _forms(function: Function, symbol: str) -> Iterator[Form]:
    """A function's wide form, then itself."""
    if function.wide is not None:
        yield from _forms(function.wide, symbol + WIDE)
    if function.launch is not None:
        yield Form(symbol, function.launch, function.aligned, function.divisible)


def text(function: Function, target: Dialect, symbol: str) -> str:
    """A function and its wide form. Functions of one text do the same."""
    own = printed(function, target, symbol)
    return own if function.wide is None else f"{own}\n{text(function.wide, target, symbol + WIDE)}"


def _heading(functions: Sequence[Function], buffers: Sequence[str]) -> str:
    """Comments above a function: which kernels it is, and what the buffers and arrays of the first of them are, in order."""
    more = f" and {len(functions) - MOST_NAMED} more" if len(functions) > MOST_NAMED else ""
    named = f"// {', '.join(function.name for function in functions[:MOST_NAMED])}{more}"
    return "\n".join([named, *_listed("buffers", buffers), *_listed("locals", functions[0].locals), ""])


def _listed(title: str, names: Sequence[str]) -> list[str]:
    text = f"{title}: {', '.join(names)}"
    return textwrap.wrap(text, 120, initial_indent="//   ", subsequent_indent="//     ", break_long_words=False) if names else []


def _balanced(functions: Sequence[str], unit_lines: int) -> list[list[str]]:
    """The functions in groups of about the same number of lines."""
    total = sum(text.count("\n") for text in functions)
    groups: list[list[str]] = [[] for _ in range(min(len(functions), -(-total // unit_lines)))]
    sizes = [0] * len(groups)
    for text in sorted(functions, key=lambda text: -text.count("\n")):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(text)
        sizes[smallest] += text.count("\n")
    order = {text: number for number, text in enumerate(functions)}
    return [sorted(group, key=order.__getitem__) for group in groups]


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name)[:60]
