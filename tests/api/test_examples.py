"""The example of five breaks: its report names them, and following the remedies leaves none."""
from __future__ import annotations

import html
import json
from pathlib import Path

from capture import errors
from tests import compiling

ROOT = Path(__file__).parents[2]
REASONS = ["autograd-inside", "data-dependent", "data-dependent-shape", "opaque-call", "outside-iterator", "tensor-op-raised"]


def run(name: str, report: Path) -> tuple[str, list[dict]]:
    """The output of an example, and the frames of its report with their continuations."""
    done = compiling.programs().run(["-m", "capture", "run", "--report", str(report), str(ROOT / "examples" / name)], timeout=200)
    assert done.returncode == 0, done.stderr
    frames = json.loads(report.read_text())["frames"]
    return done.stdout, [member for frame in frames for member in (frame, *frame["continuations"])]


def breaks(frames: list[dict]) -> set[tuple[str, int]]:
    return {(broken["reason"], broken["stack"][-1]["line"]) for frame in frames for broken in frame["breaks"]}


def test_five_breaks_and_their_remedies(tmp_path: Path) -> None:
    output, frames = run("five_breaks.py", tmp_path / "broken.json")
    found = sorted(breaks(frames))
    assert [reason for reason, _ in found] == REASONS
    source = (ROOT / "examples/five_breaks.py").read_text().splitlines()
    marked = [n for n, line in enumerate(source, 1) if any(f"# {k}: " in line for k in range(1, 6))]
    caught = next(n for n, line in enumerate(source, 1) if "cholesky" in line)          # the handler stands below
    apart = next(n for n, line in enumerate(source, 1) if "backward()" in line)         # what comes after the others
    assert {line for _, line in found} == {*marked[:-1], caught, apart}
    mended, frames = run("five_breaks_mended.py", tmp_path / "mended.json")
    assert mended == output and breaks(frames) == set()
    (step,) = frames
    assert step["name"].startswith("five_breaks_mended.py:") and (step["captures"], step["native_calls"]) == (1, 0)


def test_the_report_of_the_example_is_there() -> None:
    page = (ROOT / "examples/five_breaks.html").read_text()
    assert all(reason in page and html.escape(errors.REASONS[reason].remedy) in page for reason in REASONS)
    assert str(ROOT) not in page
