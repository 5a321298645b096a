"""Rows of benchmarks: kept in a file, and put into tables of ratios."""
from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.tables import Figures, Row


def row(model: str = "bert", mode: str = "inference", threads: int = 1, **engines: Figures) -> Row:
    return Row(model, mode, threads, "small", "a machine", 3.0, dict(engines))


def test_rows_come_back(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    rows = [row(eager=Figures(first=1.0, steady=[1.0, 2.0], note="words")), row("vit", capture=Figures(memory=3.0))]
    for one in rows:
        tables.append(file, one)
    assert list(tables.read(file).values()) == rows


def test_the_last_of_equal_rows_counts(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    for one in (row(), row(threads=2), row(eager=Figures(first=1.0))):
        tables.append(file, one)
    assert list(tables.read(file).values()) == [row(threads=2), row(eager=Figures(first=1.0))]


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert tables.read(tmp_path / "rows") == {}


def test_steady_is_the_median_of_the_ratios_of_rounds() -> None:
    one = row(eager=Figures(steady=[1.0, 2.0, 10.0]), capture=Figures(steady=[2.0, 1.0, 10.0]))
    assert tables.steady("capture", "eager")(one) == 1.0


@pytest.mark.parametrize("engines", [{}, {"eager": Figures(first=1.0)}, {"eager": Figures(), "capture": Figures(first=1.0)}])
def test_what_was_not_measured_has_no_ratio(engines: dict[str, Figures]) -> None:
    assert tables.ratio("first", "capture", "eager")(row(**engines)) is None


def test_sections() -> None:
    """One for each mode and number of threads, in the order of the rows, with the columns that were measured."""
    def measured(ours: float) -> dict[str, Figures]:
        return {"eager": Figures(first=1.0, steady=[0.25]), "capture": Figures(first=ours, note="a note")}
    rows = [row(**measured(2.0)), row("vit", **measured(8.0)), row(threads=2), row("gpt", **measured(200.0))]
    first, second = tables.sections(rows)
    assert first == ("inference, 1 thread, small models", ["model", "eager ms", "first call / eager", "notes"], [
        ["bert", "250.0", "2.00", "capture: a note"], ["vit", "250.0", "8.00", "capture: a note"],
        ["gpt", "250.0", "200", "capture: a note"], ["geometric mean", "", "14.74", ""], ["worst", "", "200", ""]])
    assert second == ("inference, 2 threads, small models", ["model", "eager ms", "notes"],
                      [["bert", "", ""], ["geometric mean", "", ""], ["worst", "", ""]])


def test_markdown() -> None:
    text = tables.markdown([row(eager=Figures(first=1.0), capture=Figures(first=2.0))])
    assert text.splitlines() == ["**Inference, 1 thread, small models**", "", "| model | eager ms | first call / eager | notes |",
                                 "| --- | --- | --- | --- |", "| bert |  | 2.00 |  |", "| geometric mean |  | 2.00 |  |",
                                 "| worst |  | 2.00 |  |"]
