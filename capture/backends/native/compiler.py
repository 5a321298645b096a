"""The compile job: one captured graph to an artifact, stage by stage. Runs in the compiling process."""
from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch.fx._lazy_graph_module import _LazyGraphModule

from capture.backends.aot.fakes import fake_inputs, tracing_modes
from capture.backends.aot.symbols import Symbols
from capture.backends.native.accumulation import accumulate_products
from capture.backends.native.artifact import Artifact, Compiled, Frozen
from capture.backends.native.freezing import freeze
from capture.backends.native.fusion import fuse
from capture.backends.native.ir import Program, forget_interned
from capture.backends.native.job import Job
from capture.backends.native.layered_signature import LayeredSignature
from capture.backends.native.layers import ShortJob, without_layers
from capture.backends.native.layouts import follow_layouts, gains, strides_kept, use_channels_last
from capture.backends.native.lowering import lower
from capture.backends.native.memory import lasting, plan_layout, reuse_in_place
from capture.backends.native.patterns import fuse_attention
from capture.backends.native.pixelwise import use_products
from capture.backends.native.plan import Plan, dump, make_plan
from capture.backends.native.products import use_onednn
from capture.backends.native.render import Rendered, render
from capture.backends.native.repetition import NotAlike
from capture.backends.native.rewrite import forget_statements
from capture.backends.native.sampling import samples, trace
from capture.backends.native.serialization import encode
from capture.backends.native.show import show
from capture.backends.native.signature import Result, Unsupported
from capture.backends.native.targets import GPU, PROCESSOR, Build, Target, target_of
from capture.backends.native.transport import NotPortable, encode_graph
from capture.backends.native.verify import verify
from capture.config import DEBUG, STRICT
from capture.operators.transform_levels import within_levels

PutIn = Callable[[Program, Rendered], tuple[Program, Rendered, Sequence[int]]]


def compile_job(job: Job) -> Artifact:
    """Compiles a graph. Raises Unsupported if a compiled graph could not behave as the program does, and ToolchainError if there is
    no compiler for the device's kernels."""
    with contextlib.suppress(NotAlike, Unsupported):        # the whole graph tells the place of what cannot be compiled
        if (artifact := compile_in_layers(job)) is not None:
            return artifact
    return compile_whole(job)


def compile_to_bytes(job: Job) -> bytes:
    """The same artifact as bytes, which `artifact.read` reads."""
    return encode(compile_job(job))


def compile_in_layers(job: Job) -> Artifact | None:
    """Compiles a graph without most of its equal layers, and then puts these in (`layers`). None where there are none. Raises
    NotAlike if they cannot be put in, and as `compile_job`."""
    if target_of(job) is not PROCESSOR or job.options.get("freezing"):
        return None
    shortened = without_layers(job)
    return compile_whole(shortened[-1].job, shortened) if shortened else None


def compile_whole(job: Job, shortened: Sequence[ShortJob] = ()) -> Artifact:
    """As `compile_job`, the whole graph. shortened: how layers were left out of it, which the artifact has all the same."""
    target = target_of(job)
    with concurrent.futures.ThreadPoolExecutor() as pool, job.modes.promoting():
        return _compiled(job, target, pool, pool.submit(target.build, job), shortened)


