"""What scoring finds out: verdicts with their reasons, as JSON."""
from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verdict(StrEnum):
    """What became of one case under one engine. The last three say nothing about the engine, and are not counted."""

    ONE_GRAPH = "one graph"             # right, and every call is one graph, which held the operators and ran on the hits
    BREAKS = "breaks"                   # right, but not in one graph
    WRONG = "wrong"                     # something differs from eager
    ERROR = "error"                     # raised an exception that eager does not raise
    CRASH = "crash"                     # the process died
    TIMEOUT = "timeout"
    NOT_RUNNABLE = "not runnable"       # eager raises, or uses what is not installed
    NOT_DETERMINISTIC = "not deterministic"     # two runs of eager differ
    EMPTY = "empty"                     # eager calls no operator


COUNTED = (Verdict.ONE_GRAPH, Verdict.BREAKS, Verdict.WRONG, Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT)
CORRECT = (Verdict.ONE_GRAPH, Verdict.BREAKS)


@dataclass(frozen=True)
class Reason:
    """Why a case is not one graph. `id`: an identifier of few; `detail`: of this case; `place`: the line of the program."""

    id: str
    detail: str
    place: str = ""


@dataclass
class Result:
    """One case in one mode under one engine. `operators`: how many ATen operators eager calls in one call, `missing`: which of
    these the graph does not. `compiled`, `uncompiled`: see `Engine.operations` and `Engine.uncompiled`. `engine` is "" where the
    verdict is about the case. `seconds`: of all calls, with compiling."""

    project: str
    case: str
    mode: str
    engine: str
    verdict: Verdict
    reasons: list[Reason] = field(default_factory=list)
    operators: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    compiled: list[tuple[int, int]] = field(default_factory=list)
    uncompiled: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.case, self.mode, self.engine

    @classmethod
    def of(cls, data: dict[str, Any]) -> Result:
        """From what JSON holds."""
        return cls(**{**data, "verdict": Verdict(data["verdict"]), "reasons": [Reason(**reason) for reason in data["reasons"]]})


@dataclass
class Results:
    """All results, in a JSON file of `settings`, `finished` projects and `results`; a file that is there is continued."""

    file: Path | None
    settings: dict[str, Any]
    finished: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    @classmethod
    def open(cls, file: Path | None, settings: dict[str, Any]) -> Results:
        """Raises ValueError when the file holds results of other settings."""
        if file is None or not file.exists():
            return cls(file, settings)
        data = json.loads(file.read_text())
        if data["settings"] != settings:
            raise ValueError(f"{file} holds results of other settings: {data['settings']}; name another file, or remove it")
        return cls(file, settings, data["finished"], [Result.of(result) for result in data["results"]])

    def of(self, project: str) -> list[Result]:
        return [result for result in self.results if result.project == project]

    def save(self) -> None:
        """Writes the file anew, so that a run which is interrupted leaves a whole one."""
        if self.file is not None:
            data = {"settings": self.settings, "finished": self.finished, "results": [asdict(result) for result in self.results]}
            temporary = self.file.with_name(f"{self.file.name}.{os.getpid()}")
            temporary.write_text(json.dumps(data, indent=1))
            temporary.replace(self.file)


def counts(results: Iterable[Result]) -> dict[tuple[str, str], dict[Verdict, int]]:
    """How often each verdict was given, by engine and mode. What is about the case counts for every engine."""
    results = list(results)
    engines = list(dict.fromkeys(result.engine for result in results if result.engine))
    table: dict[tuple[str, str], dict[Verdict, int]] = {}
    for result in results:
        for engine in [result.engine] if result.engine else engines:
            row = table.setdefault((engine, result.mode), dict.fromkeys(Verdict, 0))
            row[result.verdict] += 1
    return table
