"""The benchmark of whole models, on the quickest of them: every figure is there, and what goes wrong is noted."""
from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import engines, models
from benchmarks.engines import EngineError, EngineProcess, Setting
from benchmarks.tables import Row
from benchmarks.workloads import CONVOLUTIONAL, WORKLOADS


def a_row(model: str = "dlrm", mode: str = "inference") -> Row:
    return Row(model, mode, 1, "tiny", "a machine")


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose\nsecond line")


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(60)
        return x


def test_every_figure_of_a_row() -> None:
    # Where torch is built with CUDA, no process that is forked from one which has gone backward, as other tests do, can do so.
    mode = "inference" if torch.backends.cuda.is_built() else "training"
    row = models.measure(a_row(mode=mode), ["eager", "capture"], rounds=2, limit=100.0)
    for figures in row.engines.values():
        assert figures.note == ""
        assert None not in (figures.first, figures.compiled, figures.warm, figures.memory) and len(figures.steady) == 2


def test_out_of_time() -> None:
    row = models.measure(a_row(), ["eager", "capture"], rounds=1, limit=0.0)
    assert [figures.note for figures in row.engines.values()] == ["cold start: out of time"] * 2
    assert row.engines["capture"].compiled is None


@pytest.mark.parametrize(("module", "message"), [(Broken(), "start: ValueError: on purpose"), (Slow(), "start: out of time")])
def test_an_engine_that_fails(module: nn.Module, message: str, tmp_path: Path) -> None:
    process = EngineProcess("eager", Setting(module, {"x": torch.ones(1)}, "inference", 1, tmp_path))
    try:
        with pytest.raises(EngineError, match=f"^{message}$"):
            process.ask("start", time.monotonic() + (0.1 if isinstance(module, Slow) else 60.0))
    finally:
        process.close()


def test_frozen_parameters_are_for_inference() -> None:
    every = list(engines.ENGINES)
    assert models.engines_of(a_row("unet"), every) == every
    assert models.engines_of(a_row("bert"), every) == [name for name in every if name != "inductor_frozen"]
    assert models.engines_of(a_row("unet", "training"), every) == ["eager", "capture", "inductor"]
    assert set(CONVOLUTIONAL) < set(WORKLOADS)