def _compiled(job: Job, target: Target, pool: concurrent.futures.Executor, build: concurrent.futures.Future[Build],
              shortened: Sequence[ShortJob]) -> Artifact:
    """The stages. The compiler of kernels is looked for while the graph is traced, and works on one graph while the next one is
    fused."""
    graph = _LazyGraphModule(job.graph, copy.deepcopy(job.graph.graph))
    symbols = Symbols()
    specs = symbols.of(job.inputs)
    has_transforms = any(within_levels(graph.graph))

    def use_attention(gm: fx.GraphModule) -> None:
        with enable_python_dispatcher() if has_transforms else contextlib.nullcontext():    # else ATen takes no symbolic sizes
            given = dict(enumerate(fake_inputs(specs))) | samples(specs, 0)
            fuse_attention(gm, list(given.values()))
    with tracing_modes(job.modes):
        if not has_transforms:
            use_attention(graph)
    freezing = job.options.get("freezing") and not job.modes.grad
    # what is frozen is cast when it was written to, and not once in each autocast block
    traced = trace(graph, specs, replace(job.modes, autocast_cache=False) if freezing else job.modes, symbols,
                   use_attention if has_transforms else None)
    frozen = None
    with strides_kept(traced.forward, traced.signature.visible):
        if len(traced.graphs) == 1:
            prologue = freeze(traced.forward, specs, traced.signature.written) if job.options.get("freezing") else None
            if prologue is not None:
                frozen = Frozen(encode_graph(prologue.graph), prologue.frozen, prologue.kept)
            use_channels_last(traced.forward, gains)
        elif use_channels_last(traced.forward, gains, traced.signature.visible):
            results, inputs = traced.forward.graph.output_node().args[0], traced.forward.graph.find_nodes(op="placeholder")
            for gm, saved in zip(traced.graphs[1:], traced.signature.arguments(), strict=True):
                nodes = [(results if isinstance(name, Result) else inputs)[name.index] for name in saved]
                follow_layouts(gm, [node.meta["val"] if isinstance(node, fx.Node) else node for node in nodes])     # sizes are none
        for gm in traced.graphs:
            use_products(gm)
            use_onednn(gm)
            accumulate_products(gm)
    layers = LayeredSignature(shortened, traced.signature, traced.tail, traced.core) if shortened else None
    if layers is not None:
        layers.check_forward(traced.forward)
    finish = [start(traced.forward, pool, build, target, put_in=layers and layers.forward)]
    for number, (gm, dying) in enumerate(zip(traced.graphs[1:], traced.signature.dying(), strict=True)):
        if layers is not None:
            layers.check_backward(number, gm)
        finish.append(start(gm, pool, build, target, dying, True, layers and functools.partial(layers.backward, number)))
    forward, *backward = (wait() for wait in finish)
    if target is GPU and len(traced.graphs) > 1 and all(tangent.device.type == "cpu" for tangent in traced.signature.tangents):
        raise Unsupported("all results with gradients are on the CPU, and autograd would not know the stream of the GPU")
    signature, whole = symbols.closed(traced.signature), layers or traced
    try:
        tail, core = (encode_graph(gm) if gm is not None else None for gm in (whole.tail, whole.core))
    except NotPortable as error:
        raise Unsupported(str(error)) from None
    return Artifact(layers.with_symbols(signature) if layers else signature, forward, tuple(backward), frozen, tail, core)


def start(gm: fx.GraphModule, pool: concurrent.futures.Executor, build: concurrent.futures.Future[Build], target: Target,
          dying: Sequence[int] = (), leaving: bool = False, put_in: PutIn | None = None) -> Callable[[], Compiled]:
    """Lowers and fuses an ATen graph and starts the compiler of its kernels; returns a function that waits for it. dying: arguments
    that only the call holds. leaving: results may be passed on as soon as they are computed. put_in: puts layers in that were left
    out."""
    try:
        program = lower(gm)
        if STRICT:
            verify(program)
        gone = _names(program, dying)
        fused = fuse(program, gone)
        if STRICT:
            verify(fused.program)
        program = reuse_in_place(target.prepare(fused.program))
        program, functions = target.schedule(program, lasting(program, gone, leaving))
        rendered = render(functions, target.dialect)
        library = pool.submit(build.result(), rendered.sources) if functions else None
        if put_in is not None:
            program, rendered, dying = put_in(program, rendered)
            gone = _names(program, dying)
            if STRICT:
                verify(program)
        plan = make_plan(program, rendered, plan_layout(program, gone, leaving))
        log = _log(fused.decisions, program, rendered, plan)
    finally:
        forget_interned()
        forget_statements()
    constants, distinct, device = tuple(program.constants.values()), len(set(rendered.symbols.values())), str(program.device)
    return lambda: Compiled(plan, library.result() if library is not None else None, constants, distinct, log, device)


def _names(program: Program, dying: Sequence[int]) -> list[str]:
    """The buffers of arguments that die."""
    return [name for place in dying if (name := program.inputs[place]) not in program.hosts]


def _log(decisions: Sequence[str], program: Program, rendered: Rendered, plan: Plan) -> str:
    """What CAPTURE_DEBUG shows: 3 the fused program and the decisions that led to it, 4 kernels and plan as well."""
    parts = []
    if DEBUG.value >= 3:
        parts += ["fusion:", *(f"  {decision}" for decision in decisions), show(program)]
    if DEBUG.value >= 4:
        parts += [*rendered.sources, dump(plan)]
    return "\n".join(parts)
