"""What is kept comes back as it was or not at all; nothing that is wrong with the disk reaches the program."""
from __future__ import annotations

import errno
import os
import pickle
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from capture import config
from capture.backends.native import disk_cache, installation, processor
from capture.backends.native.artifact import Frozen
from capture.backends.native.disk_cache import DiskCache, default_cache, key_of
from capture.backends.native.serialization import encode
from tests import compiling
from tests.backends.native.disks import always, creates, fails

A, B, C, D = (key_of(name) for name in "abcd")
LIMIT = 1 << 20


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", LIMIT)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch):
    """No test has warned before; and a warning that a test does not expect is an error."""
    monkeypatch.setattr(disk_cache, "_warned", set())
    with warnings.catch_warnings(record=True) as unexpected:
        warnings.simplefilter("always")
        yield
    assert [str(warning.message) for warning in unexpected] == []


def entry(cache: DiskCache, key: str) -> Path:
    return cache.folder / f"{key}.capture"


def use_at(cache: DiskCache, key: str, seconds: int) -> None:
    """As if the entry had last been used at a time."""
    os.utime(entry(cache, key), (seconds, seconds))


def keys(cache: DiskCache) -> set[str]:
    return {path.name.removesuffix(".capture") for path in cache.folder.iterdir()}


# --- what works

@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 1000])
def test_what_is_put_comes_back(cache: DiskCache, data: bytes) -> None:
    assert cache.get(A) is None
    cache.put(A, data)
    assert cache.get(A) == data
    assert cache.get(B) is None


def test_the_last_one_put_counts(cache: DiskCache) -> None:
    cache.put(A, b"one")
    cache.put(A, b"two")
    assert cache.get(A) == b"two" and keys(cache) == {A}


def test_another_process_sees_it(cache: DiskCache) -> None:
    cache.put(A, b"from here")
    program = ("import pickle, sys; cache, key = pickle.loads(bytes.fromhex(sys.argv[1])); "
               "sys.stdout.buffer.write(cache.get(key))")
    out = compiling.programs().run(["-c", program, pickle.dumps((cache, A)).hex()], timeout=100)
    assert (out.returncode, out.stdout) == (0, "from here"), out.stderr


def test_folder_and_files_are_private(cache: DiskCache) -> None:
    before = os.umask(0)
    try:
        cache.put(A, b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(cache, A).stat().st_mode) == 0o600


def test_a_deleted_folder_is_made_again(cache: DiskCache) -> None:
    cache.put(A, b"x")
    entry(cache, A).unlink()
    cache.folder.rmdir()
    assert cache.get(A) is None
    cache.put(A, b"y")
    assert cache.get(A) == b"y"


def test_a_link_to_a_private_folder_is_followed(cache: DiskCache, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    cache.folder.symlink_to(tmp_path / "real")
    cache.put(A, b"x")
    assert cache.get(A) == b"x" and len(list((tmp_path / "real").iterdir())) == 1


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "a" * 63, "A" * 64, A + "\n"])
def test_what_is_no_key_is_refused(cache: DiskCache, key: str) -> None:
    with pytest.raises(ValueError, match="make keys with key_of"):
        cache.get(key)
    with pytest.raises(ValueError, match="make keys with key_of"):
        cache.put(key, b"")


# --- keys

def test_keys_tell_parts_apart() -> None:
    parts = [("ab",), ("a", "b"), ("a", "", "b"), (b"ab",), ("b", "a"), (), ("",), ("a", b"b")]
    assert len({key_of(*p) for p in parts}) == len(parts)
    assert key_of("a", b"b") == key_of("a", b"b")


def test_keys_are_the_same_in_every_process() -> None:
    program = "from capture.backends.native.disk_cache import key_of; print(key_of('a'), end='')"
    other = compiling.programs().run(["-c", program], timeout=100).stdout
    installation.facts.cache_clear()    # the sources may have been edited since the tests began
    disk_cache._installation.cache_clear()
    assert other == key_of("a")


@pytest.mark.parametrize(("owner", "name", "value"), [
    (torch, "__version__", "other"), (torch.version, "git_version", "other"), (disk_cache, "VERSION", 1),
    (installation, "sys", SimpleNamespace(implementation=SimpleNamespace(cache_tag="other"), version=sys.version)),
    (processor, "features", lambda: "another")])
def test_keys_change_with_the_versions_and_the_processor(owner: object, name: str, value: object, monkeypatch) -> None:
    monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(installation, "facts", installation.facts.__wrapped__)
    assert disk_cache._installation.__wrapped__() != disk_cache._installation()


