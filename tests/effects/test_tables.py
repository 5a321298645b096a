"""Rows that a program writes, and folders that it lists."""
from __future__ import annotations

import csv
import io
import os
from types import SimpleNamespace

import torch

from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
CALLS = call(X), call(X + 1), call(-X)


def test_tables() -> None:
    """Rows are written by writers of the call's own and by ones from outside, from lists, generators and dicts."""
    def make():
        state = SimpleNamespace(file=io.StringIO(), log=io.StringIO(), step=0)
        state.writer = csv.writer(state.log, delimiter=";")

        def program(x):
            state.step += 1
            loss = (x * 2).sum()
            state.writer.writerow([state.step, loss.item(), f"{loss:.1f}", "a;b", None])
            state.writer.writerow(n * 2 for n in range(3))
            rows = csv.writer(state.file, lineterminator="!")
            rows.writerows([("step", state.step), [x, 1.5]])
            table = csv.DictWriter(state.file, fieldnames=["step", "loss"])
            table.writeheader()
            return x + 1, table.writerow({"loss": loss.item(), "step": state.step})
        return program, state

    def read(state):
        state.read = state.file.getvalue(), state.log.getvalue()
    check(make, call(X), read, call(X + 1), read, call(-X), read, call(X), graphs=1)


def test_rows_of_a_stream_in_python() -> None:
    class Lines:
        def __init__(self):
            self.text = []

        def write(self, text):
            self.text.append(text)

    def make():
        lines = Lines()

        def program(x):
            csv.writer(lines).writerow([len(lines.text), 2])
            return x * 2, len(lines.text)
        return program, lines
    check(make, *CALLS, captures=None, fullgraph=False)


def test_what_a_folder_holds(tmp_path) -> None:
    def make():
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / "a").touch()

        def program(x):
            names = os.listdir(tmp_path)
            print(names)
            return x * 2, names
        return program, SimpleNamespace(path=tmp_path)

    def add(state):
        (tmp_path / "b").touch()
    check(make, call(X), call(X), add, call(X), graphs=1)


def test_what_a_folder_holds_decides(tmp_path) -> None:
    def make():
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / "a").touch()

        def program(x):
            y = x * 2
            for name in sorted(os.listdir(tmp_path)):
                y = y + len(name)
            return y, len(os.listdir(tmp_path))
        return program, None

    def add(state):
        (tmp_path / "bcd").touch()
    check(make, call(X), call(X), add, call(X), call(X), captures=None, fullgraph=False)
