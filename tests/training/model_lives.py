"""Random models that live on between calls, beside eager mode: `python -m tests.training.model_lives --cases N --seed S [--backend
native]`. Layers of all kinds are trained, replaced, cast, parametrized, hooked, tied, saved, loaded and copied."""
from __future__ import annotations

import argparse
import linecache
import random
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

import tests.search_settings  # noqa: F401  # isort: skip
import capture
from capture import config
from tests.aliasing.hunt import Traced
from tests.fuzz.case import fresh_process
from tests.helpers import CaptureError, describe_exception, modes, observed, without_addresses
from tests.snapshot import Snapshot, differences, take

TOLERANCE = 2e-3
# How a layer is made, and how the model uses it: `{l}` is the layer. Tensors are (rows, times, 4).
LAYERS = [
    ("nn.Linear(4, 4)", "h = {l}(h)"), ("nn.Linear(4, 4, bias=False)", "h = h + {l}(h)"),
    ("nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))", "h = h + {l}(h)"),
    ("nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.ReLU(inplace=True), nn.Linear(6, 4))", "h = {l}(h)"),
    ("nn.Conv1d(4, 4, 3, padding=1, groups=2)", "h = {l}(h.mT).mT"),
    ("nn.Conv2d(1, 2, 3, padding=1)", "h = {l}(h[:, None]).mean(1)"),
    ("nn.BatchNorm1d(4, momentum=None)", "h = {l}(h.mT).mT"), ("nn.BatchNorm1d(4)", "h = {l}(h.reshape(-1, 4)).view(h.shape)"),
    ("nn.LayerNorm(4)", "h = {l}(h)"), ("nn.RMSNorm(4)", "h = {l}(h)"), ("nn.GroupNorm(2, 4)", "h = {l}(h.mT).mT"),
    ("nn.InstanceNorm1d(4, affine=True, track_running_stats=True)", "h = {l}(h.mT).mT"),
    ("nn.Embedding(7, 4)", "h = h + {l}(ids)"), ("nn.Embedding(7, 4, padding_idx=1, max_norm=1.0)", "h = h + {l}(ids)"),
    ("nn.Embedding(7, 4, scale_grad_by_freq=True)", "h = h * {l}(ids)"), ("nn.EmbeddingBag(7, 4)", "h = h + {l}(ids)[:, None]"),
    ("nn.GRU(4, 4, batch_first=True)", "h = h + {l}(h)[0]"), ("nn.LSTM(4, 2, 2, True, True, 0.0, True)", "h = {l}(h)[0]"),
    ("nn.MultiheadAttention(4, 2, 0.0, batch_first=True)", "h = h + {l}(h, h, h, need_weights=False)[0]"),
    ("nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)", "h = {l}(h)"),
    ("nn.PReLU(4)", "h = {l}(h.mT).mT"), ("nn.Dropout(0.3)", "h = {l}(h)"), ("nn.Bilinear(4, 4, 4)", "h = {l}(h, h.flip(0))"),
    ("nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))", "h = {l}(h)"),
    ("nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))", "h = {l}(h)"),
    ("nn.utils.spectral_norm(nn.Linear(4, 4))", "h = {l}(h)"),
    ("nn.ParameterList([nn.Parameter(torch.full((4,), k + 0.5)) for k in range(2)])", "for p in {l}: h = h * p"),
    ("nn.ParameterDict({'w': nn.Parameter(torch.ones(4)), 'b': nn.Parameter(torch.zeros(4))})", "h = h * {l}['w'] + {l}['b']"),
    ("nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])", "for layer in {l}: h = layer(h)"),
    ("nn.ModuleDict({'a': nn.Linear(4, 4), 'b': nn.Sigmoid()})", "for key, layer in {l}.items(): h = layer(h)"),
    *((f"{name}()", "h = {l}(h)") for name in ("Average", "Memory", "Codebook", "Experts", "Noise", "Adapter", "Tape", "Counter",
                                               "Table", "Reversed", "Checked", "Standard", "Recorded")),
]
CLASSES = """
class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))
        self.decay = 0.9

    def forward(self, h):
        if self.training:
            self.steps += 1
            with torch.no_grad():
                self.mean = self.mean * self.decay + h.mean((0, 1)) * (1 - self.decay)
        return h - self.mean / (1 - self.decay ** max(len(log), 1))

class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = collections.deque(maxlen=3), nn.Linear(4, 4)

    def forward(self, h):
        seen = torch.stack([*self.rows, h.mean((0, 1))])
        self.rows.append(h.detach().mean((0, 1)))
        return h + self.out(seen).mean(0)

class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(5, 4))
        self.register_buffer("counts", torch.ones(5))

    def forward(self, h):
        flat = h.reshape(-1, 4)
        nearest = (flat[:, None] - self.codes).square().sum(-1).argmin(1)
        if self.training:
            chosen = F.one_hot(nearest, 5).to(flat.dtype)
            self.counts.mul_(0.9).add_(chosen.sum(0).detach(), alpha=0.1)
            self.codes.data.lerp_((chosen.T @ flat.detach()) / (chosen.sum(0)[:, None] + 1), 0.1)
        found = self.codes[nearest].view(h.shape)
        return h + (found - h).detach()

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.used = [0, 0, 0]

    def forward(self, h):
        weights, chosen = self.gate(h).softmax(-1).topk(2)
        result = torch.zeros_like(h)
        for k, expert in enumerate(self.experts):
            self.used[k] += 1
            result = result + expert(h) * (weights * (chosen == k)).sum(-1, keepdim=True)
        return result

class Noise(nn.Module):
    scale = 0.1

    def forward(self, h):
        return h + torch.randn_like(h) * self.scale if self.training else h

class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.down, self.up = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2, False), nn.Linear(2, 4, False)
        self.merged = False

    def forward(self, h):
        return self.base(h) if self.merged else self.base(h) + self.up(self.down(h))

    def merge(self):
        self.base.weight.data += self.up.weight.data @ self.down.weight.data
        self.merged = True

@dataclasses.dataclass
class Trace:
    last: object = None
    total: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(4))
    shapes: list = dataclasses.field(default_factory=list)

class Tape(nn.Module):
    def __init__(self):
        super().__init__()
        self.trace = Trace()

    def forward(self, h):
        self.trace.total.add_(h.detach().sum((0, 1)))
        if self.trace.last is not None and self.trace.last.shape == h.shape:
            h = h + self.trace.last * 0.1
        self.trace.last = h.detach()
        self.trace.shapes = [*self.trace.shapes[-1:], tuple(h.shape)]
        return h

class Counter(nn.Module):
    calls, every = 0, 3

    def forward(self, h):
        type(self).calls += 1
        if type(self).calls % self.every == 0:
            log.append(type(self).calls)
            return h * 2
        return h

class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", None, persistent=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, h):
        if self.table is None or self.table.shape[0] < h.shape[1] or self.table.dtype != h.dtype:
            self.table = torch.linspace(0, 1, h.shape[1], dtype=h.dtype)[:, None]
        return h + self.table[:h.shape[1]] * self.scale

class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, by):
        ctx.by = by
        return h.view_as(h)

    @staticmethod
    def backward(ctx, g):
        return -g * ctx.by, None

class Reversed(nn.Module):
    by = 0.5

    def forward(self, h):
        return Reverse.apply(h, self.by)

class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Tanh())

    def forward(self, h):
        return torch.utils.checkpoint.checkpoint(self.body, h, use_reentrant=False)

class Standard(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, h):
        w = self.weight
        return F.linear(h, (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-3))

class Recorded(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.features = nn.Linear(4, 4), {}
        self.body.register_forward_hook(lambda module, args, out: self.features.update(out=out, on=module.training))

    def forward(self, h):
        self.body(h)
        return self.features["out"].relu() + h

class Shift(nn.Module):
    def forward(self, w):
        return w + 0.1

def doubled(module, args, out):
    return out * 2 if isinstance(out, torch.Tensor) else None

def noted(module, args, out):
    log.append(type(module).__name__)

def entered(module, args):
    return (args[0] * 0.5, *args[1:])

def passed(module, given, grads):
    log.append([None if g is None else tuple(g.shape) for g in given])
"""
# Between calls; `{l}` is a layer, `{o}` another one, `{t}` a tensor of its state, `{p}` a parameter.
EDITS = [
    "model.train(not model.training)", "{l}.train(not {l}.training)", "model.requires_grad_(False)", "model.requires_grad_()",
    "{l}.requires_grad_(not first({l}).requires_grad)", "{p}.requires_grad_(not {p}.requires_grad)",
    "model.load_state_dict(doubled_state(model))", "model.load_state_dict(doubled_state(model), assign=True)",
    "{l}.load_state_dict(doubled_state({l}), assign=True)",
    "model.load_state_dict({{k: v.half() for k, v in doubled_state(model).items()}})",
    "saved = copy.deepcopy(model.state_dict())", "model.load_state_dict(saved, strict=False)", "saved = model.state_dict()",
    "model.double(); x = x.double()", "model.float(); x = x.float()", "model.bfloat16(); x = x.bfloat16()",
    "{l}.to(torch.float64)", "{p}.data = {p}.data * 0.5", "{p}.data.mul_(0.5)", "{p}.data = {p}.data.clone()",
    "{p}.data = {p}.data.t().contiguous().t()", "with torch.no_grad(): {p}.mul_(0.5)",
    "with torch.no_grad(): {p}.copy_(torch.ones_like({p}) * 0.3)", "with torch.no_grad(): {t}.zero_()",
    "{t}.data = {t}.data.clone()", "nn.init.ones_({p})", "{p}.grad = None", "{p}.grad = torch.ones_like({p})",
    "{p}.register_hook(lambda g: g * 2)", "{p}.register_post_accumulate_grad_hook(lambda p: log.append(tuple(p.grad.shape)))",
    "handles.append({l}.register_forward_hook(doubled))", "handles.append({l}.register_forward_hook(noted))",
    "handles.append({l}.register_forward_pre_hook(entered))", "handles.append({l}.register_full_backward_hook(passed))",
    "handles and handles.pop().remove()", "handles.append(model.register_forward_hook(doubled))",
    "{l}.weight = nn.Parameter({l}.weight.detach().clone())", "{l}.weight = {o}.weight", "{l}.bias = None",
    "{l}.bias = {o}.bias", "nn.utils.parametrizations.weight_norm({l})",
    "nn.utils.parametrize.register_parametrization({l}, 'weight', Shift())",
    "nn.utils.parametrize.remove_parametrizations({l}, 'weight')", "nn.utils.parametrizations.orthogonal({l})",
    "nn.utils.prune.l1_unstructured({l}, 'weight', 0.5)", "nn.utils.prune.remove({l}, 'weight')",
    "nn.utils.remove_spectral_norm({l})", "{l} = copy.deepcopy({l})", "{l} = {o}", "{l}, {o} = {o}, {l}", "{l} = nn.Identity()",
    "{l} = nn.Linear(4, 4)", "{l} = nn.Sequential({l}, nn.Tanh())", "{l}.p = 0.6", "{l}.eps = 0.1", "{l}.momentum = 0.5",
    "{l}.momentum = None", "{l}.track_running_stats = False", "{l}.reset_running_stats()", "{l}.reset_parameters()",
    "{l}.decay = 0.5", "{l}.scale = 0.3", "{l}.merge()", "{l}.every = 2", "type({l}).every = 1", "type({l}).calls = 5",
    "type({l}).scale = 0.7", "{l}.by = 2.0", "type({l}).by = 3.0", "{l}.trace = Trace()", "{l}.trace.last = None",
    "{l}.trace = dataclasses.replace({l}.trace, shapes=[])", "{l}.trace.total = torch.ones(4)", "{l}.rows.clear()",
    "{l}.rows.append(torch.ones(4))", "{l}.rows = collections.deque({l}.rows, maxlen=2)", "{l}.table = None",
    "{l}.register_buffer('table', torch.zeros(9, 1))", "{l}.used = [1, 2, 3]", "{l}.experts = {l}.experts[:2]",
    "{l}.features.clear()", "{l}.body._forward_hooks.clear()", "{l}.body = nn.Linear(4, 4)", "{l}.append(nn.Linear(4, 4))",
    "{l}.insert(0, nn.ReLU())", "del {l}[0]", "{l}['c'] = nn.ReLU()", "del {l}['b']", "{l}['w'] = nn.Parameter(torch.zeros(4))",
    "{l}[0] = nn.Parameter(torch.ones(4))", "{l}.mean.fill_(0.5)", "{l}.mean = torch.ones(4)", "{l}.padding_idx = None",
    "{l}.max_norm = 0.5", "{l}.scale_grad_by_freq = True", "{l}.sparse = True", "{l}.padding_mode = 'circular'",
    "{l}.flatten_parameters()", "{l}.activation = F.gelu", "{l}.norm_first = True", "{l}.dropout = 0.0", "{l}.num_heads = 1",
    "{l}.forward = types.MethodType(lambda self, h, *rest, **more: h * 2, {l})", "{l}.__dict__.pop('forward', None)",
    "type(model).forward = patched", "model.forward = types.MethodType(patched, model)",
    "{l}.to(memory_format=torch.channels_last)", "opt = torch.optim.AdamW(model.parameters(), lr=0.02)",
    "opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)", "opt.param_groups[0]['lr'] *= 0.5", "opt.zero_grad()",
    "opt.zero_grad(set_to_none=False)", "opt.state.clear()", "opt.load_state_dict(copy.deepcopy(opt.state_dict()))",
    "opt.param_groups[0]['weight_decay'] = 0.1", "opt.add_param_group({{'params': [nn.Parameter(torch.ones(4))]}})",
    "nn.utils.clip_grad_norm_(model.parameters(), 0.1)", "kept.append(out)", "kept.clear()",
    "model = copy.deepcopy(model); m = compiled(model)", "ids = (ids + 1) % 7", "x = x.detach().requires_grad_()",
    "x = torch.linspace(-1, 1, 24).view(3, 2, 4)", "x, ids = x[:1], ids[:1]",
    "x, ids = torch.cat([x, x]), torch.cat([ids, ids])", "x = x.transpose(0, 1).contiguous().transpose(0, 1)", "x = x.flip(1)",
    "nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()) * 0.5, model.parameters())",
    "nn.utils.fusion.fuse_linear_bn_weights",
    "model.apply(lambda module: module.eval() if isinstance(module, nn.Dropout) else None)",
    "torch.set_grad_enabled(not torch.is_grad_enabled())", "F.dropout.__defaults__"]
