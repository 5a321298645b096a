"""A function as a file that runs without Python: `capture.package` writes it, and a C or C++ program runs it with
libcapture_package.so (`csrc/package/capture_package.h`).

A file is MAGIC, the length of the description (8 bytes, as all numbers here the least significant first), the description, zeros
up to the next page, and the data: the kernels' library, weights and constants, each at a multiple of ALIGNMENT. The description is
one value, a letter and what it stands for: `n` None, `t` True, `f` False, `i` an integer and `d` a float of 8 bytes, `c` two
floats, `s` a text and `l` a list behind its length (8 bytes). It is the list of the fields of `Description`.
"""
from __future__ import annotations

import ast
import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from capture.backends.native import processor
from capture.backends.native.artifact import Artifact
from capture.backends.native.compiler import compile_job
from capture.backends.native.disk_cache import write_file
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.plan import Plan
from capture.backends.native.signature import Input, Unsupported
from capture.errors import CaptureError, ToolchainError
from capture.reports.tree import Report

MAGIC = b"CAPPACK\1"
FORMAT = 1
PAGE, ALIGNMENT = 4096, 64
# How the names of instruction sets begin, of all that Linux says of a processor.
INSTRUCTIONS = ("abm", "adx", "amx", "asimd", "avx", "bmi", "f16c", "fma", "gfni", "movbe", "popcnt", "sse", "ssse", "sve", "vaes",
                "vpcl")

DISPLAYS = ast.Tuple, ast.List, ast.Dict, ast.Name, ast.Constant, ast.expr_context


class PackageError(CaptureError):
    """A function cannot be packaged. The message is one sentence with the remedy."""


class Stored(NamedTuple):
    """A tensor in the data."""

    name: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    length: int


class Taken(NamedTuple):
    """A tensor that a call is given."""

    name: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Description(NamedTuple):
    """torch: its version up to the minor number. instructions: those of the processor that the kernels are for. library: offset and
    length. arguments: of the plan, in order: ("input" or "weight", number). outputs: ("result", "input" or "weight", number)."""

    format: int
    torch: str
    instructions: tuple[str, ...]
    plan: Plan
    library: tuple[int, int] | None
    constants: tuple[Stored, ...]
    weights: tuple[Stored, ...]
    inputs: tuple[Taken, ...]
    arguments: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


class Traced(NamedTuple):
    """One call of a function that is one graph. given: what the graph was given. results: for each of the function's, whether it is
    "given" or an "output" of the graph, and which."""

    graph: fx.GraphModule
    given: tuple[Tensor, ...]
    results: tuple[tuple[str, int], ...]


def write(compile: Callable[..., Any], report: Callable[[Any], Report], function: Callable[..., Any], inputs: Sequence[Any],
          path: str) -> None:
    """Writes a package. compile, report: of `capture.api`. Raises PackageError."""
    inputs = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), tuple(inputs))
    with torch.no_grad():
        traced = _trace(compile, report, function, inputs)
        artifact, traced = _compiled(traced)
    named = _named(inputs)
    numbers = {id(tensor): number for number, (_, tensor) in enumerate(named)}
    data = _Data()
    arguments: list[tuple[str, int]] = []
    weights: list[Stored] = []
    for tensor in traced.given:
        if id(tensor) in numbers:
            arguments.append(("input", numbers[id(tensor)]))
        else:
            arguments.append(("weight", len(weights)))
            weights.append(data.tensor(f"weight {len(weights)}", tensor))
    if any(arguments[place][0] == "weight" for place in artifact.signature.written):
        raise PackageError("the function changes its own weights or buffers, which a package does not. Remedy: package a module in "
                           "evaluation mode, and pass what changes as an argument.")
    outputs = tuple(arguments[place.index] if isinstance(place, Input) else ("result", place.index)
                    for place in artifact.signature.outputs)
    forward = artifact.forward
    description = Description(
        FORMAT, ".".join(torch.__version__.split(".")[:2]), _instructions(), forward.plan,
        data.add(forward.library) if isinstance(forward.library, bytes) else None,
        tuple(data.tensor(f"constant {number}", constant) for number, constant in enumerate(forward.constants)), tuple(weights),
        tuple(Taken(name, *_layout(tensor)) for name, tensor in named), tuple(arguments),
        tuple(outputs[number] if kind == "output" else arguments[number] for kind, number in traced.results))
    start = described(description)
    head = MAGIC + struct.pack("<Q", len(start)) + start
    try:
        write_file(path, head + bytes(-len(head) % PAGE) + bytes(data.bytes))
    except OSError as error:
        raise PackageError(f"the package {path} cannot be written: {error.strerror or error}. Remedy: choose a folder that has "
                           f"room and can be written to.") from None


def described(value: Any) -> bytes:
    """A value of a description as bytes."""
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case int():
            return b"i" + struct.pack("<q", value)
        case float():
            return b"d" + struct.pack("<d", value)
        case complex():
            return b"c" + struct.pack("<dd", value.real, value.imag)
        case str():
            text = value.encode()
            return b"s" + struct.pack("<Q", len(text)) + text
        case tuple() | list():
            return b"l" + struct.pack("<Q", len(value)) + b"".join(map(described, value))
    raise TypeError(f"a description holds no {type(value).__name__}")


