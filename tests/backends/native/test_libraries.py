"""Libraries of kernels are loaded from memory, or from a private folder, each under a name of its own."""
from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path

import pytest

from capture.backends.native import disk_cache, toolchain
from capture.backends.native.disk_cache import open_library
from tests.backends.native.disks import fails


def answering(number: int) -> bytes:
    return toolchain.find_compiler().compile([f'extern "C" int answer() {{ return {number}; }}'])


@pytest.mark.parametrize("in_memory", [True, False])
def test_each_library_is_the_one_that_was_asked_for(in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:
        monkeypatch.setattr(os, "memfd_create", lambda *args: (_ for _ in ()).throw(PermissionError(errno.EPERM, "forbidden")))
    libraries = []
    for number in range(4):
        file = open_library(answering(number))
        path = os.fspath(file)
        assert path.startswith("/proc/self/fd") is in_memory
        libraries.append(ctypes.CDLL(path))
        del file
        assert not os.path.exists(path)
    assert [library.answer() for library in libraries] == [0, 1, 2, 3]  # the loader knows names: each must be new


def test_nobody_can_change_a_library_before_it_is_loaded() -> None:
    file = open_library(b"code")
    with pytest.raises(PermissionError), open(file, "r+b") as stream:
        stream.write(b"evil")
        stream.flush()
    with pytest.raises(PermissionError):
        os.truncate(file, 0)
    assert Path(file).read_bytes() == b"code"


def test_without_files_in_memory_the_folder_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "PROC", "/no/such/folder")
    file = open_library(b"code")
    folder = os.path.dirname(file)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert Path(file).read_bytes() == b"code"
    del file
    assert not os.path.exists(folder)


def test_loading_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        open_library(b"code")
    fails(monkeypatch, "write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        open_library(b"code")
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_spellings_are_all_different_and_stay_short() -> None:
    names = {disk_cache._spelling(3) for _ in range(2000)}
    assert len(names) == 2000 and max(map(len, names)) < 60
