"""The rules of the IR, checked."""
from __future__ import annotations

from capture.errors import InternalError


class InvalidProgram(InternalError):
    """A program of the IR breaks a rule; the message quotes the text of the statement."""
