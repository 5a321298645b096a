"""Messages between the user's process and the compiling one, and the text of a compile that failed.

A message is its length, 8 bytes, then a pickle. Requests are (name of the function, job as bytes, values of all flags, key, disk
cache); replies are (bytes or a Failure, trouble with the disk cache). The user's side is `csrc/process/line.c`. Nothing here needs
torch, so that the compiling process can be started before torch is imported.
"""
from __future__ import annotations

import os
import pickle
import signal
import struct
import traceback
from dataclasses import dataclass
from typing import Any

from capture.errors import BackendError, ToolchainError

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no compiled code. `kind`: "unsupported" (the backend cannot do this), "toolchain" (the machine lacks something),
    "internal" (a bug of ours). `text`: one sentence; `details`: a traceback or log, for a report. `place`: the node that the
    backend cannot compile, if it is one node."""

    kind: str
    text: str
    details: str = ""
    place: int | None = None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The failure that an exception of the compiler means."""
        details = "".join(traceback.format_exception(error))
        text = str(error) or type(error).__name__
        if isinstance(error, ToolchainError):
            return cls("toolchain", text, error.log)
        if isinstance(error, (OSError, MemoryError)):
            return cls("toolchain", f"{type(error).__name__}: {text}", details)
        if isinstance(error, BackendError):
            return cls("unsupported", text, place=getattr(error, "place", None))
        return cls("internal", f"{type(error).__name__}: {text}", details)


def signal_name(number: int) -> str:
    """What a signal is called."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def send(file: int, message: Any) -> None:
    """Writes one message. Raises BrokenPipeError when nobody reads any more."""
    data = pickle.dumps(message, protocol=5)
    rest = memoryview(LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(file, rest):]


def receive(file: int) -> Any:
    """Reads one message. Raises EOFError when nobody writes any more."""
    length, = LENGTH.unpack(_read(file, LENGTH.size))
    return pickle.loads(_read(file, length))


def _read(file: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(file, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
