"""Kernels and models on a GPU, beside eager mode and torch.compile: needs an NVIDIA GPU, and takes no network.

    python -m benchmarks.cuda [--minutes N] [--parts kernels,models] [--peers eager,compile,max-autotune] [--only NAME]

Each part prints a line as soon as it is measured, so that a run that is cut short still tells. Kernels: the share of the bandwidth
that copying as many bytes has, by events of the GPU, medians. Models: milliseconds of a step by the clock, medians, seconds until
the compiled code runs, and GB at the peak.
"""
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import capture
from capture import config

Program = Callable[..., Any]
REPEATS, LEAST_SECONDS = 30, 0.1
PEERS = {"eager": None, "compile": None, "max-autotune": "max-autotune-no-cudagraphs", "reduce-overhead": "reduce-overhead"}


@dataclass(frozen=True)
class Case:
    """A function of tensors, and how many bytes it must read and write."""

    function: Program
    tensors: tuple[Any, ...]
    bytes: int


def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def pointwise(size: int, dtype: torch.dtype) -> Case:
    columns = 4096
    rows = size // columns // dtype.itemsize
    return Case(lambda x, b: F.gelu(x + b, approximate="tanh"), (tensor(rows, columns, dtype=dtype), tensor(columns, dtype=dtype)),
                2 * rows * columns * dtype.itemsize)


def dropout(size: int, dtype: torch.dtype) -> Case:
    columns = 4096
    rows = size // columns // dtype.itemsize
    return Case(lambda x, b: F.dropout(F.gelu(x + b), 0.1), (tensor(rows, columns, dtype=dtype), tensor(columns, dtype=dtype)),
                2 * rows * columns * dtype.itemsize)


def rows_of(function: Program, columns: int, weights: int) -> Callable[[int, torch.dtype], Case]:
    def make(size: int, dtype: torch.dtype) -> Case:
        rows = size // columns // dtype.itemsize
        return Case(function, (tensor(rows, columns, dtype=dtype), *(tensor(columns, dtype=dtype) for _ in range(weights))),
                    2 * rows * columns * dtype.itemsize)
    return make


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def cross_entropy(size: int, dtype: torch.dtype) -> Case:
    vocabulary = 128 << 10
    rows = max(size // vocabulary // dtype.itemsize, 1)
    wanted = torch.randint(vocabulary, (rows,), device="cuda")
    logits = tensor(rows, vocabulary, dtype=dtype)
    return Case(lambda x, i: F.cross_entropy(x, i), (logits, wanted), logits.numel() * dtype.itemsize)


def transposed(size: int, dtype: torch.dtype) -> Case:
    side = int((size / dtype.itemsize) ** 0.5) // 64 * 64
    return Case(lambda x: x.t().contiguous() * 2, (tensor(side, side, dtype=dtype),), 2 * side * side * dtype.itemsize)


def columns(size: int, dtype: torch.dtype) -> Case:
    width = 4096
    rows = size // width // dtype.itemsize
    return Case(lambda x: x.sum(0), (tensor(rows, width, dtype=dtype),), rows * width * dtype.itemsize)


def everything(size: int, dtype: torch.dtype) -> Case:
    return Case(lambda x: (x * x).sum(), (tensor(size // dtype.itemsize, dtype=dtype),), size)


def adam(size: int, dtype: torch.dtype) -> Case:
    count, each = 300, max(size // 300 // dtype.itemsize, 1)
    lists = [[tensor(each, dtype=dtype) for _ in range(count)] for _ in range(4)]
    lists[3] = [value.abs() for value in lists[3]]

    def step(parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor]) -> None:
        torch._foreach_lerp_(means, gradients, 0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(parameters, means, roots, -1e-3)
    return Case(step, tuple(lists), 7 * count * each * dtype.itemsize)


def embedding_gradient(size: int, dtype: torch.dtype) -> Case:
    width, vocabulary = 1024, 32000
    rows = size // width // dtype.itemsize
    words = torch.randint(vocabulary, (rows,), device="cuda")
    return Case(lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, vocabulary, -1, False),
                (tensor(rows, width, dtype=dtype), words), (rows + vocabulary) * width * dtype.itemsize)


KERNELS: dict[str, Callable[[int, torch.dtype], Case]] = {
    "bias + GELU": pointwise,
    "bias + GELU + dropout": dropout,
    "layer norm, 1024": rows_of(lambda x, w, b: F.layer_norm(x, w.shape, w, b), 1024, 2),
    "layer norm, 8192": rows_of(lambda x, w, b: F.layer_norm(x, w.shape, w, b), 8192, 2),
    "RMS norm, 4096": rows_of(rms_norm, 4096, 1),
    "softmax, 1024": rows_of(lambda x: x.softmax(-1), 1024, 0),
    "softmax, 16384": rows_of(lambda x: x.softmax(-1), 16384, 0),
    "cross-entropy, 128k": cross_entropy,
    "transpose": transposed,
    "column sums": columns,
    "sum of squares": everything,
    "Adam, 300 tensors": adam,
    "embedding gradient": embedding_gradient,
}


def gpu_seconds(function: Program, arguments: tuple[Any, ...]) -> float:
    """The median of some calls, by the GPU's clock; between them the cache is filled with other things."""
    found: list[float] = []
    for _ in range(3):
        function(*arguments)
    until = time.perf_counter() + LEAST_SECONDS
    while len(found) < REPEATS and (len(found) < 5 or time.perf_counter() < until):
        _flushed().zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function(*arguments)
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found)


_flush: list[Tensor] = []


def _flushed() -> Tensor:
    if not _flush:
        _flush.append(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"))
    return _flush[0]


def ours(function: Program) -> Program:
    return capture.compile(function, backend="native", options={"background": False})


def engines(names: list[str]) -> Iterator[tuple[str, Callable[[Program], Program]]]:
    yield "capture", ours
    for name in names:
        if name == "eager":
            yield name, lambda function: function
        else:
            yield name, lambda function, mode=PEERS[name]: torch.compile(function, mode=mode)


def copy_seconds(size: int) -> float:
    source, target = (torch.empty(size // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    return gpu_seconds(target.copy_, (source,))


def kernels(names: list[str], only: str, deadline: float) -> None:
    print(f"copy of 1 GB: {(1 << 30) / copy_seconds(1 << 30) / 1e12:.2f} TB/s")
    print(f"{'share of copy':24} {'size':>7} {'dtype':>9} " + " ".join(f"{name:>12}" for name, _ in engines(names)), flush=True)
    for size, dtype in ((64 << 20, torch.float32), (1 << 30, torch.bfloat16)):
        for name, make in KERNELS.items():
            if only not in name or time.perf_counter() > deadline:
                continue
            case = make(size, dtype)
            copy, cells = copy_seconds(case.bytes), []
            for _, engine in engines(names):
                try:
                    with torch.no_grad(), config.TRIAL_CALLS.set(0):
                        torch._dynamo.reset()
                        cells.append(f"{copy / gpu_seconds(engine(case.function), case.tensors):12.2f}")
                except Exception as error:
                    cells.append(f"{type(error).__name__[:12]:>12}")
            print(f"{name:24} {size >> 20:>4} MB {str(dtype)[6:]:>9} " + " ".join(cells), flush=True)
            del case
            torch.cuda.empty_cache()


def language_model(name: str, layers: int, **sizes: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]:
    import transformers
    torch.manual_seed(0)
    if name == "gpt2":
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers))
    elif name == "llama":
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
            vocab_size=32000))
    else:
        made = transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=layers))
    words = made.config.vocab_size

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = made

        def forward(self, tokens: Tensor) -> Tensor:
            logits = self.model(input_ids=tokens, **({"use_cache": False} if name != "bert" else {})).logits
            return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    return Loss().cuda(), lambda batch: (torch.randint(words, (batch, 256 if name != "llama" else 512), device="cuda"),)


