"""What was found to vary is known to the next process, whatever it finds on disk."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from capture.backends import varying
from tests import compiling

PROGRAM = """
import torch, torch._dynamo, capture
from torch import nn
torch.manual_seed(0)

def program(x, factor, k):
    return torch.relu(x @ x.mT) * factor + x.shape[0] + torch.arange(k).sum()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        y = self.layer(x)
        torch._dynamo.graph_break()
        return y * 2 + y.shape[0]

compiled, net = capture.compile(program, backend="native"), Net()
module = capture.compile(net, backend="native")
for n in (3, 4, 5, 2, 1):
    x = torch.randn(n, 4)
    assert torch.equal(compiled(x, n * 0.5, n), program(x, n * 0.5, n))
    assert torch.allclose(module(x), net(x))
print(capture.stats(compiled).captures, capture.stats(module).captures)
"""


def numbers(program: str, *arguments: str, folder: Path, **environment: str) -> list[int]:
    """What a program prints, in a process of its own."""
    done = compiling.programs().run(["-c", compiling.prelude() + program, *arguments], timeout=200,
                                    environment={**os.environ, "CAPTURE_CACHE_DIR": str(folder), **environment})
    assert done.returncode == 0, done.stderr
    return list(map(int, done.stdout.split()))


def captures(folder: Path, **environment: str) -> list[int]:
    return numbers("import warnings; warnings.simplefilter('error', UserWarning)" + PROGRAM, folder=folder, **environment)


def test_the_second_process_captures_for_all_sizes_at_once(tmp_path: Path) -> None:
    first, second = [2, 2], [1, 1]
    assert [captures(tmp_path / "cache") for _ in range(2)] == [first, second]
    for entry in (tmp_path / "cache").iterdir():
        entry.write_bytes(b"rubbish")
    assert captures(tmp_path / "cache") == first
    assert captures(tmp_path / "cache", CAPTURE_CACHE="0") == first


COMPILES = """
import sys, torch, capture
from capture.backends.native import sidecar

def program(x):
    wide = x.shape[0] > 30
    return torch.relu(x @ x.mT) * (2 if wide else 3) + x[:x.shape[0] // 4].sum(0).softmax(-1).sum()

submitted = []
submit = sidecar.submit
sidecar.submit = lambda request: (submitted.append(request), submit(request))
compiled = capture.compile(program, backend="native", dynamic=True)
for n in map(int, sys.argv[1:]):
    x = torch.randn(n, 5)
    torch.testing.assert_close(compiled(x), program(x))
    capture.wait()
    torch.testing.assert_close(compiled(x), program(x))
print(len(submitted))
"""


def test_the_second_process_finds_kernels_that_were_compiled_at_other_sizes(tmp_path: Path) -> None:
    def compiles(*sizes: int) -> int:
        count, = numbers(COMPILES, *map(str, sizes), folder=tmp_path / "cache")
        return count
    assert compiles(7) == 1             # 7 // 4 is 1, so that the kernels are for sizes of which that is so
    assert compiles(12, 9) == 1
    assert compiles(13, 10) == 0
    assert compiles(40, 50) == 1        # another path of the program, another graph
    assert compiles(33, 8) == 0


def test_a_store_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from capture.config import CACHE_DIR
    (file := tmp_path / "file").write_text("")
    key = varying.key_of(captures.__code__, "f")
    with CACHE_DIR.set(str(file / "cache")), pytest.warns(UserWarning, match="cannot be"):
        assert not varying.recall(key)
        varying.keep(key, varying.Varying({"x": {0}}, {"k"}))
    with CACHE_DIR.set(str(tmp_path / "good")):
        varying.keep(key, varying.Varying({"x": {0}}, {"k"}))
        assert not varying.recall(key)                     # as it was when this process first asked
        monkeypatch.setattr(varying, "_recalled", {})
        assert varying.recall(key) == varying.Varying({"x": {0}}, {"k"})


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"sizes": 1, "numbers": []}',
                                  b'{"sizes": {"x": 3}, "numbers": []}'])
def test_what_is_no_record_says_nothing(data: bytes) -> None:
    assert not varying.read(data)


def test_code_is_told_by_what_it_does() -> None:
    def key(text: str, name: str = "f") -> str:
        scope: dict[str, Any] = {}
        exec(text, scope)
        return varying.key_of(scope["f"].__code__, name)
    texts = ["def f(x): return x + 1", "def f(x): return x + 2", "def f(x): return x - 1", "def f(y): return y + 1",
             "def f(x): return (lambda: x + 1)()", "def f(x): return (lambda: x + 2)()"]
    keys = [*map(key, texts), key(texts[0], "g")]
    assert len(set(keys)) == len(keys) and keys[:-1] == list(map(key, texts))
