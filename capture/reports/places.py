"""Places in the program, for reports: a line, and its text."""
from __future__ import annotations

import linecache

from capture.errors import UserFrame
from capture.reports.tree import Place


def place_of(frame: UserFrame) -> Place:
    """A line with its text."""
    return Place(frame.file, frame.line, frame.function, linecache.getline(frame.file, frame.line).strip())
