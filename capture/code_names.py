"""The names of globals and attributes that code objects refer to."""
from __future__ import annotations

import types
from collections.abc import Iterator


def names_of(code: types.CodeType) -> Iterator[str]:
    """The names of attributes and globals in a code object and in those inside of it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from names_of(part)
