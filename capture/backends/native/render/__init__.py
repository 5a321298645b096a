"""Scheduled kernels as C++: the text of translation units, and how each kernel's function is called.

One renderer for C-like languages; what differs between machines is a table (`target.py`).
"""
from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from capture.backends.native.index import Index
from capture.backends.native.render.launch import Launch
from capture.backends.native.render.printer import printed
from capture.backends.native.render.statements import Function
from capture.backends.native.render.target import CPU, CUDA, CUDA_ON_CPU, Dialect
from capture.errors import InternalError

__all__ = ["CPU", "CUDA", "CUDA_ON_CPU", "INVALID", "WIDE", "Dialect", "Launch", "Rendered", "render"]

INVALID = "<invalid>"       # in the place of a buffer: one byte, bits of which a kernel sets when an index is out of range
WIDE = "_wide"              # behind the symbol of a function: its wide form (`Function.wide`)
MOST_NAMED = 4              # kernels that the comment above their function names


@dataclass(frozen=True)
class Rendered:
    """C++ of some kernels.

    sources: translation units, for one shared library. symbols: kernel name -> C function; kernels that do the same share one.
    buffers: kernel name -> names of the buffers whose addresses the function takes as `buffers`, in order; the last is INVALID if
    the kernel can meet an index out of range. numbers: kernel name -> the sizes that it takes as `numbers`, in order, and behind
    them where in buffers it begins. launches: kernel name -> how it is launched, where that is not the caller's choice.
    aligned: kernel name -> the buffers that must begin at multiples of 16 bytes for the function whose symbol ends in WIDE, where
    there is one.
    """

    sources: tuple[str, ...]
    symbols: dict[str, str]
    buffers: dict[str, tuple[str, ...]]
    numbers: dict[str, tuple[Index, ...]]
    launches: dict[str, Launch] = field(default_factory=dict)
    aligned: dict[str, frozenset[str]] = field(default_factory=dict)


def render(functions: Iterable[Function], target: Dialect = CPU) -> Rendered:
    """Kernels as C++. Raises InternalError where two have one name."""
    rendered = Rendered((), {}, {}, {})
    symbols: dict[str, str] = {}                # text -> symbol
    alike: dict[str, list[Function]] = {}       # symbol -> functions
    for function in functions:
        name = function.name
        if name in rendered.symbols:
            raise InternalError(f"there are two kernels {name}")
        symbol = symbols.setdefault(_printed(function, target, ""), f"kernel{len(symbols)}_{_identifier(name)}")
        alike.setdefault(symbol, []).append(function)
        rendered.symbols[name] = symbol
        rendered.buffers[name] = (*function.buffers, *([INVALID] if function.flags else []))
        rendered.numbers[name] = function.numbers
        if function.launch is not None:
            rendered.launches[name] = function.launch
        if function.wide is not None:
            rendered.aligned[name] = function.aligned
    texts = [_heading(same, rendered.buffers[same[0].name]) + _printed(same[0], target, symbol) for symbol, same in alike.items()]
    sources = tuple("\n".join([target.prologue, *part]) for part in _balanced(texts, target.unit_lines))
    return replace(rendered, sources=sources)


def _printed(function: Function, target: Dialect, symbol: str) -> str:
    """A function and its wide form."""
    text = printed(function, target, symbol)
    return text if function.wide is None else f"{text}\n{printed(function.wide, target, symbol + WIDE)}"


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
