"""Activation checkpoints: their bodies are inlined, and become graphs of their own which torch.utils.checkpoint calls on a hit."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import checkpoint

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model, polyfill
from capture.interp.recording.fx_recorder import tensors_in
from capture.interp.recording.regions import Region
from capture.refgraph.node import Build, Const, RefNode, Shadow

# The positional and keyword parameters of checkpoint's own that only its generator reads.
CHECKPOINT_OPTIONS = ("context_fn", "determinism_check", "debug", "early_stop")


@polyfill(checkpoint.checkpoint.__wrapped__, applies=lambda *args, use_reentrant=None, **kwargs: use_reentrant is False  # type: ignore[attr-defined]
          and not kwargs.keys() & set(CHECKPOINT_OPTIONS))
def checkpointed(function: Any, *args: Any, use_reentrant: bool, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """torch.utils.checkpoint: its own generator holds back the activations while the function is inlined."""
    generator = begin_checkpoint(preserve_rng_state, function, *args, **kwargs)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        abandon_checkpoint(generator, error)
        raise
    end_checkpoint(generator)
    return result


def begin_checkpoint(preserve: bool, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Starts torch's generator, which installs the hooks that drop and recompute saved tensors."""
    generator = checkpoint._checkpoint_without_reentrant_generator(
        function, preserve, checkpoint.noop_context_fn, "default", False, True, *args, **kwargs)
    next(generator)
    return generator


def abandon_checkpoint(generator: Any, error: BaseException) -> None:
    """The function raised: the hooks are removed."""
    try:
        generator.throw(error)
    except BaseException:
        return


def end_checkpoint(generator: Any) -> None:
    """The function returned: the hooks are removed."""
    next(generator, None)


@model(begin_checkpoint)
def began(interp: Interpreter, result: Any, preserve: Value, *args: Value, **kwargs: Value) -> Shadow:
    """What follows, up to `ended`, is the body of a checkpoint."""
    interp.graph.depend(preserve.shadow, preserve.real)
    node = interp.graph.create(result)
    options = {"use_reentrant": False, "preserve_rng_state": preserve.real}
    node.slots["region"] = Const(_begin(interp, [value.real for value in args[1:]], options))
    interp.opened(node)
    return node


def _begin(interp: Interpreter, args: Sequence[Any], options: dict[str, Any]) -> Region:
    """A region that is given the tensors among `args`."""
    given = [interp.graph.find(arg) for arg in args if is_a(arg, torch.Tensor)]
    own = dict.fromkeys(map(interp.recorder.node, given))  # type: ignore[arg-type]
    return interp.recorder.begin_region(checkpoint.checkpoint, options, tuple(own))


@model(end_checkpoint)
def ended(interp: Interpreter, result: Any, generator: Value) -> Shadow:
    """The body of the checkpoint is complete."""
    interp.recorder.end_region(generator.shadow.slots["region"].value)  # type: ignore[attr-defined]
    interp.blocks.end(generator.shadow)  # type: ignore[arg-type]
    return Const(None)


# -- reentrant ---------------------------------------------------------------------------------------------------------

class Forward:
    """A reentrant checkpoint whose body runs now, without gradients; `torch.utils.checkpoint` is told of it afterwards.

    `random`, `devices`: the state of random numbers before the body.
    """

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.grad = torch.is_grad_enabled()
        self.random, self.devices = _C.get_random_state(), checkpoint.get_device_states(*args)
        torch._C._set_grad_enabled(False)

    def __call__(self, function: Any, outputs: Any, preserve: bool, *args: Any) -> Any:
        """The outputs, as results of torch's own autograd function, which runs `function` again in the backward pass."""
        random, devices = _C.get_random_state(), checkpoint.get_device_states(*args)
        _C.set_random_state(self.random)
        checkpoint.set_device_states(*self.devices)
        done = False

        def run(*args: Any) -> Any:
            nonlocal done
            if done:
                return function(*args)
            done = True
            _C.set_random_state(random)
            checkpoint.set_device_states(*devices)
            return outputs
        torch._C._set_grad_enabled(self.grad)
        return checkpoint.CheckpointFunction.apply(run, preserve, *args)


def is_reentrant(function: Any, *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True) -> bool:
    return use_reentrant is True


@polyfill(checkpoint.checkpoint.__wrapped__, applies=is_reentrant)  # type: ignore[attr-defined]
def reentrant(function: Any, *args: Any, use_reentrant: bool, preserve_rng_state: bool = True) -> Any:
    """torch.utils.checkpoint, by way of an autograd function: the body runs without gradients."""
    forward = begin_reentrant(args)
    try:
        outputs = function(*args)
    except BaseException:
        abandon_reentrant(forward)
        raise
    return end_reentrant(forward, function, outputs, preserve_rng_state, *args)


def begin_reentrant(args: tuple[Any, ...]) -> Forward:
    """The body begins."""
    return Forward(args)


def abandon_reentrant(forward: Forward) -> None:
    """The body raised."""
    torch._C._set_grad_enabled(forward.grad)


def end_reentrant(forward: Forward, function: Any, outputs: Any, preserve: bool, *args: Any) -> Any:
    """The body returned `outputs`."""
    return forward(function, outputs, preserve, *args)


@model(begin_reentrant)
def began_reentrant(interp: Interpreter, result: Forward, args: Value) -> Shadow:
    """What follows, up to `ended_reentrant`, is the body of a checkpoint."""
    node = interp.graph.create(result)
    region = _begin(interp, args.real, {"use_reentrant": True})
    region.obstacle = "has a reentrant checkpoint"
    node.slots["region"] = Const(region)
    interp.opened(node)
    return node


@model(end_reentrant)
def ended_reentrant(interp: Interpreter, result: Any, forward: Value, function: Value, outputs: Value, preserve: Value,
                    *args: Value) -> Shadow:
    """The body is complete: its outputs are those of the checkpoint."""
    interp.graph.depend(preserve.shadow, preserve.real)
    region = forward.shadow.slots["region"].value  # type: ignore[attr-defined]
    region.options["preserve_rng_state"] = preserve.real
    node = region.start
    while node.op != "root":
        if node.target is torch._C._set_grad_enabled:       # which means another thing when the body runs again
            raise Break("opaque-call", "the body of a reentrant checkpoint switches gradients")
        node = node.next
    interp.recorder.end_region(region)
    interp.blocks.end(forward.shadow)  # type: ignore[arg-type]
    results = result if is_a(result, tuple) else (result,)
    shadows = tuple(interp.graph.find(item) if is_a(item, torch.Tensor) else None for item in results)
    given = [interp.graph.find(tensor) for tensor in tensors_in(list(args))]
    if not all(isinstance(shadow, RefNode) and shadow.created and shadow not in given for shadow in shadows):
        raise Break("opaque-call", "a reentrant checkpoint returned what is no tensor that it made")
    return Build(tuple, shadows) if is_a(result, tuple) else shadows[0]  # type: ignore[arg-type,return-value]
