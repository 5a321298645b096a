"""Random programs whose results are watched: hooks of tensors, leaves and nodes, `retain_grad`, gradients of results with regard to
other results, passes from some after passes from others."""
from __future__ import annotations

from dataclasses import replace

from tests.aliasing.programs import COMPUTED, INPUTS, PASSES, VIEWS, Case, Vocabulary, make

HOOKS = (
    "{t}.register_hook(note('{t}'))", "{t}.register_hook(note('{t}'))", "{t}.register_hook(lambda g: g * 2)", "{t}.retain_grad()",
    "{t}.retain_grad()", "{t}.register_hook(lambda g: g * 0)", "{t}.register_hook(note('{t}')).remove()",
    "{t}.register_post_accumulate_grad_hook(lambda leaf: note('{t}, accumulated')(leaf.grad))",
    "{t}.grad_fn.register_prehook(lambda grads: note('node of {t}')(grads[{t}.output_nr]))",
    "torch.autograd.graph.register_multi_grad_hook([{t}, {u}], lambda grads: [note('{t} and {u}')(g) for g in grads] and None)",
    "torch.autograd.graph.register_multi_grad_hook([{t}, {u}], note('any of {t} and {u}'), mode='any')",
    "{t}.mul_(3)", "{t}.detach().add_(2)", "{t}.data.mul_(3)", "{t}.grad = None", "q = f(*a)")
MORE_PASSES = (
    "g = torch.autograd.grad({t}.sin().sum(), [{u}], retain_graph=True, allow_unused=True)",
    "g = torch.autograd.grad({t}.sin().sum(), [v for v in (*r, *a) if v.requires_grad], retain_graph=True, allow_unused=True)",
    "g = torch.autograd.grad({t}.sin().sum(), {u}, retain_graph=True)",
    "{t}.sin().sum().backward(inputs=[{u}], retain_graph=True)", "{t}.sin().sum().backward(inputs=[{u}])",
    "{t}.sin().sum().backward(retain_graph=True)", "torch.autograd.backward([{t}.sum(), {u}.sin().sum()], retain_graph=True)",
    "torch.autograd.backward([{t}.sum(), {u}.sin().sum()])", "({t}.sin().sum() * {u}.sin().sum()).backward(retain_graph=True)",
    "sum(v.sin().sum() for v in r if v.requires_grad).backward(retain_graph=True)",
    "g = torch.autograd.grad({t}.sin().sum(), [v for v in a if v.requires_grad], create_graph=True, allow_unused=True)",
    "g = torch.autograd.grad(sum(v.sin().sum() for v in g if v is not None), [v for v in a if v.requires_grad], "
    "allow_unused=True, retain_graph=True)",
    "in_thread(lambda: {t}.sin().sum().backward(retain_graph=True))")
WATCHED = tuple(text for text in INPUTS if "requires_grad" in text or "Parameter" in text)
COMPUTING = tuple(text for text in COMPUTED if "detach" not in text and "[{a}[0] > 0]" not in text)
WORDS = Vocabulary(
    inputs=WATCHED, usual_inputs=len(WATCHED), computed=COMPUTING, views=tuple(text for text in VIEWS if "detach" not in text),
    edits=HOOKS, usual_edits=len(HOOKS), passes=(*MORE_PASSES, *MORE_PASSES, *PASSES),
    steps=(3, 8), returned=(3, 6), planned=(3, 9))


def make_hooked(seed: int) -> Case:
    """The case with this number."""
    return make(seed, WORDS)


# --- numbers that change from call to call, and gradients that are infinite or NaN

SCALED = (
    "{a} * S", "S * {a} + {b}", "{a} + S * {b}", "{a} / S", "S / {a}", "{a} - S", "({a} * S).sin()", "{a}.clamp(min=S)",
    "{a}.add({b}, alpha=S)", "torch.where({a} > S, {a}, {b})", "torch.lerp({a}, {b}, S)", "{a}.mul(S).log()",
    "({a} * 0).sqrt() * S", "{a} / ({b} * 0)", "({a} - {a}).log() + S", "{a} * N", "F.leaky_relu({a}, abs(S))", "{a}.pow(S)",
    "({a} * S).exp().log()",
    "{a}.masked_fill({b} > 0, S)", "({a}.relu() * S).sqrt()", "torch.addcmul({a}, {b}, {b}, value=S)", "{a}.sum() * S",
    "({a} * S).sum().log()", "{a}.mean().mul(N).sqrt()")
NUMBERED = replace(
    WORDS, computed=(*SCALED, *SCALED, *COMPUTING), views=(*SCALED, "{a}.view(-1)", "{a}[1:]", "{a}.t()"),
    edits=(*HOOKS, *["{t}.data.mul_(3)"] * 4), passes=(*MORE_PASSES, *PASSES), steps=(2, 6), planned=(2, 6))


def make_numbered(seed: int) -> Case:
    """The case with this number."""
    return make(seed, NUMBERED)
