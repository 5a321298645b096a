"""Programs of tests that import torch take a quarter less: what torch consists of is not looked through for garbage when they end.

torch calls a function of each package that is installed as a backend of it, at the end of its import. One such package lies on
PYTHONPATH, and its function is `gc.freeze`. What a program makes itself is looked through as always.
"""
from __future__ import annotations

import os
from pathlib import Path

PACKAGE = {"METADATA": "Name: quick-ends\nVersion: 0\n", "entry_points.txt": "[torch.backends]\nquick_ends = gc:freeze\n"}


def install(folder: str) -> None:
    """Has all processes below this one find the package, which lies in `folder`."""
    package = Path(folder, "quick_ends-0.dist-info")
    package.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (package / name).write_text(text)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), folder)))
