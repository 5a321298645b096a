"""Code of installed packages and of Python's library: what it has to do with torch."""
from __future__ import annotations

import types
from typing import Any

from capture.errors import is_of_library, is_of_torch
from capture.interp.core import unwind
from capture.interp.core.frame import Frame
from capture.interp.function_models.effect_callbacks import PYTHON
from capture.refgraph.identical import is_one_of
from capture.refgraph.lookup import namespace_of

BETWEEN_PROCESSES = {"multiprocessing", "queue"}        # Python's modules


def is_outside(frame: Frame) -> bool:
    """Whether a frame runs code of Python's, of ours in the place of builtins, or of a package that knows nothing of torch."""
    return frame.globals.get("__package__") in unwind.OWN_PACKAGES or hands_over(frame) or knows_no_torch(frame)


def knows_no_torch(frame: Frame) -> bool:
    """Whether a frame runs code of Python's library, or of a package whose module has nothing of torch's."""
    file = frame.code.co_filename
    if not is_of_library(file):
        return file.startswith(PYTHON) and frame.globals.get("__package__") not in unwind.OWN_PACKAGES
    return not is_of_torch(file) and not any(map(is_torchs, frame.globals.values()))


def hands_over(frame: Frame) -> bool:
    """Whether a frame runs code of torch's that hands objects to other processes or threads, and waits for theirs: a loader's."""
    return is_of_torch(frame.code.co_filename) and any(
        type(item) is types.ModuleType and item.__dict__.get("__name__") in BETWEEN_PROCESSES for item in frame.globals.values())


def is_torchs(item: Any) -> bool:
    """Whether something that a module holds is torch's, or torch itself."""
    cls, name = type(item), None
    if cls is types.ModuleType:
        name = item.__dict__.get("__name__")
    elif issubclass(cls, type):
        name = namespace_of(item).get("__module__")
    elif is_one_of(cls, types.FunctionType, types.BuiltinFunctionType):
        name = item.__module__
    return isinstance(name, str) and name.partition(".")[0] == "torch"
