"""What the compiler makes of a graph: plain data, kept on disk as bytes (`serialization.py`), and how it becomes a callable.

Imported in the user's process, so nothing here needs the compiler.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from capture import _C
from capture.backends.native.disk_cache import open_library
from capture.backends.native.frozen import FrozenCallable
from capture.backends.native.plan import Plan
from capture.backends.native.runtime import Backward, Forward, make_callable
from capture.backends.native.serialization import decode
from capture.backends.native.signature import Signature
from capture.backends.native.transport import decode_graph


@dataclass(frozen=True, slots=True)
class Compiled:
    """One ATen graph as a plan and the code of its kernels, None when it has none: a shared library, or the cubins of a GPU.
    constants: on the processor. kernels: the number of distinct ones. log: what CAPTURE_DEBUG shows of the way there. device: on
    which it runs."""

    plan: Plan
    library: bytes | tuple[bytes, ...] | None
    constants: tuple[torch.Tensor, ...]
    kernels: int
    log: str
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Frozen:
    """The prologue of a forward graph (see `freezing.Prologue`), its own graph as bytes."""

    graph: bytes
    frozen: tuple[int, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """What was made of a job. backward: one for each node of autograd. `frozen`: None where nothing runs once. `tail`: as of
    `aot.Traced`, as bytes."""

    signature: Signature
    forward: Compiled
    backward: tuple[Compiled, ...]
    frozen: Frozen | None = None
    tail: bytes | None = None
    core: bytes | None = None


def read(data: bytes) -> Artifact:
    """The artifact that the compiling process made bytes of. Raises FormatError for other bytes."""
    return decode(Artifact, data)


def load(artifact: Artifact, gm: fx.GraphModule) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The callable of an artifact: arguments and results are those of `gm`, which it was compiled from."""
    signature = artifact.signature
    owners = list(map(signature.of, signature.parts)) or [signature]
    backward = [_backward(compiled, owner) for compiled, owner in zip(artifact.backward, owners, strict=False)]
    forward: Forward = executor(artifact.forward)
    if artifact.frozen is not None:
        forward = FrozenCallable(decode_graph(artifact.frozen.graph), artifact.frozen.frozen, artifact.frozen.kept, forward)
    tail, core = (decode_graph(data) if data is not None else None for data in (artifact.tail, artifact.core))
    return make_callable(gm, signature, forward, backward if signature.parts else backward[0] if backward else None, loose=True,
                         tail=tail, core=core)


def size_check(artifact: Artifact) -> Callable[[Sequence[torch.Tensor]], bool]:
    """A function that checks, by their sizes, whether the code covers some inputs."""
    return artifact.signature.size_check()


def _backward(compiled: Compiled, signature: Signature) -> Backward:
    """The backward callable. It adds a gradient to its leaf itself, if that is certain to be all that the autograd node would do
    with it. Gradients that share a buffer are excluded, since no step finishes them. It takes tangents and saved tensors of any
    strides: a program may have set the `.data` of an input since."""
    edges = tuple(edge if end >= 0 else -1 for edge, end in zip(signature.edges(), compiled.plan.finished, strict=False))
    run = executor(compiled).run_boxed
    return lambda arguments, certain: run(arguments, edges if certain else (), True)


def executor(compiled: Compiled) -> _C.Executor:
    """The C++ object that runs a plan: tensors in, a tuple of tensors out."""
    library = open_library(compiled.library) if isinstance(compiled.library, bytes) else compiled.library
    constants = [constant.to(compiled.device) for constant in compiled.constants]
    return _C.Executor(compiled.plan, library, constants, compiled.device)
