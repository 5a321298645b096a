"""The names that code objects refer to and hold arguments in, and whether what they run can be suspended."""
from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def names_of(code: types.CodeType) -> Iterator[str]:
    """The names of attributes and globals in a code object and in those inside of it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from names_of(part)


def argument_names(code: types.CodeType) -> list[str]:
    """The names of the fast locals that hold a call's arguments."""
    others = sum(map(bool, (code.co_flags & inspect.CO_VARARGS, code.co_flags & inspect.CO_VARKEYWORDS)))
    return list(code.co_varnames[:code.co_argcount + code.co_kwonlyargcount + others])
