"""What the harness keeps of a run, for a later one to go on."""
from __future__ import annotations

from tests.cpython.score import Outcomes, run_module


def test_outcomes_are_kept(tmp_path) -> None:
    file = tmp_path / "outcomes"
    run = Outcomes("test_one", "native", 10, file)
    run.note("a", "failed", "its text")
    run.note("b", "timed out")
    run.note("", "finished")
    assert Outcomes.kept("test_one", "native", 10, file) == run
    with_more_time = Outcomes.kept("test_one", "native", 20, file)
    assert (with_more_time.outcome, with_more_time.finished) == ({"a": "failed"}, False)
    assert not Outcomes.kept("test_one", "interpreted", 10, file).outcome
    assert not Outcomes.kept("test_two", "native", 10, file).outcome
    with_more_time.note("b", "passed")
    kept = Outcomes.kept("test_one", "native", 20, file)
    assert (kept.outcome, kept.text["a"], kept.finished) == ({"a": "failed", "b": "passed"}, "its text", True)


def test_a_run_goes_on_where_it_was_stopped(tmp_path) -> None:
    file = tmp_path / "outcomes"
    whole = Outcomes("test_yield_from", "native", 60, file)
    run_module(whole)
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == len(whole.outcome) + 1 > 20
    file.write_text("".join(lines[:10]))
    rest = Outcomes.kept("test_yield_from", "native", 60, file)
    assert not rest.finished and len(rest.outcome) == 10
    run_module(rest)
    assert rest == whole and file.read_text().splitlines(keepends=True) == lines
