"""Every flag of capture, declared once, with its environment variable and meaning.

Read a flag as `config.STRICT.value`; set it for a while with `with config.STRICT.set(True):`.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

FLAGS: dict[str, Flag] = {}


class Flag:
    """An integer setting, read from `CAPTURE_<name>` at import. Raises ValueError when that is not an integer."""

    def __init__(self, name: str, default: int, meaning: str) -> None:
        self.name, self.default, self.meaning = name, default, meaning
        text = os.environ.get(f"CAPTURE_{name}", str(default))
        try:
            self.value = int(text)
        except ValueError:
            raise ValueError(f"CAPTURE_{name}={text!r} is not an integer; set it to a number ({meaning})") from None
        FLAGS[name] = self

    def __bool__(self) -> bool:
        return bool(self.value)

    @contextmanager
    def set(self, value: int) -> Iterator[None]:
        """Holds `value` for the duration of a `with` block, for all threads."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


STRICT = Flag("STRICT", 0, "1: an internal fault raises InternalError; 0: the program goes on natively, with a warning")
DEBUG = Flag("DEBUG", 0, "1: cache decisions, 2: and guards, graphs and mock functions, to stderr and the debug folder")
RECAPTURE_LIMIT = Flag("RECAPTURE_LIMIT", 8, "entries per compiled function after which a new variant runs natively")
