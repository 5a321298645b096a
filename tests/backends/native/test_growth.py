"""The calls of Python that compiling takes grow with a graph, and no faster."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import capture
from capture.backends.native import compiler, compiles, transport
from capture.backends.native.job import Job
from capture.backends.native.targets import PROCESSOR
from tests.growth import calls_of, training_step

FEW, TIMES = 16, 4
MOST = 1.1          # of TIMES as many calls: places in memory are looked for among all that are taken


def job_of(step: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Job:
    """What is sent to the compiling process."""
    found: list[bytes] = []

    def keep(self: compiles.Compile, job: Job, *args: Any) -> None:
        found.append(transport.encode(job))
        raise transport.NotPortable("it is compiled here")
    monkeypatch.setattr(compiles.Compile, "__init__", keep)
    capture.compile(step, backend="native", fullgraph=True, options={"background": False})()
    return transport.decode(found[0])


def test_calls_grow_as_graphs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a whole training step, without the compiler of C++."""
    without_compiler = dataclasses.replace(PROCESSOR, build=lambda job: lambda sources: b"")
    monkeypatch.setattr(compiler, "target_of", lambda job: without_compiler)

    def compiled(layers: int) -> int:
        job = job_of(training_step(layers), monkeypatch)
        return calls_of(lambda: compiler.compile_whole(job))
    compiled(2)         # imports, and what is looked up once
    few, many = compiled(FEW), compiled(FEW * TIMES)
    assert many <= few * TIMES * MOST, (few, many)
