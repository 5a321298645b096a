"""A warm cache in a file: it comes back whole or not at all, and only where graphs compile to the same."""
from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture import config
from capture.backends.native import cache, installation, serialization, sidecar, warm_cache
from capture.backends.native.disk_cache import key_of
from capture.backends.native.installation import Fact
from capture.backends.native.warm_cache import CacheFileError, load, save
from tests.backends.native.disks import always, creates, fails

A, B, C = (key_of(name) for name in "abc")


@pytest.fixture(autouse=True)
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has used nothing yet, with an empty folder for its cache."""
    forget(monkeypatch)
    with config.CACHE.set(1), config.CACHE_DIR.set(str(tmp_path / "cache")):
        yield


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_loaded", {})
    monkeypatch.setattr(cache, "_used", {})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with two entries, saved by a process whose cache is gone."""
    path = str(tmp_path / "warm")
    cache.put(A, b"one")
    cache.put(B, b"two")
    save(path)
    forget(monkeypatch)
    with config.CACHE_DIR.set(str(tmp_path / "other")):
        yield path


def refused(path: str, message: str) -> None:
    """The file is not used, and the error is one sentence and a remedy."""
    with pytest.raises(CacheFileError, match=message) as error:
        load(path)
    assert re.fullmatch(r"[^\n]+\. Remedy: [^\n]+\.", str(error.value)), error.value
    assert not cache.is_warm() and cache.get(A) is None


# --- what works

def test_what_was_saved_is_there_after_loading(file: str) -> None:
    assert cache.get(A) is None and not cache.is_warm()
    load(file)
    assert (cache.get(A), cache.get(B), cache.get(C)) == (b"one", b"two", None) and cache.is_warm()


def test_a_loaded_cache_needs_neither_its_file_nor_a_folder(file: str) -> None:
    load(file)
    os.unlink(file)
    with config.CACHE.set(0):
        assert cache.get(A) == b"one"