CALLS = [
    "out = m(x, ids)", "out = m(x, ids); backward(out)", "out = m(x, ids); backward(out)",
    "out = m(x, ids); backward(out); opt.step(); opt.zero_grad()", "with torch.no_grad(): out = m(x, ids)",
    "with torch.inference_mode(): out = m(x, ids)", "with torch.autocast('cpu', torch.bfloat16): out = m(x, ids)",
    "out = step(x, ids)", "out = step(x, ids)", "out = m(x, ids); opt.step()", "backward(m(x, ids) + m(x, ids))"]
IMPORTS = """
import collections, copy, dataclasses, types
import torch, torch.utils.checkpoint, torch.nn.utils.prune
from torch import nn
from torch.nn import functional as F
log, kept, handles, saved, out = [], [], [], {}, None
x, ids = torch.randn(2, 3, 4), torch.randint(0, 7, (2, 3))
"""
ENDING = """
def patched(self, x, ids):
    return x * 3 + sum(p.sum() for p in self.parameters())

def step(x, ids):
    opt.zero_grad()
    loss = model(x, ids).square().mean()
    loss.backward()
    opt.step()
    return loss

def first(module):
    return next(module.parameters())

def doubled_state(module):
    return {key: value * 2 if value.is_floating_point() else value.clone() for key, value in module.state_dict().items()}

def backward(out):
    weights = torch.arange(out.numel(), dtype=torch.float64).cos().to(out.dtype).view(out.shape)
    out.backward(weights)

model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
step, m = compiled(step), compiled(model)
"""


