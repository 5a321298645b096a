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
    alike: dict[str, list[Kernel]] = {}     # symbol -> kernels
    for kernel in kernels:
        if kernel.name in rendered.symbols:
            raise InternalError(f"there are two kernels {kernel.name}")
        function = write_kernel(kernel, target)
        symbol = texts.setdefault(function.body, f"kernel{len(texts)}_{_identifier(kernel.name)}")
        alike.setdefault(symbol, []).append(kernel)
        rendered.symbols[kernel.name] = symbol
        rendered.buffers[kernel.name] = function.buffers
        rendered.numbers[kernel.name] = function.numbers
    functions = [_heading(alike[symbol], rendered.buffers[alike[symbol][0].name])
                 + f"{target.signature.format(name=symbol)} {{\n{body}}}\n" for body, symbol in texts.items()]
    sources = tuple("\n".join([target.prologue, *part]) for part in _balanced(functions))
    return Rendered(sources, rendered.symbols, rendered.buffers, rendered.numbers)


def _heading(kernels: Sequence[Kernel], buffers: Sequence[str]) -> str:
    """Comments above a function: which kernels it is, and what the buffers and arrays of the first of them are, in order."""
    more = f" and {len(kernels) - MOST_NAMED} more" if len(kernels) > MOST_NAMED else ""
    named = f"// {', '.join(kernel.name for kernel in kernels[:MOST_NAMED])}{more}"
    return "\n".join([named, *_listed("buffers", buffers), *_listed("locals", [local.name for local in kernels[0].locals]), ""])


def _listed(title: str, names: Sequence[str]) -> list[str]:
    text = f"{title}: {', '.join(names)}"
    return textwrap.wrap(text, 120, initial_indent="//   ", subsequent_indent="//     ", break_long_words=False) if names else []


def _balanced(functions: Sequence[str]) -> list[list[str]]:
    """The functions in groups of about the same number of lines."""
    total = sum(text.count("\n") for text in functions)
    groups: list[list[str]] = [[] for _ in range(min(len(functions), -(-total // UNIT_LINES)))]
    sizes = [0] * len(groups)
    for text in sorted(functions, key=lambda text: -text.count("\n")):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(text)
        sizes[smallest] += text.count("\n")
    order = {text: number for number, text in enumerate(functions)}
    return [sorted(group, key=order.__getitem__) for group in groups]


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name)[:60]