def test_only_what_was_used_is_saved(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(file)
    cache.put(C, b"three")
    assert cache.get(A) == b"one"
    save(file)
    forget(monkeypatch)
    with config.CACHE.set(0):
        load(file)
        assert (cache.get(A), cache.get(B), cache.get(C)) == (b"one", None, b"three")


def test_an_entry_that_cannot_be_used_is_dropped(file: str) -> None:
    load(file)
    assert cache.get(A) == b"one"
    cache.drop(A)
    assert cache.get(A) is None and A not in cache.used()


def test_others_may_read_the_file_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        cache.put(A, b"one")
        save(str(tmp_path / "warm"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "warm").stat().st_mode) == 0o644


def test_no_compiling_process_is_started_in_advance_where_a_cache_was_loaded(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(sidecar, "_pool", type("Pool", (), {"start": staticmethod(started.append)}))
    sidecar.prepare()
    assert len(started) == 1
    load(file)
    sidecar.prepare()
    assert len(started) == 1


# --- files that are none

def test_a_file_that_is_missing(tmp_path: Path) -> None:
    refused(str(tmp_path / "missing"), r"^the warm cache \S+/missing cannot be read: No such file or directory\. Remedy: correct")


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    refused(str(tmp_path), "cannot be read: Is a directory")


def test_a_file_that_may_not_be_read(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(Path, "read_bytes", denied)
    refused(file, "cannot be read: Permission denied")


@pytest.mark.parametrize("data", [b"", b"CAPWARM", b"\x80\x05K\x01.", b"\x7fELF" + bytes(100), b"PK" + bytes(1000)])
def test_a_file_of_another_kind(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    refused(str(tmp_path / "file"), "is no warm cache; it is not used")


def test_every_damage_is_found(file: str, tmp_path: Path) -> None:
    good = Path(file).read_bytes()
    for place in range(len(good)):
        for data in (good[:place], good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1:]):
            Path(file).write_bytes(data)
            refused(file, r"is no warm cache|is damaged; it is not used\. Remedy: copy it again, or save it again")
    Path(file).write_bytes(good + b"x")
    refused(file, "is damaged")


def test_the_contents_of_another_version(file: str) -> None:
    data = serialization.encode(Fact("a", "b"))
    Path(file).write_bytes(warm_cache.MAGIC + warm_cache.hashlib.sha256(data).digest() + data)
    refused(file, r"is of another version of capture \(this is str 'Fact', not Saved\)")


# --- where it may be used

@pytest.mark.parametrize("name", ["capture", "torch", "Python", "processor", "CXX", "CAPTURE_DEBUG"])
def test_what_differs_is_told(file: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "settings" if name in installation.settings() else "facts"
    known = getattr(installation, source)()
    monkeypatch.setattr(installation, source, lambda: {**known, name: Fact("other", "9.9")})
    remedy = f"set {name} as it was then" if source == "settings" else f"save it again with capture.save where {name} is as here"
    refused(file, f"is not used, since it was saved with {name} {re.escape(known[name].shown)}, and this is {name} 9.9.*"
                  rf"\. Remedy: {remedy}")


def test_features_of_processors_are_told(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = installation.facts()
    here = set(known["processor"].value.split())
    lost = max(here, key=len)
    other = " ".join(here - {lost} | {"better"})
    monkeypatch.setattr(installation, "facts", lambda: {**known, "processor": Fact(other, "Other")})
    refused(file, rf"and this is processor Other \(without {re.escape(lost)}, with better\)\. Remedy: ")


def test_the_environment_decides_what_is_a_setting(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "clang++ -v")
        refused(file, r"saved with CXX '.*', and this is CXX 'clang\+\+ -v'\. Remedy: set CXX as it was then")
    with config.DEBUG.set(1):           # at which the compiler keeps no log either
        load(file)


@pytest.mark.parametrize(("here", "message"), [
    (set(), "saved for GPUs of architecture sm_90, and here are none"), ({"sm_80", "sm_75"}, "sm_90, and here are sm_75, sm_80"),
    ({"sm_80", "sm_90"}, "")])
def test_gpus_of_other_architectures(here: set[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "warm")
    cache.put(A, b"one")
    cache.put(B, b"two")
    assert cache.get(A, "sm_90") == b"one"
    save(path)
    forget(monkeypatch)
    monkeypatch.setattr(warm_cache, "gpu_architectures", lambda: here)
    with config.CACHE.set(0):
        if message:
            refused(path, message)
        else:
            load(path)
            assert cache.get(A) == b"one"


def test_the_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_cache._C, "cuda_devices", lambda: (12000, [("H200", 9, 0), ("T4", 7, 5)]))
    assert warm_cache.gpu_architectures() == {"sm_90", "sm_75"}

    def missing() -> None:
        raise RuntimeError("there is no driver")
    monkeypatch.setattr(warm_cache._C, "cuda_devices", missing)
    assert warm_cache.gpu_architectures() == set()


# --- what cannot be saved

def not_saved(path: Path, message: str) -> None:
    with pytest.raises(CacheFileError, match=message) as error:
        save(str(path))
    assert re.fullmatch(r"[^\n]+\. Remedy: [^\n]+\.", str(error.value)), error.value


@pytest.mark.parametrize(("name", "error", "when"), [
    ("write", errno.ENOSPC, always), ("write", errno.EDQUOT, always), ("replace", errno.ENOSPC, always),
    ("open", errno.EROFS, creates), ("open", errno.EACCES, creates)])
def test_a_disk_that_is_full_or_may_not_be_written_to(file: str, name: str, error: int, when, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    good, before = Path(file).read_bytes(), set(tmp_path.iterdir())
    load(file)
    assert cache.get(A) == b"one"
    with monkeypatch.context() as patch:
        fails(patch, name, error, when)
        not_saved(Path(file), f"cannot be written: {re.escape(os.strerror(error))}. Remedy: choose a folder that has room")
    assert Path(file).read_bytes() == good and set(tmp_path.iterdir()) == before     # nothing unfinished stays


@pytest.mark.parametrize(("place", "trouble"), [
    ("missing/warm", "No such file"), ("", "Is a directory"), ("plain/warm", "Not a directory")])
def test_places_where_no_file_can_be(tmp_path: Path, place: str, trouble: str) -> None:
    (tmp_path / "plain").write_text("")
    cache.put(A, b"one")
    not_saved(tmp_path / place, f"cannot be written: {trouble}")


def test_a_process_that_has_compiled_nothing(tmp_path: Path) -> None:
    not_saved(tmp_path / "warm", r"^nothing was saved to \S+: this process has used no compiled graphs\. Remedy: call compiled")
    assert not (tmp_path / "warm").exists()


def test_entries_that_the_disk_cache_has_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(A, b"one")
    cache.note(B)
    not_saved(tmp_path / "warm", "^1 of 2 entries were not saved to .*warm, since the disk cache does not have them. Remedy: unset")
    forget(monkeypatch)
    with config.CACHE.set(0):
        load(str(tmp_path / "warm"))
        assert cache.get(A) == b"one"           # the others were saved
