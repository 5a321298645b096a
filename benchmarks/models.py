"""Whole models under three engines: eager, torch.compile (inductor) and capture (native), each in a process of its own.

    python -m benchmarks.models [--scale small|tiny] [--threads 1 2] [--pairs N] [--modes inference training]
                                [--freezing] [--json FILE] [model …]

Empty caches at the start of each model. Per engine: the first call, the time until calls run compiled code, the steady state (both
processes measured in turn, median of the pairs' ratios), and in a second process with warm caches the time until calls run compiled
code, and the peak memory of a steady call beyond what the process holds between calls. `--freezing`: inference with each engine's
own option for frozen weights.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.workloads import TINY_ONLY, WORKLOADS

ENGINES = ("eager", "inductor", "capture")
LEAST_SECONDS = 0.2         # of one measurement in the steady state
# malloc gives each tensor a mapping of its own, so that the process's resident memory is that of what is alive.
OWN_MAPPINGS = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_MAX_": "1000000"}
FOLDER = Path(__file__).resolve().parent.parent


@dataclass
class Result:
    """One model in one mode. Times in seconds by engine; `ratios`: ours / the other engine's in the steady state."""

    model: str
    mode: str
    threads: int
    first: dict[str, float] = field(default_factory=dict)
    compiled: dict[str, float] = field(default_factory=dict)
    warm: dict[str, float] = field(default_factory=dict)
    steady: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Engine:
    """A process that runs one model under one engine, and measures when told to."""

    def __init__(self, engine: str, model: str, mode: str, options: argparse.Namespace, threads: int, cache: Path,
                 variables: dict[str, str] | None = None) -> None:
        environment = os.environ | (variables or {}) | {
            "OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "CAPTURE_CACHE_DIR": str(cache / "capture"), "PYTHONPATH": str(FOLDER), "CAPTURE_STRICT": "0"}
        (cache / "capture").mkdir(mode=0o700, exist_ok=True)
        self.process = subprocess.Popen([sys.executable, "-m", "benchmarks.models", "--child", engine, model, mode, options.scale,
                                         str(int(options.freezing))],
                                        cwd=FOLDER, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE if options.quiet else None, text=True)
        self.started = self.ask("start")

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"the process of an engine ended with status {self.process.wait()}")

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def child(engine: str, model: str, mode: str, scale: str, freezing: bool) -> None:
    """The process of one engine: reads commands, answers in JSON."""
    import torch

    from benchmarks.memory import peak
    from benchmarks.steady import inference, training_step
    from benchmarks.workloads import build

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    module, inputs = build(model, scale)
    module.train(mode == "training")
    if freezing:
        module.requires_grad_(False)
    step = training_step if mode == "training" else inference
    step(module, inputs)
    module.zero_grad()
    report: dict[str, Any] = {}
    input()
    start = time.perf_counter()
    program: Callable = module
    if engine == "inductor":
        import torch._inductor.config as config
        config.freezing = freezing
        program = torch.compile(module)
        step(program, inputs)
        report["first"] = report["compiled"] = time.perf_counter() - start
    elif engine == "capture":
        import capture
        program = capture.compile(module, backend="native", options={"freezing": True} if freezing else None)
        step(program, inputs)
        report["first"] = time.perf_counter() - start
        capture.wait()
        step(program, inputs)
        report["compiled"] = time.perf_counter() - start
        stats = capture.stats(program)
        report["note"] = "; ".join(filter(None, [
            f"{stats.native_calls} native calls" if stats.native_calls else "",
            f"{stats.graphs} graphs" if stats.graphs != 1 else "",
            *map(str, stats.compile_errors)]))
    else:
        step(program, inputs)
        report["first"] = report["compiled"] = time.perf_counter() - start
    print(json.dumps(report), flush=True)
    for _ in range(30):
        step(program, inputs)
        module.zero_grad()
    calls = max(3, int(LEAST_SECONDS / _timed(lambda: step(program, inputs), 5)))
    while True:
        try:
            command = input()
        except EOFError:
            return
        if command == "memory":
            print(json.dumps({"bytes": peak(lambda: step(program, inputs))}), flush=True)
        else:
            print(json.dumps({"seconds": _timed(lambda: step(program, inputs), calls)}), flush=True)