def image_model(name: str) -> tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]:
    import torchvision
    torch.manual_seed(0)
    made = torchvision.models.resnet50() if name == "resnet50" else torchvision.models.vit_b_16()

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = made

        def forward(self, image: Tensor, wanted: Tensor) -> Tensor:
            return F.cross_entropy(self.model(image), wanted)
    return Loss().cuda(), lambda batch: (
        torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(1000, (batch,), device="cuda"))


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]]] = {
    "gpt2": lambda: language_model("gpt2", 12),
    "resnet50": lambda: image_model("resnet50"),
    "llama": lambda: language_model("llama", 4),
    "bert": lambda: language_model("bert", 12),
    "vit": lambda: image_model("vit"),
}


def step_of(model: nn.Module, training: bool, autocast: bool) -> Program:
    def step(*batch: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast), torch.set_grad_enabled(training):
            loss = model(*batch)
        if training:
            loss.backward()
            for parameter in model.parameters():
                parameter.grad = None
        return loss
    return step


def wall_seconds(function: Program, arguments: tuple[Any, ...], steps: int = 20) -> float:
    found = []
    for _ in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function(*arguments)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def models(names: list[str], only: str, deadline: float) -> None:
    print(f"{'ms a step (s until compiled, GB)':44} " + " ".join(f"{name:>24}" for name, _ in engines(names)), flush=True)
    for name, make in MODELS.items():
        for training, autocast, batch in ((False, True, 1), (True, True, 16), (True, False, 8), (False, False, 1)):
            if only not in name or time.perf_counter() > deadline:
                continue
            cells = []
            for engine, compiler in engines(names):
                model, inputs = make()
                arguments = inputs(batch)
                torch.cuda.reset_peak_memory_stats()
                torch._dynamo.reset()
                capture.reset()
                try:
                    begin = time.perf_counter()
                    step = step_of(compiler(model) if engine != "eager" else model, training, autocast)
                    for _ in range(3):
                        step(*arguments)
                    torch.cuda.synchronize()
                    cold = time.perf_counter() - begin
                    for _ in range(20):
                        step(*arguments)
                    torch.cuda.reset_peak_memory_stats()
                    steady = wall_seconds(step, arguments)
                    cells.append(f"{steady * 1e3:9.2f} ({cold:5.1f}, {torch.cuda.max_memory_allocated() / 2**30:4.1f})")
                except Exception as error:
                    cells.append(f"{type(error).__name__[:20]:>24}")
                del model, arguments
                torch.cuda.empty_cache()
            what = f"{name}, {'training' if training else 'inference'}, {'bf16' if autocast else 'float32'}, batch {batch}"
            print(f"{what:44} " + " ".join(f"{cell:>24}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--parts", default="kernels,models")
    parser.add_argument("--peers", default="eager,compile")
    parser.add_argument("--only", default="", help="measure only what has this in its name")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use here; `python -m capture doctor` says what is missing")
    deadline = time.perf_counter() + 60 * given.minutes
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    peers = [name for name in given.peers.split(",") if name]
    for part in given.parts.split(","):
        {"kernels": kernels, "models": models}[part](peers, given.only, deadline)


if __name__ == "__main__":
    main()
