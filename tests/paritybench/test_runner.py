"""Processes with limits, the checkout with its stand-ins, and the command."""
from __future__ import annotations

import json
import os
import signal
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from paritybench_subset import checkout
from paritybench_subset.__main__ import main
from paritybench_subset.cases import Case, Project, inputs, subset
from paritybench_subset.engines import Engine
from paritybench_subset.judge import Judge
from paritybench_subset.results import Reason, Result, Results, Verdict
from paritybench_subset.workers import Assignment, Finished, Limits, score

HELPERS = """
import torch
def patch_functional(): pass
class _mock_config(dict): __getattr__ = dict.__getitem__
torch.manual_seed = lambda *seed: torch.random.manual_seed(1337)
"""
PROJECT = """
import sys
_module = sys.modules[__name__]
models = _module
from _paritybench_helpers import _mock_config
import torch, no_such_package, collections
import torch.nn as nn
import no_such_package.models as models
from no_such_package.losses import Loss, register
from torch._six import container_abcs
no_such_package.set_backend("agg")

@register(name="it")
def helper(x):
    return x

class Fine(nn.Module):
    def __init__(self, features, kind: "no_such_package.Kind" = None):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.kind = kind
    def forward(self, x, scale=1.0):
        return self.linear(x) * scale

class UsesPackage(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = models.resnet18(pretrained=True)

class UsesHelper(nn.Module):
    def forward(self, x):
        return helper(x) + 1

class Derived(Loss, nn.Module):
    def forward(self, x):
        return x + 1

class Checks(nn.Module):
    def forward(self, x):
        return x * 2 if isinstance(x, container_abcs.Sequence) else x * 3

TESTCASES = [
    (Fine, lambda: ([], {'features': 3}), lambda: ([torch.rand([2, 3])], {'scale': 2.0}), True),
    (UsesPackage, lambda: ([], {}), lambda: ([torch.rand([2, 3])], {}), False),
    (UsesHelper, lambda: ([], {}), lambda: ([torch.rand([2, 3])], {}), False),
    (Derived, lambda: ([], {}), lambda: ([torch.rand([2, 3])], {}), False),
    (Checks, lambda: ([], {}), lambda: ([torch.rand([2, 3])], {}), False),
]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with a project of five cases, and one that cannot be imported."""
    generated = tmp_path / "checkout" / "generated"
    generated.mkdir(parents=True)
    (generated / "_paritybench_helpers.py").write_text(textwrap.dedent(HELPERS))
    (generated / "test_someone_project.py").write_text(textwrap.dedent(PROJECT))
    (generated / "test_broken.py").write_text("raise ValueError('no')")
    return generated.parent


def test_what_is_not_installed_is_found_out_case_by_case(folder: Path) -> None:
    seed = torch.manual_seed
    project = checkout.projects(folder, ["someone_project"])[0]
    assert torch.manual_seed is seed
    results = [next(iter(Judge().judge(project.name, case, "eval", {"eager": Engine}))) for case in project.load()]
    assert [(result.case, result.verdict) for result in results] == [
        ("000 Fine", Verdict.BREAKS), ("001 UsesPackage", Verdict.NOT_RUNNABLE), ("002 UsesHelper", Verdict.NOT_RUNNABLE),
        ("003 Derived", Verdict.NOT_RUNNABLE), ("004 Checks", Verdict.NOT_RUNNABLE)]
    assert [result.reasons[0].detail for result in results[1:]] == [
        "no_such_package.models", "no_such_package.losses.register()()", "no_such_package.losses.Loss", "torch._six.container_abcs"]


def test_a_folder_that_is_no_checkout_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--checkout", str(tmp_path)]) == 2
    assert "is no checkout" in " ".join(capsys.readouterr().out.split())


class Relu(nn.Module):
    def forward(self, x):
        return torch.relu(x)


class Behaves(Engine):
    """An engine that does something instead of compiling."""

    def __init__(self, act) -> None:
        super().__init__()
        self.act = act

    def compile(self, module):
        self.act()
        return module

    def obstacles(self, calls):
        return []


def run(engine, names=("one", "two"), done=(), load=None) -> list[Result | Finished]:
    cases = [Case(name, Relu, lambda: inputs(torch.ones(2))) for name in names]
    project = Project("project", load or (lambda: cases))
    assignment = Assignment(Judge(), ("eval",), {"engine": engine})
    return list(score([(project, set(done))], assignment, Limits(seconds=2.0, gigabytes=64.0), jobs=2))


def test_a_process_that_dies_costs_one_verdict() -> None:
    def die_once():
        if not Path("../died").exists():
            Path("../died").touch()
            os.kill(os.getpid(), signal.SIGSEGV)
    results = run(lambda: Behaves(die_once))
    assert [result.verdict for result in results[:-1]] == [Verdict.CRASH, Verdict.ONE_GRAPH]
    assert results[0].reasons == [Reason("died", "SIGSEGV")]
    assert results[-1] == Finished("project")


def test_a_phase_that_takes_too_long_costs_one_verdict() -> None:
    def hang_once():
        if not Path("../hung").exists():
            Path("../hung").touch()
            time.sleep(60)
    assert [result.verdict for result in run(lambda: Behaves(hang_once))[:-1]] == [Verdict.TIMEOUT, Verdict.ONE_GRAPH]


def test_a_project_that_hangs_or_fails_when_it_is_loaded_is_not_runnable() -> None:
    def fail():
        raise ImportError("no")
    for load in (lambda: time.sleep(60), fail):
        first, last = run(Engine, load=load)
        assert (first.verdict, first.case) == (Verdict.NOT_RUNNABLE, "")
        assert last == Finished("project")


def test_known_results_are_not_computed_again() -> None:
    assert [result.case for result in run(Engine, done=[("one", "eval", "engine")])[:-1]] == ["two"]
    assert run(Engine, done=[("one", "eval", ""), ("two", "eval", "")]) == [Finished("project")]


def test_a_file_of_results_is_continued(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results = Results.open(file, {"calls": 3})
    reason = Reason("id", "detail", "place")
    results.results.append(Result("p", "c", "eval", "capture", Verdict.BREAKS, [reason], 3, {"aten.add": 1}))
    results.finished.append("p")
    results.save()
    assert Results.open(file, {"calls": 3}) == results
    with pytest.raises(ValueError, match="other settings"):
        Results.open(file, {"calls": 4})


def test_the_command_scores_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    command = ["--programs", "squeeze_excitation", "early_exit", "--modes", "eval", "--jobs", "1", "--json", str(file)]
    assert main(command) == 0
    data = json.loads(file.read_text())
    verdicts = {result["case"]: result["verdict"] for result in data["results"]}
    assert verdicts == {"squeeze_excitation": "one graph", "early_exit": "breaks"}
    assert sorted(data["finished"]) == ["attention", "search"]
    assert "100.0" in capsys.readouterr().out
    before = file.stat().st_mtime_ns
    assert main(command) == 0                   # nothing is left
    assert json.loads(file.read_text())["results"] == data["results"]
    assert file.stat().st_mtime_ns >= before


def test_unknown_programs_are_told() -> None:
    with pytest.raises(ValueError, match="no program"):
        subset(["nothing"])
