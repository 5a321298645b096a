"""What was compiled, kept on disk between processes: a folder of checksummed entries, private to the user.

The rule that keeps it safe: an entry is believed only when it lies in a folder that nobody else can write to, belongs to
the user, and its checksum, which covers its key, agrees; anything else is a miss. Each operation opens the folder anew and
acts below the descriptor that it has checked, so nothing that happens to the path in between can lead elsewhere. Entries
appear by a rename, whole or not at all; that needs no lock, since readers keep what they have opened, and two processes
which evict at the same time choose the same entries. Locks only keep two processes from compiling the same (`alone`). A folder
that cannot be used costs one warning per process.
"""
from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import itertools
import os
import re
import secrets
import shutil
import stat
import struct
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from capture import config
from capture.backends.native import installation
from capture.errors import warn

MAGIC = b"CAPTURE\0"
VERSION = 2                                     # of the format of what is kept
HEADER = struct.Struct("<8sIQ32s")              # magic, version, length of the payload, checksum of key and payload
KEY = re.compile(r"[0-9a-f]{64}")
OURS = re.compile(r"[0-9a-f]{64}\.capture|\.[0-9a-f]{32}\.capture")  # an entry, or one being written; all else is not ours
LOCKS = ".locks"                                # an empty file: a process that compiles has locked the byte of the key's number
PATIENCE, POLL = 100.0, 0.02                    # seconds for which another process is waited for, and between two looks
ABANDONED = 3600                                # seconds after which an unfinished entry belongs to no living writer
PROC = "/proc/self/fd"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_warned: set[Path | None] = set()               # folders whose trouble the user has heard of
_opened = itertools.count()                     # libraries opened by this process


@dataclass(frozen=True)
class DiskCache:
    """Byte strings by key in `folder` (None: always empty), at most `limit` bytes of them: the least recently used go first. It
    holds no state of its own: it may be copied, pickled, and used by any number of threads and processes."""

    folder: Path | None
    limit: int

    def get(self, key: str) -> bytes | None:
        """What was put under `key`, or None. A damaged entry is deleted, one that is not the user's own is ignored."""
        name = _entry(key)
        try:
            with self._open() as folder:
                return None if folder is None else _read(folder, name, key)
        except FileNotFoundError:
            return None
        except Unusable as error:
            self.tell(str(error))
        except OSError as error:
            self.tell(self._trouble(f"cannot be read: {error.strerror}", "repair it"))
        return None

    def put(self, key: str, data: bytes) -> None:
        """Keeps `data` under `key`, in the place of what was there. When that is not possible the program goes on without."""
        self.tell(self.keep(key, data))

    def drop(self, key: str) -> None:
        """Deletes what cannot be used."""
        with suppress(OSError, Unusable), self._open() as folder:
            if folder is not None:
                os.unlink(_entry(key), dir_fd=folder)

    def keep(self, key: str, data: bytes) -> str:
        """Does what `put` does, and returns what there is to tell the user, which is for another process to do."""
        name = _entry(key)
        if self.folder is None or HEADER.size + len(data) > self.limit:
            return ""
        try:
            with self._open(make=True) as folder:
                if folder is not None:
                    _write(folder, name, _packed(key, data), 0o600)
                    _evict(folder, self.limit)
        except Unusable as error:
            return str(error)
        except OSError as error:
            return self._trouble(f"cannot be written to: {error.strerror}", "make room there or make it writable")
        return ""

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """A block in which one process at a time is with this key, so that the others find what it has put there. They wait for as
        long as that process lives, but PATIENCE seconds at most; where files cannot be locked, nobody waits."""
        with ExitStack() as stack:
            with suppress(OSError, Unusable):
                folder = stack.enter_context(self._open(make=True))
                if folder is not None:
                    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                    file = os.open(LOCKS, flags, 0o600, dir_fd=folder)
                    stack.callback(os.close, file)
                    _lock(file, int(key[:15], 16))
            yield

    def tell(self, trouble: str) -> None:
        """Warns of trouble with the folder, once."""
        if trouble:
            _warn_once(self.folder, trouble)

    @contextmanager
    def _open(self, make: bool = False) -> Iterator[int | None]:
        """A descriptor of the folder, None without a cache. make: the folder, if there is none. Raises OSError, and Unusable if
        others could have written there."""
        if self.folder is None:
            yield None
            return
        if make:
            with suppress(FileExistsError):     # what else there may be of this name is told below
                os.makedirs(self.folder, mode=0o700)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            state = os.fstat(folder)
            if state.st_uid != os.geteuid():
                raise Unusable(self._trouble("is not used: it belongs to another user", "make it your own"))
            if state.st_mode & OTHERS_WRITE:
                raise Unusable(self._trouble("is not used: other users can write to it", f"run `chmod 700 {self.folder}`"))
            yield folder
        finally:
            os.close(folder)

    def _trouble(self, trouble: str, remedy: str) -> str:
        return (f"the cache folder {self.folder} {trouble}; graphs are compiled again in every process. "
                f"Remedy: {remedy}, set CAPTURE_CACHE_DIR to another folder, or CAPTURE_CACHE=0.")


class Unusable(Exception):
    """A folder that is not the user's alone."""


def default_cache() -> DiskCache:
    """The cache that the flags CACHE, CACHE_DIR and CACHE_SIZE describe."""
    limit = config.CACHE_SIZE.value << 20
    if not config.CACHE:
        return DiskCache(None, limit)
    if config.CACHE_DIR.value:
        return DiskCache(Path(os.path.abspath(os.path.expanduser(config.CACHE_DIR.value))), limit)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # a relative one is to be ignored, says the XDG specification
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        _warn_once(None, "there is no home folder to keep compiled graphs in; graphs are compiled again in every process. "
                         "Remedy: set CAPTURE_CACHE_DIR to a folder, or CAPTURE_CACHE=0.")
        return DiskCache(None, limit)
    return DiskCache(Path(base, "capture"), limit)


