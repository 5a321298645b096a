"""What tests of the native backend share."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from capture import _C
from capture.backends.native import sidecar
from tests import compiling
from tests.backends.native.programs import compile_library


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling processes that start within the test are forks, which are ready at once."""
    monkeypatch.setattr(sidecar, "command", compiling.forking())


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of `programs`."""
    return compile_library(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def no_workspaces_from_before() -> Iterator[None]:
    _C.release_workspaces()
    yield
    _C.release_workspaces()