class Unseen(Traced):
    """Which leaves the numbers of hooks as they were: graphs are traced here, and not in another process."""

    def _traced(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        number = RemovableHandle.next_id
        try:
            return super()._traced(gm, inputs)
        finally:
            RemovableHandle.next_id = number


@dataclass(frozen=True)
class Case:
    """A model, and what happens to it. layers: how each is made and used."""

    number: int
    layers: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]

    @property
    def source(self) -> str:
        made = "\n".join(f"self.l{i} = {made}" for i, (made, _) in enumerate(self.layers))
        used = "\n".join(use.replace("{l}", f"self.l{i}") for i, (_, use) in enumerate(self.layers))
        return "\n".join([IMPORTS, CLASSES, "class Model(nn.Module):", "    def __init__(self):", "        super().__init__()",
                          textwrap.indent(made, " " * 8), "        self.gain = nn.Parameter(torch.ones(4))",
                          "    def forward(self, x, ids):", "        h = x * self.gain",
                          textwrap.indent(used, " " * 8), "        return h", ENDING])

    def __str__(self) -> str:
        return "\n".join([*map(str, self.layers), *self.steps])


def draw(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed} {number}")
    layers = tuple(rng.choice(LAYERS) for _ in range(rng.randint(1, 4)))
    steps = []
    for _ in range(rng.randint(3, 6)):
        steps += [rng.choice(CALLS)] * rng.choice([1, 2, 3])
        for _ in range(rng.choice([0, 2, 3, 4])):       # many do not fit the layer, and raise
            one, other = (f"model.l{rng.randrange(len(layers))}" for _ in range(2))
            steps.append(rng.choice(EDITS).format(
                l=one, o=other, p=f"[*{one}.parameters()][{rng.randrange(3)}]",
                t=f"[*{rng.choice([one, 'model'])}.state_dict(keep_vars=True).values()][{rng.randrange(3)}]"))
    steps += [rng.choice(CALLS)] * 2
    return Case(number, layers, tuple(steps))


