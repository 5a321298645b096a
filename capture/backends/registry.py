"""From what a user passes as `backend`, `mode` and `options` to the callable that compiles one graph.

A backend takes `(fx.GraphModule, example_inputs)` and returns a callable with the graph's arguments and results: the
protocol of `torch.compile`, so that every backend written for it serves here, by its registered name too.
"""
from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from capture import _C
from capture._C import is_a
from capture.backends import eager
from capture.backends.native import sidecar, tiers
from capture.backends.native.signature import Unsupported
from capture.backends.traceable import find_obstacle, nodes_of
from capture.errors import ArgumentError, BackendError, described, shown


class Backend(Protocol):
    """Compiles one graph; the example inputs are the arguments of the capturing call, in the graph's order."""

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], /) -> Callable[..., Any]: ...


OWN = ("eager", "native")
FOR_DYNAMO = "capture"          # what `torch.compile` calls us (`dynamo_backend.py`)
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def lookup(backend: str | Backend, *, mode: str | None = None, dynamic: bool | None = None,
           options: Mapping[str, Any] | None = None) -> Backend:
    """The compiling function that `backend` names: a callable as it is, then our own names, then torch's registry.

    `mode` and `options` mean what they mean to `torch.compile`: inductor turns them into its configuration, other backends of torch
    and callables receive them as keyword arguments. Our native backend ignores the mode and has the options of
    `native.options.Options`; the eager one has none.

    Raises ArgumentError for a value of the wrong type or an unknown mode or option, BackendError for an unknown name.
    """
    _check_tuning(mode, dynamic, options)
    if isinstance(backend, str):
        return _by_name(backend, mode, dynamic, options)
    if callable(backend):
        return _with_keywords(backend, mode, options)
    raise ArgumentError(f"backend must be a name or a callable (gm, example_inputs) -> callable, "
                        f"got {described(backend)}")


def takes_numbers(backend: Backend) -> bool:
    """Whether a backend takes graphs with numbers of Python among their inputs, as it may say by an attribute `takes_numbers`.
    Others would make constants of them, unseen."""
    return is_own(backend) or getattr(backend, "takes_numbers", False)


def takes_sizes(backend: Backend) -> bool:
    """Whether a backend takes graphs whose inputs have other sizes from call to call, as it may say by an attribute `takes_sizes`.
    Others would compile them for those of the example inputs."""
    return is_own(backend) or getattr(backend, "takes_sizes", False)


def keeps_on_disk(backend: Backend) -> bool:
    """Whether the backend keeps what it compiles, and with it what is known of functions, for later processes."""
    return isinstance(backend, functools.partial) and backend.func is tiers.compile_graph


def takes_assignments(backend: Backend) -> bool:
    """Whether a backend takes graphs that assign to attributes of tensors, give them other memory, or have them require gradients,
    as it may say by an attribute `takes_assignments`. AOTAutograd, on which many are built, loses that without a word."""
    return is_own(backend) or getattr(backend, "takes_assignments", False)


def takes_backward(backend: Backend) -> bool:
    """Whether a backend takes graphs with backward passes in them, as it may say by an attribute `takes_backward`."""
    return is_own(backend) or getattr(backend, "takes_backward", False)


def takes_autograd_functions(backend: Backend) -> bool:
    """Whether a backend takes autograd functions of the program's as graphs of their passes, as it may say by an attribute."""
    return keeps_on_disk(backend) or getattr(backend, "takes_autograd_functions", False)


def is_own(backend: Backend) -> bool:
    """Whether a backend is one of ours."""
    return getattr(backend, "func", backend) in (eager.compile_graph, tiers.compile_graph)


