"""What tests of kernels for GPUs share."""
from __future__ import annotations

import pytest

from capture.backends.native.render import CUDA_ON_CPU
from tests.backends.native.render import kernels


@pytest.fixture
def on_emulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are made for the emulated GPU."""
    monkeypatch.setattr(kernels, "TARGET", CUDA_ON_CPU)
