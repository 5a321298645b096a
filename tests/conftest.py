"""Strict mode for every test, and the same start for each: seeds, modes, and an empty cache."""
from __future__ import annotations

import os

os.environ["CAPTURE_STRICT"] = "1"  # read when capture is imported; subprocesses inherit it

import pytest
import torch

import capture
from tests.helpers import seed


@pytest.fixture(autouse=True)
def fresh():
    """Seeds before the test; afterwards no entry, and none of torch's modes, outlives it."""
    seed()
    yield
    capture.reset()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
