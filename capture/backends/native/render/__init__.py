"""Kernels as C++: the text of translation units, and how each kernel's function is called.

One renderer for C-like languages; what differs between machines is a table (`target.py`).
"""
from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from capture.backends.native.index import Index
from capture.backends.native.ir import Kernel
from capture.backends.native.render.kernel import INVALID, write_kernel
from capture.backends.native.render.target import CPU, Target
from capture.errors import InternalError

__all__ = ["CPU", "INVALID", "Rendered", "Target", "render"]

UNIT_LINES = 400            # of a translation unit, about; a graph with more is compiled as several, side by side
MOST_NAMED = 4              # kernels that the comment above their function names


@dataclass(frozen=True)
class Rendered:
    """C++ of some kernels.

    sources: translation units, for one shared library. symbols: kernel name -> C function; kernels that do the same share one.
    buffers: kernel name -> names of the buffers whose addresses the function takes as `buffers`, in order; the last is INVALID if
    the kernel can meet an index out of range. numbers: kernel name -> the sizes that it takes as `numbers`, in order, and behind
    them where in buffers it begins.
    """

    sources: tuple[str, ...]
    symbols: dict[str, str]
    buffers: dict[str, tuple[str, ...]]
    numbers: dict[str, tuple[Index, ...]]


def render(kernels: Sequence[Kernel], target: Target = CPU) -> Rendered:
    """Kernels as C++. Raises InternalError where two have one name."""
    rendered = Rendered((), {}, {}, {})
    texts: dict[str, str] = {}          # body -> symbol
    names: dict[str, list[str]] = {}    # symbol -> kernels
    for kernel in kernels:
        if kernel.name in rendered.symbols:
            raise InternalError(f"there are two kernels {kernel.name}")
        function = write_kernel(kernel, target)
        symbol = texts.setdefault(function.body, f"kernel{len(texts)}_{_identifier(kernel.name)}")
        names.setdefault(symbol, []).append(kernel.name)
        rendered.symbols[kernel.name] = symbol
        rendered.buffers[kernel.name] = function.buffers
        rendered.numbers[kernel.name] = function.numbers
    functions = [f"{_heading(names[symbol], rendered.buffers)}{target.signature.format(name=symbol)} {{\n{body}}}\n"
                 for body, symbol in texts.items()]
    sources = tuple("\n".join([target.prologue, *part]) for part in _balanced(functions))
    return Rendered(sources, rendered.symbols, rendered.buffers, rendered.numbers)


def _heading(kernels: Sequence[str], buffers: dict[str, tuple[str, ...]]) -> str:
    """Comments above a function: which kernels it is, and what the buffers of the first of them are, in order."""
    more = f" and {len(kernels) - MOST_NAMED} more" if len(kernels) > MOST_NAMED else ""
    taken = textwrap.wrap(", ".join(buffers[kernels[0]]), 120, break_long_words=False)
    return f"// {', '.join(kernels[:MOST_NAMED])}{more}\n" + "".join(f"//   {line}\n" for line in taken)


def _balanced(functions: Sequence[str]) -> list[list[str]]:
    """The functions in groups of about the same number of lines, the largest first."""
    total = sum(text.count("\n") for text in functions)
    groups: list[list[str]] = [[] for _ in range(min(len(functions), -(-total // UNIT_LINES)))]
    sizes = [0] * len(groups)
    for text in sorted(functions, key=lambda text: -text.count("\n")):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(text)
        sizes[smallest] += text.count("\n")
    return groups


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name)[:60]