def key_of(*parts: str | bytes) -> str:
    """The key of results that depend on `parts` (with the compiler's identity, if code is compiled) and on this installation:
    versions, our sources, the processor. 64 hexadecimal digits."""
    digest = hashlib.sha256(_installation())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%c%d:" % (b"s" if isinstance(part, str) else b"b", len(data)))
        digest.update(data)
    return digest.hexdigest()


class LibraryFile(os.PathLike[str]):
    """A path under which a shared library can be loaded (dlopen) as long as this object lives; then the file is deleted. No other
    user can change the file; where the system allows it, it is in memory only, and nobody can. Each path is new, since the loader
    takes a known path for the library that it knows. Raises OSError if there is no room for the file."""

    def __init__(self, data: bytes) -> None:
        file = _memory_file()
        if file is None:
            folder = tempfile.mkdtemp(prefix="capture-")  # private, with a name that was never used
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._path = os.path.join(folder, "kernels.so")
            Path(self._path).write_bytes(data)
        else:
            weakref.finalize(self, os.close, file)
            self._path = _spelling(file)
            _write_all(file, data)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)

    def __fspath__(self) -> str:
        return self._path


def open_library(data: bytes) -> LibraryFile:
    """The bytes of a shared library as a file that can be loaded: keep the object until it is."""
    return LibraryFile(data)


def _memory_file() -> int | None:
    """A new file that lies in no folder; None where the system has no such files, forbids them, or gives them no path."""
    if not hasattr(os, "memfd_create") or not os.path.isdir(PROC):
        return None
    try:
        return os.memfd_create("capture", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None


def _spelling(file: int) -> str:
    """A name of an open file that no library of this process was loaded by: the number of the opening, in `/.` and `/`.

    File numbers come back once closed, and the loader compares names before it looks at the file.
    """
    number = "".join("/." if bit == "1" else "/" for bit in f"{next(_opened):b}")
    return f"{PROC}{number}/{file}"


@functools.cache
def _installation() -> bytes:
    """A hash of all that is so for the whole process, and decides what it compiles to."""
    return hashlib.sha256(repr((VERSION, *(fact.value for fact in installation.facts().values()))).encode()).digest()


def _entry(key: str) -> str:
    if not KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key; make keys with key_of")
    return f"{key}.capture"


def _packed(key: str, data: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, len(data), _checksum(key, data)) + data


def _unpacked(key: str, entry: bytes) -> bytes | None:
    """The payload, None when the entry is not exactly what `_packed` made for this key."""
    if len(entry) < HEADER.size:
        return None
    magic, version, length, checksum = HEADER.unpack_from(entry)
    data = entry[HEADER.size:]
    whole = (magic, version, length) == (MAGIC, VERSION, len(data)) and checksum == _checksum(key, data)
    return data if whole else None


def _checksum(key: str, data: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(data)
    return digest.digest()


def _read(folder: int, name: str, key: str) -> bytes | None:
    file = _open_entry(folder, name)
    if file is None:
        return None
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & OTHERS_WRITE:
            return None
        with open(file, "rb", closefd=False) as stream:
            data = _unpacked(key, stream.read())
        if data is None:
            os.unlink(name, dir_fd=folder)
        else:
            _touch(file)
        return data
    finally:
        os.close(file)


def _lock(file: int, place: int) -> None:
    """Locks one byte of a file that need not have so many, until it is closed. Gives up after a while."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):      # another process has it
            time.sleep(POLL)


def _open_entry(folder: int, name: str) -> int | None:
    """A descriptor of an entry, None for a symbolic link: we make none. Never waits, should a pipe lie there."""
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def _touch(file: int) -> None:
    """Marks an entry as used now."""
    now = time.time_ns()
    with suppress(OSError):  # on a read-only disk nothing is evicted, and no order is needed
        os.utime(file, ns=(now, now))


def write_file(path: str, data: bytes) -> None:
    """Writes a file, whole or not at all, in the place of what was there; who may read it the umask says. Raises OSError."""
    folder = os.open(os.path.dirname(path) or os.curdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _write(folder, os.path.basename(path) or os.curdir, data, 0o666)
    finally:
        os.close(folder)


def _write(folder: int, name: str, data: bytes, mode: int) -> None:
    unfinished = f".{secrets.token_hex(16)}.capture"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=folder)
    try:
        try:
            _write_all(file, data)
            _touch(file)
        finally:
            os.close(file)
        os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=folder)
        raise


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest):]


def _evict(folder: int, limit: int) -> None:
    """Deletes unfinished entries whose writer died, and what was used longest ago until at most `limit` bytes are left."""
    entries = []
    with os.scandir(folder) as items:
        for item in items:
            if OURS.fullmatch(item.name):
                with suppress(FileNotFoundError):  # another process was faster
                    state = item.stat(follow_symlinks=False)
                    entries.append((state.st_mtime_ns, state.st_size, item.name))
    too_old = time.time_ns() - ABANDONED * 10**9
    size = sum(length for _, length, _ in entries)
    for used, length, name in sorted(entries):
        if used < too_old if name.startswith(".") else size > limit:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            size -= length


def _warn_once(subject: Path | None, text: str) -> None:
    if subject not in _warned:
        _warned.add(subject)
        warn(text)