def run(case: Case, engine: Callable[[Any], Any]) -> list[tuple[str, Any, Snapshot]]:
    """What can be seen after each step: of those that raise, and the calls, all."""
    file = f"<life {case.number}>"
    linecache.cache[file] = len(case.source), None, case.source.splitlines(True), file
    outcomes = []
    with fresh_process():
        scope: dict[str, Any] = {"__name__": "life", "compiled": engine}
        exec(compile(case.source, file, "exec", dont_inherit=True), scope)
        for step in case.steps:
            error = None
            with observed() as seen:
                try:
                    exec(step, scope)
                except CaptureError:
                    raise
                except Exception as raised:
                    error = raised
            roots = {name: scope[name] for name in ("out", "model", "opt", "kept", "log", "saved", "x")}
            described = describe_exception(error)
            world = {"exception": described and (described["type"], described["args"]),
                     "output": without_addresses(seen.output.getvalue()), **modes()}
            outcomes.append((step, world["exception"], take(roots, world)))
    return outcomes


def problems(case: Case, **arguments: Any) -> list[str]:
    """What differs after the first step that shows something, and how often calls were hits."""
    expected = run(case, lambda function: function)
    made: list[Any] = []

    def engine(function: Any) -> Any:
        made.append(capture.compile(function, **arguments))
        return made[-1]
    try:
        found = run(case, engine)
    except CaptureError as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        HITS.extend(capture.stats(one).hits for one in made)
        capture.reset()
    for number, ((step, theirs, left), (_, ours, right)) in enumerate(zip(expected, found, strict=True)):
        lines = [f"exception: eager {theirs}, captured {ours}"] if theirs != ours else differences(left, right, TOLERANCE)
        if lines:
            again = run(case, lambda function: function)
            if differences(again[number][2], left, TOLERANCE):
                return []           # not deterministic
            return [f"step {number} ({step}): {line}" for line in lines]
    return []


