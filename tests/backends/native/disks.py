"""Disks on which something fails."""
from __future__ import annotations

import os

import pytest


def always(*args: object) -> bool:
    return True


def creates(path: object, flags: int, *rest: object) -> bool:
    """Whether a call of os.open makes a file."""
    return bool(flags & os.O_CREAT)


def fails(monkeypatch: pytest.MonkeyPatch, name: str, error: int, when=always) -> None:
    """Makes a function of `os` fail, for the arguments that `when` accepts."""
    real = getattr(os, name)

    def failing(*args, **kwargs):
        if when(*args):
            raise OSError(error, os.strerror(error))
        return real(*args, **kwargs)
    monkeypatch.setattr(os, name, failing)
