"""A function's statements as text for one machine."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from capture.backends.native.machine import CUDA
from capture.backends.native.render.language import IN_MEMORY
from capture.backends.native.render.statements import Branch, Function, Loop, Shared, Statement
from capture.backends.native.render.target import Dialect

INDENT = "  "


def printed(function: Function, target: Dialect, symbol: str) -> str:
    """A function called `symbol`: its arguments by their names, then its statements."""
    if function.room:
        return _printed_with_table(function, target, symbol)
    arguments = list(_arguments(function, target))
    lines = _body(function, target)
    if target.flags_parameter is None:
        lines, arguments = [*arguments, *lines], []
    else:
        lines.insert(0, target.opening)
        arguments += [target.flags_parameter] * function.flags
    return _signed(function, target, symbol, arguments, lines)


def _printed_with_table(function: Function, target: Dialect, symbol: str) -> str:
    """A function of which the parameters of several kernels are in one table: a block reads those of its own."""
    count = len(function.buffers) + len(function.symbols)
    arguments = [target.table.format(room=function.room, parameters=count), *[target.flags_parameter] * function.flags]
    named = [target.of_table.format(declared=declared, type=declared.rpartition(" ")[0], number=number)
             for number, declared in enumerate(_arguments(function, target))]
    return _signed(function, target, symbol, arguments, [target.table_opening, *named, *_body(function, target)])


def _body(function: Function, target: Dialect) -> list[str]:
    lines = list(_lines(function.body.body, target))
    return [target.flags, *lines, target.report_flags.format(number=len(function.buffers))] if function.flags else lines


def _signed(function: Function, target: Dialect, symbol: str, arguments: Sequence[str], lines: Sequence[str]) -> str:
    threads, waits = (function.launch.threads, function.launch.waits) if function.launch is not None else (1, False)
    form = target.bounds_of_waiting if waits else target.bounds
    bounds = form.format(threads=threads, blocks=max(1, CUDA.resident // threads))
    begin = target.signature.format(name=symbol, parameters=", ".join(arguments), bounds=bounds)
    end = target.behind.format(name=symbol, waits=str(waits).lower())
    return "\n".join([f"{begin} {{", *map(_indented, lines), "}", end])


def _arguments(function: Function, target: Dialect) -> Iterator[str]:
    starts = itertools.count(len(function.symbols))
    for number, (buffer, dtype) in enumerate(function.buffers.items()):
        if buffer in function.by_value:
            yield target.value.format(type=IN_MEMORY[dtype], name=f"buffer{number}")
            continue
        const = "" if buffer in function.written else "const "
        start = target.start.format(number=next(starts)) if buffer in function.starts else ""
        yield target.buffer.format(const=const, type=IN_MEMORY[dtype], name=f"buffer{number}", number=number, start=start)
    for number, name in enumerate(function.symbols.values()):
        yield target.number.format(name=name, number=number)


def _lines(statements: Sequence[Statement], target: Dialect) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, Loop):
            yield from _loop(statement, target)
        elif isinstance(statement, Branch):
            yield from _lines(statement.before, target)
            yield f"if ({statement.condition}) {{"
            yield from map(_indented, _lines([*statement.body, *statement.tail], target))
            yield "}"
        else:
            yield statement


def _loop(loop: Loop, target: Dialect) -> Iterator[str]:
    yield from _lines(loop.before, target)
    if loop.shared is not None:
        yield target.independent.format(shared="".join(_shared(one, target) for one in loop.shared))
    if loop.unrolled:
        yield "#pragma unroll"
    name = loop.variable
    step = "" if loop.step is None else f" ++{name}" if loop.step == 1 else f" {name} += {loop.step}"
    yield f"for (int64_t {name} = {loop.first}; {name} < {loop.last};{step}) {{"
    yield from map(_indented, _lines([*loop.body, *loop.tail], target))
    yield "}"


def _shared(one: Shared, target: Dialect) -> str:
    form = target.shared_flags if one.reduction is None else target.shared
    return form.format(name=one.name, reduction=one.reduction)


def _indented(line: str) -> str:
    return line if not line or line.startswith("#") else INDENT + line