HITS: list[int] = []


def shrunk(case: Case, wrong: Callable[[Case], bool]) -> Case:
    """Without the steps that are not needed, and layers that are not."""
    changed = True
    while changed:
        changed = False
        for name in ("steps", "layers"):
            for place in reversed(range(len(getattr(case, name)))):
                parts: Sequence[Any] = getattr(case, name)
                less = replace(case, **{name: (*parts[:place], *parts[place + 1:])})
                if name == "layers":
                    less = replace(less, steps=tuple(renumbered(step, place) for step in case.steps))
                if wrong(less):
                    case, changed = less, True
    return case


def renumbered(step: str, removed: int) -> str:
    for number in range(removed + 1, 9):
        step = step.replace(f"model.l{number}", f"model.l{number - 1}")
    return step


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.training.model_lives", description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no case is begun")
    parser.add_argument("--backend", choices=("traced", "native", "eager"), default="traced")
    options = parser.parse_args()
    arguments = {"traced": {"backend": Unseen()}, "eager": {"backend": "eager"},
                 "native": {"backend": "native", "options": {"background": False}}}[options.backend]
    end, found, number = time.monotonic() + options.seconds, [], options.first
    torch.set_num_threads(1)
    with config.TRIAL_CALLS.set(0):
        for number in range(options.first, options.first + options.cases):
            if time.monotonic() > end:
                break
            case = draw(options.seed, number)
            lines = problems(case, **arguments)
            if lines:
                found.append(number)
                case = shrunk(case, lambda less: bool(problems(less, **arguments)))
                print(f"\n--- {number}\n{case}", *problems(case, **arguments)[:6], sep="\n", flush=True)
    print(f"\nseed {options.seed}, cases {options.first} to {number}: {len(found)} differ: {found}; {sum(HITS)} hits")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
