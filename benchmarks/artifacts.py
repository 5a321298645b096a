"""Time to read the artifacts of a model's training step from their bytes, divided by that of unpickling the same.

    python -m benchmarks.artifacts [--pairs N] [--json FILE] [model …]

One row for each graph: how many steps its plans have, and how long reading takes.
"""
from __future__ import annotations

import functools
import pickle
import statistics
import tempfile

import torch

import capture
from benchmarks.common import arguments, paired, report, seconds
from benchmarks.workloads import build, training_step
from capture import config
from capture.backends.native import artifact, cache
from capture.backends.native.serialization import FormatError

MODELS = "gpt2", "resnet", "mixer"


def artifacts_of(name: str) -> list[bytes]:
    """Those that the training step of a model is compiled to."""
    before = set(cache.used())
    torch.manual_seed(0)
    module, inputs = build(name, "small")
    module.train()
    compiled = capture.compile(module)
    for _ in range(2):
        training_step(compiled, inputs)
    capture.wait()
    return [data for key in cache.used() if key not in before and (data := cache.get(key)) is not None and is_artifact(data)]


def is_artifact(data: bytes) -> bool:
    """Not what is kept beside them: which sizes vary, and where artifacts for these lie."""
    try:
        artifact.read(data)
    except FormatError:
        return False
    return True


def main() -> None:
    options = arguments(__doc__, MODELS)
    ratios, failures = [], {}
    with tempfile.TemporaryDirectory() as folder, config.CACHE_DIR.set(folder):
        for name in options.names:
            try:
                for data in artifacts_of(name):
                    found = artifact.read(data)
                    pickled = pickle.dumps(found, protocol=5)
                    ours, theirs = (functools.partial(seconds, functools.partial(*call))
                                    for call in ((artifact.read, data), (pickle.loads, pickled)))
                    steps = sum(len(compiled.plan.steps) for compiled in (found.forward, *found.backward))
                    time = statistics.median(ours() for _ in range(options.pairs)) * 1e3
                    ratios.append(paired(f"{name}, {steps} steps, {time:.1f} ms", ours, theirs, options.pairs, 3.0))
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
    report("Reading artifacts: bytes / pickles", ratios, failures, options.json)


if __name__ == "__main__":
    main()
