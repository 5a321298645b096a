"""What the compiling process ends where the keeper is gone."""
from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

# A compiler that starts processes all the time, as deep as three below the compiling process.
STORM = "while :; do sleep 1000 $MARK & (sleep 1000 $MARK & sleep 1000 $MARK) & sleep 0.01; done"
PROGRAM = f"""
import os, signal, subprocess, time
from capture.backends.native import keeper
signal.signal(signal.SIGALRM, signal.SIG_DFL)
for _ in range(3):
    compiler = subprocess.Popen(["sh", "-c", {STORM!r}], stderr=subprocess.DEVNULL)
time.sleep(0.05)
keeper.kill_descendants()
"""


def marked(mark: str) -> list[str]:
    """Processes whose arguments name the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if mark in (text := (folder / "cmdline").read_text()) and "\0-c\0" not in text:
                found.append(text)
        except OSError:         # it has ended
            continue
    return found


def test_all_that_compilers_start_is_ended() -> None:
    for _ in range(3):
        mark = f"0.{uuid.uuid4().int}"
        subprocess.run([sys.executable, "-c", PROGRAM.replace("$MARK", mark)], check=True, start_new_session=True)
        assert not marked(mark)
