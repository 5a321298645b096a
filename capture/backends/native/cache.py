"""The cache as this process sees it: what `capture.load` has read, then the disk cache; and what this process has used of it."""
from __future__ import annotations

from collections.abc import Mapping

from capture.backends.native.disk_cache import default_cache

_loaded: dict[str, bytes] = {}          # by key; in memory, since the file may change, and there may be no folder to write to
_used: dict[str, str] = {}              # keys, in order, and the GPU architecture that the entry is for, if it is for one


def get(key: str, architecture: str = "") -> bytes | None:
    """The entry under this key, or None. architecture: of the GPU for which it is, if it is for one."""
    data = _loaded.get(key)
    if data is None:
        data = default_cache().get(key)
    if data is not None:
        note(key, architecture)
    return data


def put(key: str, data: bytes) -> None:
    """Keeps an entry on disk."""
    default_cache().put(key, data)
    note(key)


def drop(key: str) -> None:
    """Deletes an entry that cannot be used."""
    _used.pop(key, None)
    _loaded.pop(key, None)
    default_cache().drop(key)


def note(key: str, architecture: str = "") -> None:
    """Notes that this process uses an entry, which another process may have put on disk."""
    _used[key] = architecture


def used() -> dict[str, str]:
    """The keys of all entries that this process has used, and the GPU architectures that they are for ("": none)."""
    return dict(_used)


def add(entries: Mapping[str, bytes]) -> None:
    """Makes entries available for as long as this process lives."""
    _loaded.update(entries)


def is_warm() -> bool:
    """Whether entries were added."""
    return bool(_loaded)
