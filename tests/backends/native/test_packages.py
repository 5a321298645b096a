"""`capture.package`, and a C program that runs what it has written: values are eager mode's."""
from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import capture
from capture.errors import ArgumentError, GraphBreakError
from capture.packages import MAGIC, PackageError

OWN = Path(capture.__file__).parent
TORCH = Path(torch.__file__).parent / "lib"
SOURCE = Path(__file__).parents[2] / "csrc" / "run_package.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, which knows neither Python nor torch."""
    made = tmp_path_factory.mktemp("package") / "run_package"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", str(SOURCE), f"-I{OWN / 'csrc' / 'package'}", f"-L{OWN}",
                    "-lcapture_package", f"-Wl,-rpath,{OWN}", f"-Wl,-rpath-link,{TORCH}", "-o", str(made)], check=True, timeout=120)
    return made


def run(program: Path, package: Path, inputs: Sequence[Any]) -> list[Tensor] | str:
    """The results of the program, or what it says."""
    given, made = package.with_suffix(".in"), package.with_suffix(".out")
    tensors = [leaf for leaf in pytree.tree_leaves(tuple(inputs)) if isinstance(leaf, Tensor)]
    given.write_bytes(b"".join(bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()) for tensor in tensors))
    done = subprocess.run([program, package, given, made], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "LD_LIBRARY_PATH": str(TORCH)})
    if done.returncode:
        return done.stderr.strip()
    data, results = made.read_bytes(), []
    while data:
        line, _, data = data.partition(b"\n")
        name, *sizes = line.decode().split()
        dtype, shape = getattr(torch, name), tuple(map(int, sizes))
        length = dtype.itemsize * torch.Size(shape).numel()
        elements = torch.frombuffer(bytearray(data[:length]), dtype=dtype) if length else torch.empty(0, dtype=dtype)
        results.append(elements.reshape(shape))
        data = data[length:]
    return results


