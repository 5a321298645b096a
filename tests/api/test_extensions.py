"""An extension that was built for another torch is refused where it is imported, in a sentence that says what to do; and what is
imported besides."""
from __future__ import annotations

import subprocess
import sys

import pytest

OTHER = "import torch; torch.__version__ = '1.99.0'; "


@pytest.mark.parametrize("program", [OTHER + "import capture", "import capture; " + OTHER + "capture.compile"])
def test_another_torch_is_refused(program: str) -> None:
    last = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr.splitlines()[-1]
    assert last.startswith("ImportError: capture was built for another Python or torch (for torch 2.")
    assert "and this is torch 1.99.0): build it again with `pip install" in last


CAPTURES = """
import sys, torch, capture

@capture.compile
def f(x):
    return (x + 1).sum()

x = torch.ones(3, requires_grad=True)
for _ in range(2):
    f(x).backward()
for mode in (torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")):
    with mode():
        f(x)
print(capture.stats(f).captures, "torch._dynamo" in sys.modules)
"""


def test_a_capture_does_not_import_dynamo() -> None:
    """It takes seconds."""
    assert subprocess.run([sys.executable, "-c", CAPTURES], capture_output=True, text=True).stdout.split() == ["4", "False"]
