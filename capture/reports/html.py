"""The report as a page: one file, with no reference to another."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jinja2
import markupsafe

from capture.reports import layout, text
from capture.reports.source import annotated, short

if TYPE_CHECKING:
    from capture.reports.tree import Frame, Report


@dataclass(frozen=True, slots=True)
class Event:
    """A mark on the timeline: when it began and how long it took, as percentages of the whole."""

    kind: str
    left: float
    width: float
    title: str


def page(report: Report, title: str) -> str:
    """The whole page, as one file without external references."""
    frames = list(report.walk())
    return template().render(title=title, report=report, frames=frames, sources=annotated(report), timeline=timeline(frames),
                             end=text.duration(end_of(frames)), picture=layout.picture, duration=text.duration,
                             plural=text.plural, operations=text.operations, uncounted=text.uncounted,
                             ran_natively=text.ran_natively, short=short, status=status,
                             sizes=lambda entry: text.plain(text.sizes(entry)),
                             recaptures=[(f, r, c) for f in frames for r in f.recaptures for c in r.changes])


def cell(report: Report) -> str:
    """The page for a notebook: an element whose styles and scripts do not affect the page around it."""
    return f'<iframe srcdoc="{markupsafe.escape(page(report, "capture"))}" style="width: 100%; height: 640px; border: 0"></iframe>'


@functools.cache
def template() -> jinja2.Template:
    """The page's template, which lies beside this file."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader("capture.reports", "."), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("page.html.j2")


def status(frame: Frame) -> str:
    """One word for a frame: "native" when it has no graph, "broken" when it has breaks, else "captured"."""
    if not any(entry.outcome != "native" for entry in frame.entries):
        return "native"
    return "broken" if frame.breaks or frame.bailouts else "captured"


def end_of(frames: list[Frame]) -> float:
    """When the last event ended, in seconds."""
    ends = [entry.at + entry.seconds.capture for frame in frames for entry in frame.entries]
    return max([*ends, *(r.at for frame in frames for r in frame.recaptures)], default=0.0)


def timeline(frames: list[Frame]) -> list[tuple[Frame, list[Event]]]:
    """The captures and misses of each frame."""
    scale = 100 / (end_of(frames) or 1.0)
    rows = []
    for frame in frames:
        events = [Event(entry.outcome, entry.at * scale, entry.seconds.capture * scale,
                        f"{entry.outcome} after {text.duration(entry.at)}, in {text.duration(entry.seconds.capture)}")
                  for entry in frame.entries]
        events += [Event("limit" if r.limited else "miss", r.at * scale, 0.0,
                         "; ".join(f"{c.subject}: {c.before} → {c.after}" for c in r.changes))
                   for r in frame.recaptures]
        if events:
            rows.append((frame, events))
    return rows
