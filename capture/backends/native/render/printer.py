"""A function's statements as text for one machine."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from capture.backends.native.render.language import IN_MEMORY
from capture.backends.native.render.statements import Function, Loop, Shared, Statement
from capture.backends.native.render.target import Target

INDENT = "  "


def printed(function: Function, target: Target) -> str:
    """The body of a function: its arguments by their names, then its statements."""
    lines = [*_arguments(function, target), *_lines(function.body.body, target)]
    if function.flags:
        lines.append(target.report_flags.format(number=len(function.buffers)))
    return "".join(f"{_indented(line)}\n" for line in lines)


def _arguments(function: Function, target: Target) -> Iterator[str]:
    starts = itertools.count(len(function.symbols))
    for number, (buffer, dtype) in enumerate(function.buffers.items()):
        const = "" if buffer in function.written else "const "
        start = target.start.format(number=next(starts)) if buffer in function.starts else ""
        yield target.buffer.format(const=const, type=IN_MEMORY[dtype], name=f"buffer{number}", number=number, start=start)
    for number, name in enumerate(function.symbols.values()):
        yield target.number.format(name=name, number=number)
    if function.flags:
        yield target.flags


def _lines(statements: Sequence[Statement], target: Target) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, Loop):
            yield from _loop(statement, target)
        else:
            yield statement


def _loop(loop: Loop, target: Target) -> Iterator[str]:
    yield from _lines(loop.before, target)
    if loop.shared is not None:
        yield target.independent.format(shared="".join(_shared(one, target) for one in loop.shared))
    name = loop.variable
    step = "" if loop.step is None else f" ++{name}" if loop.step == 1 else f" {name} += {loop.step}"
    yield f"for (int64_t {name} = {loop.first}; {name} < {loop.last};{step}) {{"
    yield from map(_indented, _lines([*loop.body, *loop.tail], target))
    yield "}"


def _shared(one: Shared, target: Target) -> str:
    form = target.shared_flags if one.reduction is None else target.shared
    return form.format(name=one.name, reduction=one.reduction)


def _indented(line: str) -> str:
    return line if not line or line.startswith("#") else INDENT + line