# --- the graph

def _trace(compile: Callable[..., Any], report: Callable[[Any], Report], function: Callable[..., Any],
           inputs: Sequence[Any]) -> Traced:
    calls: list[tuple[fx.GraphModule, tuple[Any, ...], tuple[Tensor, ...]]] = []

    def backend(gm: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        def run(*given: Any) -> tuple[Tensor, ...]:
            outputs = gm.forward(*given)
            calls.append((gm, given, outputs))
            return outputs
        return run
    compiled = compile(function, backend=backend, fullgraph=True, dynamic=False)
    if compiled is function:
        raise PackageError("the function is excluded from capture. Remedy: remove the `disable`, or package what it calls.")
    compiled(*inputs)
    calls.clear()
    result = compiled(*inputs)
    frame, = report(compiled).frames
    if len(calls) != 1 or not all(_is_plain(entry.mock) for entry in frame.entries if entry.hits):
        raise PackageError("the function does more than to compute tensors from its arguments. Remedy: package the part that "
                           "computes; `capture.explain` shows what else there is.")
    (gm, given, outputs), = calls
    if not all(isinstance(one, Tensor) and one.device.type == "cpu" for one in given):
        raise PackageError("the function computes with numbers that change, or on a GPU. Remedy: pass tensors on the processor.")
    places = {id(one): ("given", place) for place, one in enumerate(given)}
    places |= {id(one): ("output", place) for place, one in enumerate(outputs)}
    results = pytree.tree_leaves(result)
    if not results or not all(id(one) in places for one in results):
        raise PackageError("the function returns something that its graph does not compute. Remedy: return tensors, in tuples, "
                           "lists or dicts.")
    return Traced(gm, given, tuple(places[id(one)] for one in results))


def _is_plain(mock: str) -> bool:
    """Whether a mock function runs the graph and returns what it makes, perhaps in containers, and does no more."""
    if not mock:
        return False
    *steps, last = ast.parse(mock).body[0].body     # type: ignore[attr-defined]
    displays = [step for step in steps if not _calls_graph(step)]
    return len(displays) == len(steps) - 1 and isinstance(last, ast.Return) and all(map(_is_display, displays))


def _calls_graph(step: ast.stmt) -> bool:
    return isinstance(step, ast.Assign) and isinstance(step.value, ast.Call) and isinstance(
        step.value.func, ast.Name) and step.value.func.id == "graph"


def _is_display(step: ast.stmt) -> bool:
    """Whether a statement gives a name to a tuple, list or dict."""
    return isinstance(step, ast.Assign) and all(isinstance(target, ast.Name) for target in step.targets) and all(
        isinstance(part, DISPLAYS) for part in ast.walk(step.value))


def _compiled(traced: Traced) -> tuple[Artifact, Traced]:
    """The artifact of a graph whose results are tensors of their own: one that returns views returns copies of them."""
    specs = tuple(map(TensorSpec.of, traced.given))
    try:
        artifact = compile_job(Job(traced.graph, specs, Modes.current(), {}))
        if artifact.tail is not None:
            traced = traced._replace(graph=_with_copies(traced.graph))
            artifact = compile_job(Job(traced.graph, specs, Modes.current(), {}))
    except (Unsupported, ToolchainError) as error:
        raise PackageError(f"the function cannot be compiled: {error}. Remedy: change that part, or package the parts around "
                           f"it.") from None
    signature = artifact.signature
    reason = "draws random numbers" if signature.random else "runs under autocast" if signature.casts else (
        "returns views of its arguments" if artifact.tail is not None else "")
    if reason:
        raise PackageError(f"the function {reason}, which a package does not. Remedy: package a function that does not.")
    return artifact, traced


def _with_copies(gm: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    end = graph.output_node()
    outputs: Any = end.args[0]
    with graph.inserting_before(end):
        copies = [graph.call_function(torch.clone, (node,), {"memory_format": torch.contiguous_format}) for node in outputs]
        end.args = (tuple(copies),)
    return fx.GraphModule(gm, graph)


# --- what a file holds

def _named(inputs: Sequence[Any]) -> list[tuple[str, Tensor]]:
    """The tensors among the inputs, by where they are."""
    leaves, _ = pytree.tree_flatten_with_path(tuple(inputs))
    return [(f"inputs{pytree.keystr(path)}", leaf) for path, leaf in leaves if isinstance(leaf, Tensor)]


def _layout(tensor: Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride()


def _instructions() -> tuple[str, ...]:
    return tuple(sorted(word for word in processor.features().split() if word.startswith(INSTRUCTIONS)))


class _Data:
    """What stands behind the description."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def add(self, part: bytes) -> tuple[int, int]:
        """Where a part is: offset and length."""
        self.bytes += bytes(-len(self.bytes) % ALIGNMENT)
        offset = len(self.bytes)
        self.bytes += part
        return offset, len(part)

    def tensor(self, name: str, tensor: Tensor) -> Stored:
        """All memory from its first element to its last one, so that it comes back with its strides."""
        tensor = tensor.detach().resolve_conj().resolve_neg()
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        content = ctypes.string_at(tensor.data_ptr(), span * tensor.itemsize) if tensor.numel() else b""
        return Stored(name, *_layout(tensor), *self.add(content))
