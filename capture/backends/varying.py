"""What was found to vary in a function's calls (sizes, numbers), kept on disk between processes, by the function's code.

It is kept in the same store as compiled graphs; if it cannot be read or written, nothing was learned. A process uses what was there
when it first asked, so that its captures do not depend on what it has written itself.
"""
from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

from capture.backends.native import cache, disk_cache

PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))


@dataclass
class Varying:
    """The dimensions of tensors that vary, and the numbers and strings, by the text of their paths."""

    sizes: dict[str, set[int]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.sizes or self.numbers)


_recalled: dict[str, Varying] = {}      # by key, as they were when this process first asked


def key_of(code: types.CodeType, name: str) -> str:
    """The key of what is known of a function: its code, and what users call it."""
    return disk_cache.key_of("varying", name, *parts_of(code))


def parts_of(code: types.CodeType) -> Iterator[str | bytes]:
    """What makes code what it is, that of inner functions included, in another process too."""
    yield from (code.co_qualname, code.co_code, *code.co_names, *code.co_varnames, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from parts_of(constant)
        else:
            yield repr(constant) if type(constant) in PLAIN else type(constant).__qualname__


def recall(key: str) -> Varying:
    """What earlier processes have learned."""
    if key not in _recalled:
        data = cache.get(key)
        _recalled[key] = Varying() if data is None else read(data)
    found = _recalled[key]
    return Varying({path: set(dims) for path, dims in found.sizes.items()}, set(found.numbers))


def keep(key: str, varying: Varying) -> None:
    """Keeps what was learned, with what earlier processes had."""
    before = recall(key)
    for path, dims in varying.sizes.items():
        before.sizes.setdefault(path, set()).update(dims)
    sizes = {path: sorted(dims) for path, dims in sorted(before.sizes.items())}
    data = {"sizes": sizes, "numbers": sorted(before.numbers | varying.numbers)}
    cache.put(key, json.dumps(data).encode())


def read(data: bytes) -> Varying:
    """What `keep` has written; nothing if it is something else."""
    try:
        found = json.loads(data)
        return Varying({str(path): {dim for dim in dims if type(dim) is int} for path, dims in found["sizes"].items()},
                       {str(path) for path in found["numbers"]})
    except (ValueError, KeyError, TypeError, AttributeError):
        return Varying()
