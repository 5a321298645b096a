"""What decides, besides the graph, what this process compiles to: versions, sources, the processor, and how the user set it up.

Keys of the disk cache contain all of it; `warm_cache.py` compares it with that of the process which saved a file, and says what
differs.
"""
from __future__ import annotations

import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from capture.backends.native import processor
from capture.config import DEBUG
from capture.version import VERSION

BACKENDS = Path(__file__).parent.parent
OPERATORS = BACKENDS.parent / "operators"
UNLOGGED = 2            # the debug level up to which the compiler keeps no log


class Fact(NamedTuple):
    """One thing that must be equal. shown: what people call it."""

    value: str
    shown: str


@functools.cache
def facts() -> dict[str, Fact]:
    """What is so for the whole process, by name. Of Python's version counts what decides how code is compiled to bytecode."""
    import torch  # not before: where the cache lies is asked of it before torch is imported
    git = str(torch.version.git_version)
    sources = _sources()
    return {"capture": Fact(sources, f"{VERSION} (sources {sources[:8]})"),
            "torch": Fact(f"{torch.__version__} {git}", f"{torch.__version__} (git {git[:8]})"),
            "Python": Fact(str(sys.implementation.cache_tag), sys.version.split()[0]),
            "processor": Fact(processor.features(), processor.name())}


def settings() -> dict[str, Fact]:
    """What users can change while the process runs, by name. CXX as they wrote it: to ask the compiler who it is takes longer than
    to load what it made."""
    compiler, level = os.environ.get("CXX", ""), str(max(DEBUG.value, UNLOGGED))
    return {"CXX": Fact(compiler, repr(compiler)), "CAPTURE_DEBUG": Fact(level, level)}


def _sources() -> str:
    """A hash of the backends and of what they know of operators, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in (path for part in (BACKENDS, OPERATORS) for path in sorted(part.rglob("*"))):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{os.path.relpath(path, BACKENDS)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