def check(program: Path, folder: Path, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Packages a function, and compares what the program makes of other inputs of the same sizes."""
    capture.package(function, inputs, folder / "it.capture")
    others = pytree.tree_map_only(Tensor, lambda tensor: tensor.roll(1), tuple(inputs))
    results = run(program, folder / "it.capture", others)
    with torch.no_grad():
        expected = pytree.tree_leaves(function(*pytree.tree_map_only(Tensor, torch.clone, others)))
    assert not isinstance(results, str), results
    assert len(results) == len(expected)
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=8)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.second(F.relu(self.norm(self.first(x))))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.both, self.out = nn.Embedding(11, 16), nn.Linear(16, 48), nn.Linear(16, 11)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = self.table(tokens)
        q, k, v = (part.view(*tokens.shape, 2, 8).transpose(1, 2) for part in self.both(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return {"logits": self.out(x), "last": x[:, -1], "best": self.out(x).argmax(-1)}


def with_weight(weight: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda x: (x @ weight, x @ weight.t(), weight.expand(2, 3, 3) + x)


PROGRAMS: dict[str, tuple[Callable[[], Callable[..., Any]], Callable[[], Sequence[Any]]]] = {
    "layers": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1)),
               lambda: [torch.randn(3, 8)]),
    "convolutions": (lambda: Convolutions().eval(), lambda: [torch.randn(2, 3, 9, 9)]),
    "attention": (lambda: Attention().eval(), lambda: [torch.randint(11, (2, 7)), torch.rand(2, 1, 7, 7) > 0.3]),
    "recurrent": (lambda: nn.LSTM(4, 5, batch_first=True), lambda: [torch.randn(2, 6, 4)]),
    "containers and numbers": (lambda: lambda given, scale: (given["x"] * scale + given["y"][0], [given["x"].sum(0)]),
                               lambda: [{"x": torch.randn(3, 4), "y": [torch.randn(4)]}, 2.5]),
    "arguments and views returned": (lambda: lambda x, y: (x, y.t(), x + y, y), lambda: [torch.randn(3, 3), torch.randn(3, 3)]),
    "one twice": (lambda: lambda x: (x + 1, x * 2, x + 1), lambda: [torch.randn(3)]),
    "an argument is written to": (lambda: lambda x, y: (x.add_(y), x * 2), lambda: [torch.zeros(3), torch.zeros(3)]),
    "dtypes": (lambda: lambda x, i, b: (x.double() * i, i // 2, b & (x > 0), x.bfloat16() * 3, x.half() + 1),
               lambda: [torch.randn(5), torch.arange(5), torch.arange(5) > 2]),
    "constants": (lambda: lambda x: x + torch.tensor([1.0, 2.0]) + torch.arange(2), lambda: [torch.randn(2)]),
    "operators of ATen": (lambda: lambda x: (torch.fft.fft(x).abs(), x.sort(-1)[1], torch.linalg.svdvals(x), x.cumsum(0)),
                          lambda: [torch.randn(4, 4)]),
    "nothing": (lambda: lambda x: (x * 2, x.sum()), lambda: [torch.empty(0, 3)]),
    "transposed weights": (lambda: with_weight(torch.randn(3, 3).t()), lambda: [torch.randn(3, 3)]),
    "expanded weights": (lambda: with_weight(torch.randn(3).expand(3, 3)), lambda: [torch.randn(3, 3)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_eager_mode(program: Path, tmp_path: Path, name: str) -> None:
    make, inputs = PROGRAMS[name]
    check(program, tmp_path, make(), inputs())


def test_the_program_needs_no_python(program: Path) -> None:
    needed = subprocess.run(["ldd", OWN / "libcapture_package.so"], capture_output=True, text=True, check=True,
                            env={**os.environ, "LD_LIBRARY_PATH": str(TORCH)}).stdout
    assert "libtorch_cpu.so" in needed and not re.search("libpython|libtorch_python", needed)


COUNT = 0


def counts(x: Tensor) -> Tensor:
    global COUNT
    COUNT += 1
    return x + COUNT


def prints(x: Tensor) -> Tensor:
    print("here")
    return x + 1


@pytest.mark.parametrize(("function", "message"), [
    (counts, "does more than to compute"), (prints, "does more than to compute"), (lambda x: x + torch.rand(3), "random numbers"),
    (nn.BatchNorm1d(3).train(), "its own weights or buffers|does more than"),
    (lambda x: (x + 1, "text"), "something that its graph"), (capture.disable(lambda x: x + 1), "excluded")])
def test_functions_that_do_more_are_refused(tmp_path: Path, function: Callable[..., Any], message: str) -> None:
    with pytest.raises(PackageError, match=message):
        capture.package(function, [torch.randn(2, 3)], tmp_path / "it.capture")
    assert not list(tmp_path.iterdir())


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="list or tuple"):
        capture.package(prints, torch.ones(3), tmp_path / "it.capture")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="path of a file"):
        capture.package(prints, [torch.ones(3)], 7)  # type: ignore[arg-type]
    with pytest.raises(GraphBreakError):
        capture.package(lambda x: x + 1 if x.sum() > 0 else x, [torch.ones(3)], tmp_path / "it.capture")
    with pytest.raises(PackageError, match="cannot be written"):
        capture.package(lambda x: x + 1, [torch.ones(3)], tmp_path / "nowhere" / "it.capture")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    capture.package(nn.Linear(2, 2), [torch.ones(2, 2)], tmp_path / "it.capture")
    return tmp_path / "it.capture"


def test_damaged_files_are_refused(program: Path, package: Path) -> None:
    data = package.read_bytes()
    for damaged, message in ((b"", "cannot be read"), (b"no package at all", "is no package"), (data[:100], "damaged"),
                             (data[:-64], "damaged"), (MAGIC + b"\xff" * 8 + data[16:], "damaged"),
                             (data[:16] + b"z" + data[17:], "damaged")):
        package.write_bytes(damaged)
        said = run(program, package, [torch.ones(2, 2)])
        assert isinstance(said, str) and said.startswith("open: ") and message in said and len(said.splitlines()) == 1


def test_packages_for_another_machine_are_refused(program: Path, package: Path) -> None:
    data = package.read_bytes()
    version = ".".join(torch.__version__.split(".")[:2]).encode()
    package.write_bytes(data.replace(version, b"9" * len(version), 1))
    assert "is for torch 9" in str(run(program, package, [torch.ones(2, 2)]))
    named = next(name for name in (b"avx2", b"asimd", b"sse2") if name in data)
    package.write_bytes(data.replace(named, b"z" * len(named), 1))
    assert "needs a processor with zz" in str(run(program, package, [torch.ones(2, 2)]))
