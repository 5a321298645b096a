"""Scores engines on code as people write it.

    python -m paritybench_subset [--engine NAME …] [--programs NAME …]                  our own programs
    python -m paritybench_subset --checkout DIR [--projects FILE] [--sample N]          those of ParityBench

Each case runs eagerly twice and then under each engine, in eval mode and in train mode (with a backward pass), three calls with
new inputs each; results, arguments, gradients and the state of the module are compared. docs/paritybench.md says what the verdicts
mean.
With `--json` results are kept in FILE, and the same command goes on where an earlier one was stopped.
"""
from __future__ import annotations

import argparse
import functools
import os
import platform
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from capture.config import TRIAL_CALLS
from paritybench_subset import cases, checkout, show
from paritybench_subset.engines import ENGINES
from paritybench_subset.judge import MODES, Judge
from paritybench_subset.results import CORRECT, COUNTED, Results, Verdict
from paritybench_subset.workers import Assignment, Finished, Limits, score


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m paritybench_subset", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", default=["capture"], choices=ENGINES, dest="engines")
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="themes or programs of our own")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="a checkout of jansel/pytorch-jit-paritybench")
    parser.add_argument("--projects", type=Path, metavar="FILE", help="the projects to score, one name in each line")
    parser.add_argument("--sample", type=int, metavar="N", help="only N projects, drawn at random with --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--calls", type=int, default=3, help="calls of each case; more than one")
    parser.add_argument("--backend", default="eager", help="what runs the graphs; by default torch's operators do; native: kernels")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of floating-point values, relative and absolute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results are kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--limit", type=float, default=Limits.seconds, metavar="SECONDS", help="of one engine on one case")
    parser.add_argument("--memory", type=float, default=Limits.gigabytes, metavar="GB", help="address space of one process")
    options = parser.parse_args(argv)
    if options.calls < 2:
        parser.error("--calls must be at least 2: the first call may be another than the later ones")
    if options.projects and not options.checkout:
        parser.error("--projects names projects of a checkout: --checkout says where that is")
    return options


def projects_of(options: argparse.Namespace) -> list[cases.Project]:
    """What is to be scored. Raises ValueError or FileNotFoundError, with a text for the user."""
    if options.checkout is None:
        found = cases.subset(options.programs)
    else:
        found = checkout.projects(options.checkout, options.projects.read_text().split() if options.projects else [])
    if options.sample is not None:
        random.Random(options.seed).shuffle(found)              # a larger sample with the same seed contains a smaller one
        found = found[:options.sample]
    return found


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What results must agree in to be kept in one file."""
    return {"engines": options.engines, "modes": options.modes, "calls": options.calls, "backend": options.backend,
            "tolerance": options.tolerance, "limit": options.limit, "torch": torch.__version__, "python": platform.python_version()}


def main(argv: list[str] | None = None) -> int:
    """Scores, and returns 1 when an engine was wrong somewhere, raised, or died."""
    options = arguments(argv)
    console = Console(width=None if sys.stdout.isatty() else 180)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        projects = projects_of(options)
        results = Results.open(options.json, settings_of(options))
    except (ValueError, FileNotFoundError) as error:
        console.print(f"[red]{error}[/]")
        return 2
    engines = {name: functools.partial(ENGINES[name], options.backend) for name in options.engines}
    assignment = Assignment(Judge(options.calls, options.tolerance), tuple(options.modes), engines)
    left = [(project, {result.key for result in results.of(project.name)})
            for project in projects if project.name not in results.finished]
    with TRIAL_CALLS.set(0):            # what is compiled is scored, be it faster or not
        run(console, results, left, assignment, Limits(options.limit, options.memory), options.jobs, len(projects))
    names = {project.name for project in projects}
    shown = [result for result in results.results if result.project in names]
    console.print(show.reasons(shown))
    console.print(show.summary(shown))
    for table in (show.compiled(shown), show.uncompiled(shown)):
        if table is not None:
            console.print(table)
    return int(any(result.verdict in COUNTED and result.verdict not in CORRECT for result in shown))


def run(console: Console, results: Results, left: list[tuple[cases.Project, set[tuple[str, str, str]]]], assignment: Assignment,
        limits: Limits, jobs: int, number: int) -> None:
    """Scores what is left, showing how far it is; results are saved with each project."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    in_one_graph = sum(result.verdict is Verdict.ONE_GRAPH for result in results.results)
    with Progress(*columns, console=console, auto_refresh=False) as progress:      # no thread: processes are forked from this one
        task = progress.add_task("projects", total=number, completed=number - len(left))
        try:
            for event in score(left, assignment, limits, jobs):
                if isinstance(event, Finished):
                    results.finished.append(event.project)
                    results.save()
                    progress.advance(task)
                else:
                    results.results.append(event)
                    in_one_graph += event.verdict is Verdict.ONE_GRAPH
                    description = f"{event.project[:40]} · {len(results.results)} results, {in_one_graph} in one graph"
                    progress.update(task, description=description)
                progress.refresh()
        finally:
            results.save()


if __name__ == "__main__":
    sys.exit(main())