def test_keys_change_with_our_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "BACKENDS", tmp_path)
    (tmp_path / "native").mkdir()
    (tmp_path / "__pycache__").mkdir()
    source = tmp_path / "native" / "kernel.h"
    seen = []
    for change in (lambda: None, lambda: source.write_text("a"), lambda: source.write_text("b"),
                   lambda: source.rename(tmp_path / "kernel.h"), lambda: (tmp_path / "__pycache__" / "x.pyc").write_text("x")):
        change()
        seen.append(installation.facts.__wrapped__()["capture"].value)
    assert len(set(seen)) == 4 and seen[3] == seen[4]


# --- flags

def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    with config.CACHE.set(1), config.CACHE_DIR.set(""), config.CACHE_SIZE.set(3):
        assert default_cache() == DiskCache(Path("/home/user/.cache/capture"), 3 << 20)
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
        assert default_cache().folder == Path("/xdg/capture")
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        assert default_cache().folder == Path("/home/user/.cache/capture")
        with config.CACHE_DIR.set("here"):
            assert default_cache().folder == tmp_path / "here"
        with config.CACHE_DIR.set("~/there"):
            assert default_cache().folder == Path("/home/user/there")
        with config.CACHE.set(0):
            assert default_cache().folder is None


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with config.CACHE.set(1), config.CACHE_DIR.set(""):
        with pytest.warns(UserWarning, match=r"no home folder .*Remedy: set CAPTURE_CACHE_DIR"):
            cache = default_cache()
        assert default_cache() == cache  # and no second warning
    cache.put(A, b"x")
    assert cache.get(A) is None


# --- entries that are not what they should be

def damaged(data: bytes) -> dict[str, bytes]:
    """An entry, damaged in every way that tells a part of the header or the payload apart."""
    head = disk_cache.HEADER.size
    return {
        "empty": b"", "header only": data[:head], "part of the header": data[:10], "truncated": data[:-1],
        "longer": data + b"x", "flipped bit": data[:-1] + bytes([data[-1] ^ 1]), "magic": b"X" + data[1:],
        "version": data[:8] + b"\xff" + data[9:], "length": data[:12] + b"\xff" + data[13:], "zeros": bytes(len(data)),
        "checksum": data[:head - 1] + bytes([data[head - 1] ^ 1]) + data[head:],
    }


@pytest.mark.parametrize("damage", damaged(bytes(100)))
def test_a_damaged_entry_is_deleted_and_missed(cache: DiskCache, damage: str) -> None:
    cache.put(A, b"payload")
    path = entry(cache, A)
    path.write_bytes(damaged(path.read_bytes())[damage])
    assert cache.get(A) is None
    assert not path.exists()
    cache.put(A, b"again")
    assert cache.get(A) == b"again"


@pytest.mark.parametrize("data", [b"payload", encode(Frozen(b"graph", (1, 2), (3,)))])
def test_every_byte_is_covered(cache: DiskCache, data: bytes) -> None:
    cache.put(A, data)
    good = entry(cache, A).read_bytes()
    for place in range(len(good)):
        entry(cache, A).write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1:])
        assert cache.get(A) is None, place


def test_an_entry_under_another_name_is_missed(cache: DiskCache) -> None:
    cache.put(A, b"payload")
    entry(cache, A).rename(entry(cache, B))
    assert cache.get(B) is None and not entry(cache, B).exists()