def _timed(function: Callable[[], object], calls: int) -> float:
    from benchmarks.common import seconds
    return seconds(function, calls)


def measure(model: str, mode: str, threads: int, options: argparse.Namespace) -> Result:
    """All figures of one model, mode and number of threads."""
    result = Result(model, mode, threads)
    cache = Path(tempfile.mkdtemp(prefix="capture-benchmark-"))
    engines: dict[str, Engine] = {}
    try:
        for name in options.engines:
            engines[name] = Engine(name, model, mode, options, threads, cache)
            result.first[name], result.compiled[name] = engines[name].started["first"], engines[name].started["compiled"]
            if engines[name].started.get("note"):
                result.notes.append(engines[name].started["note"])
        for process in engines.values():
            process.ask("measure")
        rounds = [{name: process.ask("measure")["seconds"] for name, process in engines.items()} for _ in range(options.pairs)]
        for name in engines:
            result.steady[name] = statistics.median(r[name] for r in rounds)
            if name != "capture" and "capture" in engines:
                result.ratios[name] = statistics.median(r["capture"] / r[name] for r in rounds)
        for process in engines.values():
            process.close()
        if not options.no_warm:
            for name in options.engines:
                engines[name] = Engine(name, model, mode, options, threads, cache, OWN_MAPPINGS)
                if name != "eager":
                    result.warm[name] = engines[name].started["compiled"]
                result.memory[name] = engines[name].ask("memory")["bytes"]
                engines[name].close()
    finally:
        for process in engines.values():
            process.process.kill()
            process.process.wait()
        shutil.rmtree(cache, ignore_errors=True)
    return result


def show(results: list[Result], console: Console) -> None:
    """One row per measurement, then the geometric means."""
    table = Table("model", "mode", "threads", "steady / eager", "steady / inductor", "first / eager", "compiled / inductor",
                  "warm / inductor", "memory / eager", "notes", title="capture, divided by the others (smaller is better)")
    for r in results:
        table.add_row(r.model, r.mode, str(r.threads), _text(r.ratios.get("eager")), _text(r.ratios.get("inductor")),
                      _text(_ratio(r.first, "eager")), _text(_ratio(r.compiled, "inductor")), _text(_ratio(r.warm, "inductor")),
                      _text(_ratio(r.memory, "eager")), "; ".join(r.notes)[:80])
    console.print(table)
    for title, figures in (("steady / eager", [r.ratios.get("eager") for r in results]),
                           ("steady / inductor", [r.ratios.get("inductor") for r in results]),
                           ("compiled / inductor", [_ratio(r.compiled, "inductor") for r in results]),
                           ("warm / inductor", [_ratio(r.warm, "inductor") for r in results])):
        known = [f for f in figures if f]
        if known:
            console.print(f"{title}: geometric mean {statistics.geometric_mean(known):.3f}, worst {max(known):.3f}")


def _ratio(figures: dict[str, float], other: str) -> float | None:
    return figures["capture"] / figures[other] if "capture" in figures and other in figures else None


def _text(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model")
    parser.add_argument("--scale", choices=("small", "tiny"), default="small")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--modes", nargs="+", default=["inference", "training"], choices=("inference", "training"))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--freezing", action="store_true")
    parser.add_argument("--no-warm", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="drop what the engines write to stderr")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    known = [*WORKLOADS, *(TINY_ONLY if options.scale == "tiny" else ())]
    unknown = sorted(set(options.models) - set(known))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
    console, results = Console(width=180), []
    for model in options.models or known:
        for mode in options.modes:
            for threads in options.threads:
                try:
                    results.append(measure(model, mode, threads, options))
                    show(results[-1:], console)
                except (RuntimeError, BrokenPipeError) as error:
                    console.print(f"[red]{model}, {mode}, {threads} threads: {error}[/]")
                if options.json:
                    options.json.write_text(json.dumps([asdict(r) for r in results], indent=2))
    show(results, console)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:6], freezing=sys.argv[6] == "1")
    else:
        main()
