"""Whether the extension modules fit the Python and the torch that run: asked before anything else imports them."""
from __future__ import annotations

import importlib
import sys

REBUILD = "capture was built for another Python or torch ({}): build it again with `pip install --no-build-isolation --no-deps \
--force-reinstall .` in the folder of its source"


def check(name: str) -> None:
    """Imports an extension module. Raises ImportError, with the command that rebuilds it, if it was built for another Python or
    torch."""
    if name == "_C":
        importlib.import_module("torch")            # it is linked with torch's libraries
    try:
        importlib.import_module(f"capture.{name}")
    except ImportError as error:
        raise ImportError(REBUILD.format(error)) from error


check("_process")
if "torch" in sys.modules:      # which takes seconds to import, and the compiling process does without
    check("_C")
