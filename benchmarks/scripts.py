"""Training scripts that do not mention capture (`benchmarks/training`): under `python -m capture run`, and compiled by hand at the
best place, beside plain Python.

    python -m benchmarks.scripts [--pairs N] [--json FILE] [script …]

Each run is a process of its own, with the disk cache of the pair before. Ratios are of the time per step from the 50th step on:
of all of them, what is compiled meanwhile included; and of the last quarter.
"""
from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Ratio, arguments, paired, report

FOLDER = Path(__file__).parent / "training"
FROM = 50
STEPS = {       # of each script: some half a minute, since kernels take seconds to come while the script uses all cores
    "nanogpt": 600, "huggingface_trainer": 800, "accelerate_gpt2": 800, "lightning_cnn": 3000, "ppo": 600, "dqn": 2500,
    "lora": 1000, "unet": 1000, "image_classifier": 800, "graph_network": 2500, "seq2seq": 2000, "ddp": 800}
PYTHON, TORCHRUN = [sys.executable], [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
RUN = ["-m", "capture", "run"]
GOAL, GOAL_BESIDE_HAND = 1.0, 1.05


def command(script: str, run: bool) -> list[str]:
    return [*(TORCHRUN if script == "ddp" else PYTHON), *(RUN if run else ()), str(FOLDER / f"{script}.py")]


def times(script: str, how: str, cache: str) -> list[float]:
    """The seconds of each step but the first. how: "plain", "run" or "hand"."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "ends.json"
        environment = os.environ | {"BENCHMARK_STEPS": str(STEPS[script]), "BENCHMARK_RESULT": str(result),
                                    "CAPTURE_CACHE_DIR": cache, "OMP_NUM_THREADS": "1" if script == "ddp" else "2"}
        if how == "hand":
            environment["BENCHMARK_BY_HAND"] = "1"
        done = subprocess.run(command(script, how == "run"), env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{script} ({how}) ended with {done.returncode}: {done.stderr[-2000:]}")
        ends = json.loads(result.read_text())
    return [end - start for start, end in itertools.pairwise(ends)]


def mean(part: Sequence[float]) -> float:
    return sum(part) / len(part)


def measured(script: str, pairs: int) -> list[Ratio]:
    runs: dict[str, list[list[float]]] = {"plain": [], "run": [], "hand": []}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(pairs):
            for how, found in runs.items():
                found.append(times(script, how, cache))
    ratios = []
    for name, first in (("from the 50th step", FROM), ("last quarter", -STEPS[script] // 4)):
        for ours, theirs, goal in (("run", "plain", GOAL), ("hand", "plain", GOAL), ("run", "hand", GOAL_BESIDE_HAND)):
            left, right = ([mean(steps[first:]) for steps in runs[how]] for how in (ours, theirs))
            ratios.append(paired(f"{script}, {name}: {ours} / {theirs}", functools.partial(next, iter(left)),
                                 functools.partial(next, iter(right)), pairs, goal))
    return ratios


def main() -> None:
    parsed = arguments(__doc__, STEPS)
    ratios: list[Ratio] = []
    failures: dict[str, str] = {}
    for script in parsed.names:
        try:
            ratios += measured(script, parsed.pairs)
        except RuntimeError as error:
            failures[script] = str(error)
    report("Training scripts", ratios, failures, parsed.json)


if __name__ == "__main__":
    main()
