"""A warm cache as one file: `capture.save` writes what this process has used of the cache, `capture.load` reads it in another.

The file is MAGIC, a SHA-256 hash of all that follows, and a `Saved` as bytes (`serialization.py`). The hash finds damage, not
malice: entries hold machine code.
"""
from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from capture import _C
from capture.backends.native import cache, disk_cache, installation
from capture.backends.native.installation import Fact
from capture.backends.native.serialization import FormatError, decode, encode
from capture.errors import CaptureError

MAGIC = b"CAPWARM\1"
HASH = hashlib.sha256().digest_size
NAMED = 5               # features of a processor that a message names
AGAIN = "save it again with capture.save"


class Saved(NamedTuple):
    """The contents of a file. facts: those of the process that saved it (`installation.py`). architectures: of the GPUs that
    entries are for. entries: by their keys in the disk cache."""

    facts: dict[str, Fact]
    architectures: tuple[str, ...]
    entries: dict[str, bytes]


class CacheFileError(CaptureError):
    """A file cannot be written, or cannot be used here. The message is one sentence with the remedy."""


def save(path: str) -> None:
    """Writes all entries that this process has used, whole or not at all. Raises CacheFileError if the file cannot be written, if
    there are no entries, or, when it has written the others, if the cache does not have some of them any more."""
    found = {key: cache.get(key, architecture) for key, architecture in cache.used().items()}
    entries = {key: data for key, data in found.items() if data is not None}
    if not found:
        raise CacheFileError(f"nothing was saved to {path}: this process has used no compiled graphs. Remedy: call compiled "
                             f"functions twice before capture.save.")
    if entries:
        architectures = sorted({cache.used()[key] for key in entries} - {""})
        data = encode(Saved(_facts(), tuple(architectures), entries))
        with _told(f"the warm cache {path} cannot be written", "choose a folder that has room and can be written to"):
            disk_cache.write_file(path, MAGIC + hashlib.sha256(data).digest() + data)
    if lost := len(found) - len(entries):
        raise CacheFileError(f"{lost} of {len(found)} entries were not saved to {path}, since the disk cache does not have them. "
                             f"Remedy: unset CAPTURE_CACHE, or set CAPTURE_CACHE_SIZE to more.")


def load(path: str) -> None:
    """Makes the entries of a file available to this process. Raises CacheFileError if it cannot be read, is damaged or no such
    file, or was saved where something else decides what graphs compile to."""
    with _told(f"the warm cache {path} cannot be read", f"correct the path or the file's permissions, or {AGAIN}"):
        data = Path(path).read_bytes()
    start = len(MAGIC) + HASH
    if data[:len(MAGIC)] != MAGIC:
        raise CacheFileError(f"{path} is no warm cache; it is not used. Remedy: {AGAIN}.")
    if hashlib.sha256(data[start:]).digest() != data[len(MAGIC):start]:
        raise CacheFileError(f"the warm cache {path} is damaged; it is not used. Remedy: copy it again, or {AGAIN}.")
    try:
        saved = decode(Saved, data[start:])
    except FormatError as error:
        raise CacheFileError(f"the warm cache {path} is of another version of capture ({error}); it is not used. "
                             f"Remedy: {AGAIN}.") from None
    if difference := _difference(saved.facts, _facts()) or _missing(saved.architectures):
        raise CacheFileError(f"the warm cache {path} is not used, since {difference}.")
    cache.add(saved.entries)


@contextlib.contextmanager
def _told(what: str, remedy: str) -> Iterator[None]:
    """Raises a CacheFileError for an OSError."""
    try:
        yield
    except OSError as error:
        raise CacheFileError(f"{what}: {error.strerror or error}. Remedy: {remedy}.") from None


def _facts() -> dict[str, Fact]:
    return {**installation.facts(), **installation.settings()}


def _difference(saved: Mapping[str, Fact], here: Mapping[str, Fact]) -> str:
    """The first fact that is another one here, with the remedy; "" if all are equal."""
    for name, fact in here.items():
        then = saved.get(name, Fact("", "unknown"))
        if then.value != fact.value:
            text = f"it was saved with {name} {then.shown}, and this is {name} {fact.shown}"
            if name == "processor":
                text += _features(set(then.value.split()), set(fact.value.split()))
            if name in installation.settings():
                return f"{text}. Remedy: set {name} as it was then, or {AGAIN}"
            return f"{text}. Remedy: {AGAIN} where {name} is as here"
    return ""


def _features(then: set[str], here: set[str]) -> str:
    """What one processor has and the other has not, in words."""
    texts = [f"{what} {' '.join(sorted(names)[:NAMED])}{' …' if len(names) > NAMED else ''}"
             for what, names in (("without", then - here), ("with", here - then)) if names]
    return f" ({', '.join(texts)})"


def _missing(architectures: tuple[str, ...]) -> str:
    """Which of these GPU architectures this machine does not have, with the remedy; "" if it has all."""
    if not architectures:
        return ""
    here = gpu_architectures()
    missing = [name for name in architectures if name not in here]
    if not missing:
        return ""
    return (f"it was saved for GPUs of architecture {', '.join(missing)}, and here are {', '.join(sorted(here)) or 'none'}. "
            f"Remedy: {AGAIN} on a machine with such GPUs as here")


def gpu_architectures() -> set[str]:
    """Those of this machine's GPUs, such as sm_90."""
    try:
        _, devices = _C.cuda_devices()
    except RuntimeError:        # there is no driver
        return set()
    return {f"sm_{major}{minor}" for _, major, minor in devices}