def compiled(backend: Backend, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """What a backend makes of a graph. One that is not ours would lose the casts that autocast keeps: it is given these as inputs;
    if that cannot be done the graph runs uncompiled, and its note says why."""
    if not is_own(backend) and _is_reshaped(gm, inputs):
        gm.meta["note"] = "runs uncompiled: it gives an input another shape in place, and this backend would know that one alone"
        return gm.forward
    given = _examples(backend, gm, inputs)
    if is_own(backend) or not _is_autocast(gm):
        return backend(gm, given)
    from capture.backends.aot import given_casts  # which imports AOTAutograd
    try:
        return given_casts.compiled(backend, gm, given, tiers.specs(gm, given))
    except Unsupported as error:
        gm.meta["note"] = f"runs uncompiled: this backend would lose the casts that autocast keeps: {error}"
        return gm.forward


def _is_autocast(gm: fx.GraphModule) -> bool:
    """Whether autocast is on where the graph is called, a block lies around it, or it enters autocast itself."""
    return torch._C._is_any_autocast_enabled() or _C.modes().autocast_nesting > 0 or any(
        node.target is torch.set_autocast_enabled for node in nodes_of(gm))


def _is_reshaped(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether an input has other sizes or strides by now than when the call began."""
    placeholders = (node.meta.get("properties") for node in gm.graph.nodes if node.op == "placeholder")
    return any(is_a(value, torch.Tensor) and properties is not None and _has_one_layout(properties)
               and (properties.shape, properties.stride) != (tuple(value.shape), value.stride())
               for properties, value in zip(placeholders, inputs, strict=True))


def _examples(backend: Backend, gm: fx.GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
    """The example inputs. Inputs that have died since the call began are None. A backend that is not ours gets a similar tensor in
    the place of each; None is left where none can be made."""
    if is_own(backend) or all(value is not None for value in inputs):
        return inputs
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    return [_like(node.meta["properties"]) if value is None else value
            for node, value in zip(placeholders, inputs, strict=True)]


def _has_one_layout(properties: _C.TensorProperties) -> bool:
    """Whether a tensor is strided, and of no other shape from call to call."""
    return len(properties.shape) == len(properties.stride) and not properties.open_sizes


def _like(properties: _C.TensorProperties) -> torch.Tensor | None:
    """A tensor of zeros with these properties, or None."""
    if not _has_one_layout(properties):
        return None
    sizes = list(zip(properties.shape, properties.stride, strict=True))
    extent = 1 + sum((size - 1) * stride for size, stride in sizes) if all(size for size, _ in sizes) else 0
    memory = torch.zeros(extent, dtype=properties.dtype, device=properties.device).untyped_storage()
    made = torch.empty(0, dtype=properties.dtype, device=properties.device).set_(memory, 0, properties.shape, properties.stride)
    if issubclass(properties.type, torch.nn.Parameter):
        made = torch.nn.Parameter(made, properties.requires_grad)
    elif properties.requires_grad:
        with torch.enable_grad():
            made = made.requires_grad_() if properties.is_leaf else made.requires_grad_().view_as(made)
    return made if properties.matches(made) else None


def names() -> list[str]:
    """Every name that `lookup` knows, ours and torch's, sorted."""
    return sorted({*OWN, *_dynamo_registry().list_backends(exclude_tags=())} - {FOR_DYNAMO})


def _by_name(name: str, mode: str | None, dynamic: bool | None, options: Mapping[str, Any] | None) -> Backend:
    if name == "native":
        settings = tiers.Options.parse(options)
        sidecar.prepare()
        return functools.partial(tiers.compile_graph, options=settings)
    if name == "eager":
        if options:
            raise ArgumentError(f"backend {name!r} has no options, got {', '.join(map(repr, options))}; "
                                f"leave options out, or choose the backend that they are meant for")
        return eager.compile_graph
    if name not in names():
        raise BackendError(f"unknown backend {name!r}{_near(name, names())}; "
                           f"capture.backends.registry.names() lists all of them")
    if name == "inductor":
        return _traceable(_inductor(mode, dynamic, options))
    return _traceable(_with_keywords(_dynamo_registry().lookup_backend(name), mode, options))


def _traceable(backend: Backend) -> Backend:
    """torch's backends trace the graph anew: one that cannot be traced runs as it is."""
    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return gm.forward if find_obstacle(gm) is not None else backend(gm, example_inputs)
    return functools.update_wrapper(compile_graph, backend, assigned=())


def _inductor(mode: str | None, dynamic: bool | None, options: Mapping[str, Any] | None) -> Backend:
    """torch's own wrapper, which translates mode and options into inductor's configuration patches."""
    for name in {"guard_filter_fn", "use_aoti"}.intersection(options or ()):
        raise ArgumentError(f"option {name!r} is about guards or packages of torch.compile, and capture has neither; leave it "
                            "out")
    try:
        return torch._TorchCompileInductorWrapper(mode or "default", dict(options or {}), dynamic)
    except RuntimeError as error:
        if options is None:
            raise
        known = torch._inductor.config.get_config_copy()
        unknown = [key for key in options if key.replace("-", "_") not in known]
        if unknown:
            raise ArgumentError(f"backend 'inductor' has no option {unknown[0]!r}{_near(unknown[0], known)}") from error
        raise ArgumentError(f"backend 'inductor' cannot use these options: {error}") from error


def _with_keywords(backend: Callable[..., Any], mode: str | None, options: Mapping[str, Any] | None) -> Backend:
    """As torch.compile does: a backend receives `mode` and `options` only when they were given."""
    keywords: dict[str, Any] = {}
    if mode not in (None, "default"):
        keywords["mode"] = mode
    if options:
        keywords["options"] = dict(options)
    return functools.partial(backend, **keywords) if keywords else backend


def _check_tuning(mode: str | None, dynamic: bool | None, options: Mapping[str, Any] | None) -> None:
    if mode is not None and not (isinstance(mode, str) and mode in MODES):
        raise ArgumentError(f"mode must be one of {', '.join(MODES)}, got {shown(mode)}{_near(mode, MODES)}")
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentError(f"options must be a dict, got {described(options)}")
    for option in options or ():
        if not isinstance(option, str):
            raise ArgumentError(f"the name of an option must be a string, got {described(option)}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise ArgumentError(f"dynamic must be True, False or None, got {described(dynamic)}")
    if mode is not None and options is not None:
        raise ArgumentError("either mode or options can be given, not both: a mode is a named set of options")


def _near(name: object, known: Iterable[str]) -> str:
    """`; did you mean …?` for the names that look like `name`, empty when none does."""
    close = difflib.get_close_matches(name, list(known), n=3) if isinstance(name, str) else []
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _dynamo_registry() -> Any:
    """torch's registry of backends, imported when it is first needed: torch._dynamo takes seconds to import."""
    import torch._dynamo.backends.registry
    return torch._dynamo.backends.registry