def test_a_link_is_ignored(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(A, b"payload")
    entry(cache, A).rename(tmp_path / "elsewhere")
    entry(cache, A).symlink_to(tmp_path / "elsewhere")
    assert cache.get(A) is None and (tmp_path / "elsewhere").exists()
    cache.put(A, b"mine")
    assert cache.get(A) == b"mine" and not entry(cache, A).is_symlink()
    assert (tmp_path / "elsewhere").read_bytes().endswith(b"payload")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_ignored(cache: DiskCache, make) -> None:
    cache.put(B, b"x")
    make(entry(cache, A))
    assert cache.get(A) is None and entry(cache, A).exists()


def test_an_entry_that_others_can_write_to_is_ignored(cache: DiskCache) -> None:
    cache.put(A, b"payload")
    entry(cache, A).chmod(0o666)
    assert cache.get(A) is None and entry(cache, A).exists()


def test_an_entry_of_another_user_is_ignored(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(A, b"payload")
    change_owner(monkeypatch, stat.S_ISREG)
    assert cache.get(A) is None and entry(cache, A).exists()


def change_owner(monkeypatch: pytest.MonkeyPatch, which) -> None:
    """As if the files of a kind belonged to another user."""
    real = os.fstat

    def fstat(file: int) -> os.stat_result:
        state = list(real(file))
        if which(state[stat.ST_MODE]):
            state[stat.ST_UID] += 1
        return os.stat_result(state)
    monkeypatch.setattr(os, "fstat", fstat)


# --- folders that cannot be used

def assert_off(cache: DiskCache, trouble: str, remedy: str = "") -> None:
    """Nothing is kept or found, and of that the user hears once, with what to do."""
    text = f"^capture: the cache folder .* {trouble}; .*Remedy: {remedy}.*, set CAPTURE_CACHE_DIR to .*, or CAPTURE_CACHE=0.$"
    with pytest.warns(UserWarning, match=text) as heard:
        cache.put(A, b"x")
        assert cache.get(A) is None
        cache.put(B, b"y")
    assert len(heard) == 1


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_others_can_write_to(cache: DiskCache, tmp_path: Path, mode: int, link: bool) -> None:
    cache.put(A, b"planted")
    if link:
        cache.folder.rename(tmp_path / "real")
        cache.folder.symlink_to(tmp_path / "real")
    cache.folder.chmod(mode)
    assert_off(cache, "is not used: other users can write to it", f"run `chmod 700 {cache.folder}`")


def test_a_folder_of_another_user(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(A, b"planted")
    change_owner(monkeypatch, stat.S_ISDIR)
    assert_off(cache, "is not used: it belongs to another user")


@pytest.mark.parametrize("place", ["cache", "cache/inner", "cache/inner/most"])
def test_a_file_in_the_place_of_a_folder(place: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert_off(DiskCache(tmp_path / place, LIMIT), "cannot be written to: Not a directory")
    assert (tmp_path / "cache").read_text() == "a file"


def test_a_link_to_nothing(cache: DiskCache, tmp_path: Path) -> None:
    cache.folder.symlink_to(tmp_path / "missing")
    assert_off(cache, "cannot be written to: No such file or directory")


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_made(cache: DiskCache, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "mkdir", error)
    assert_off(cache, f"cannot be written to: {os.strerror(error)}")


@pytest.mark.parametrize(("name", "error", "when"), [
    ("write", errno.ENOSPC, always), ("write", errno.EDQUOT, always), ("replace", errno.ENOSPC, always),
    ("open", errno.EROFS, creates), ("open", errno.EACCES, creates), ("open", errno.ENOSPC, creates),
])
def test_a_full_or_read_only_disk(cache: DiskCache, name: str, error: int, when, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(A, b"kept")
    fails(monkeypatch, name, error, when)
    with pytest.warns(UserWarning, match=f"cannot be written to: {os.strerror(error)}") as heard:
        cache.put(B, b"lost")
        cache.put(C, b"lost")
    assert len(heard) == 1
    assert cache.get(A) == b"kept" and cache.get(B) is None
    assert keys(cache) == {A}  # nothing unfinished stays


def test_a_write_may_take_less_than_it_was_given(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    cache.put(A, b"in many pieces" * 10)
    assert cache.get(A) == b"in many pieces" * 10


def test_a_disk_without_times_can_be_read(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(A, b"x")
    fails(monkeypatch, "utime", errno.EROFS)
    assert cache.get(A) == b"x"


def test_a_disk_that_cannot_be_read(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(A, b"x")
    fails(monkeypatch, "open", errno.EIO)
    assert_off(cache, "cannot be written to: Input/output error")


# --- size

def put_in_order(cache: DiskCache, *names: str) -> None:
    for second, key in enumerate(names):
        cache.put(key, bytes(100))
        use_at(cache, key, 1000 + second)


SIZE = disk_cache.HEADER.size + 100


def test_what_was_put_first_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 3 * SIZE)
    put_in_order(cache, A, B, C)
    assert keys(cache) == {A, B, C}
    cache.put(D, bytes(100))
    assert keys(cache) == {B, C, D}


def test_what_was_read_stays(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 3 * SIZE)
    put_in_order(cache, A, B, C)
    assert cache.get(A) is not None
    cache.put(D, bytes(100))
    assert keys(cache) == {A, C, D}


def test_as_many_go_as_are_needed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 3 * SIZE)
    put_in_order(cache, A, B, C)
    cache.put(D, bytes(100 + SIZE))
    assert keys(cache) == {C, D}


def test_what_is_larger_than_the_limit_is_not_kept_at_the_cost_of_the_others(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 3 * SIZE)
    put_in_order(cache, A)
    cache.put(D, bytes(3 * SIZE))
    assert keys(cache) == {A}


def test_other_files_are_never_touched(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 2 * SIZE)
    cache.folder.mkdir(mode=0o700)
    others = ["thesis.tex", "notes.capture", ".hidden", A, f"{A}.so"]
    for name in others:
        (cache.folder / name).write_bytes(bytes(1000))
        os.utime(cache.folder / name, (0, 0))
    put_in_order(cache, A, B, C)
    assert {path.name for path in cache.folder.iterdir()} == {*others, f"{B}.capture", f"{C}.capture"}


def test_what_dead_writers_left_goes_and_what_is_being_written_stays(cache: DiskCache) -> None:
    cache.put(A, b"x")
    dead, busy = (cache.folder / f".{digit * 32}.capture" for digit in "01")
    for path in (dead, busy):
        path.write_bytes(b"half")
    os.utime(dead, (time.time() - disk_cache.ABANDONED - 60,) * 2)
    cache.put(B, b"x")
    assert not dead.exists() and busy.exists()


def test_an_entry_that_vanishes_during_eviction_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache(tmp_path / "cache", 2 * SIZE)
    put_in_order(cache, A, B)
    real = os.unlink

    def slow(name, **kwargs):
        real(name, **kwargs)
        real(name, **kwargs)  # the second time as if another process had been faster
    monkeypatch.setattr(os, "unlink", slow)
    cache.put(C, bytes(100))
    assert keys(cache) == {B, C}


# --- many at a time

WRITER = """
import pickle, sys, warnings
warnings.simplefilter("error")
cache, keys, data = pickle.loads(bytes.fromhex(sys.argv[1]))
for turn in range(40):
    for key in keys:
        found = cache.get(key)
        assert found is None or found in [bytes([n]) * 5000 for n in range(4)], found[:10]
        cache.put(key, data)
"""


def test_processes_that_write_the_same_entries_and_evict(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 3 * 5100)
    with open(tmp_path / "written", "w+") as written:
        processes = [compiling.programs().start(
            ["-c", WRITER, pickle.dumps((cache, (A, B, C, D), bytes([n]) * 5000)).hex()], written, written) for n in range(4)]
        ended = [process.wait(100) for process in processes]
    assert ended == [0] * 4, (tmp_path / "written").read_text()
    assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= cache.limit
    assert all(path.name.endswith(".capture") and not path.name.startswith(".") for path in cache.folder.iterdir())


def test_threads_that_write_the_same_entries(cache: DiskCache) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            for _ in range(50):
                cache.put(A, bytes([number]) * 1000)
                wrong.extend(data for data in [cache.get(A)] if data is None or len(set(data)) != 1 or len(data) != 1000)
        except BaseException as error:
            wrong.append(error)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- one at a time

BUILDER = """
import pickle, sys, time
cache, key = pickle.loads(bytes.fromhex(sys.argv[1]))
with cache.alone(key):
    if cache.get(key) is None:
        print("built", flush=True)
        time.sleep(0.3)
        cache.put(key, b"x")
"""


def build(cache: DiskCache, key: str, program: str = BUILDER) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program, pickle.dumps((cache, key)).hex()], stdout=subprocess.PIPE, text=True)


def test_processes_that_want_the_same_have_it_made_by_one(cache: DiskCache) -> None:
    processes = [build(cache, A) for _ in range(4)]
    assert [process.communicate()[0] for process in processes].count("built\n") == 1
    assert cache.get(A) == b"x"


def test_nobody_waits_for_another_key_or_for_the_dead(cache: DiskCache) -> None:
    holder = build(cache, A, BUILDER.replace("0.3", "1000"))
    assert holder.stdout.readline() == "built\n"
    with cache.alone(B):
        pass
    holder.kill()
    holder.wait()
    with cache.alone(A):
        assert cache.get(A) is None
    holder.stdout.close()


def test_a_process_that_hangs_is_not_waited_for_forever(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "PATIENCE", 0.1)
    holder = build(cache, A, BUILDER.replace("0.3", "1000"))
    assert holder.stdout.readline() == "built\n"
    with cache.alone(A):
        holder.kill()
        holder.wait()
    holder.stdout.close()


@pytest.mark.parametrize("spoil", [lambda folder: folder.write_text("a file"),
                                   lambda folder: folder.mkdir() or folder.chmod(0o777)])
def test_without_a_folder_to_lock_in_nobody_waits(cache: DiskCache, spoil) -> None:
    spoil(cache.folder)
    with pytest.raises(KeyError), cache.alone(A):
        raise KeyError      # of the block: not swallowed
    with DiskCache(None, 0).alone(A):
        pass


def test_what_cannot_be_used_is_dropped(cache: DiskCache) -> None:
    cache.put(A, b"x")
    cache.drop(A)
    cache.drop(B)
    assert cache.get(A) is None
