"""`flex_attention`, and what makes masks for it, are part of the graph: results are eager mode's, uncompiled and as kernels."""
from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import (
    AuxRequest,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    noop_mask,
    or_masks,
)

import capture
from tests.helpers import call, call_with
from tests.language.flex_attention.cases import LENGTH, block_mask, capped, causal, earlier, one_head, qkv, relative, window

# -- score and mask functions ------------------------------------------------------------------------------------------

MASKS = {"none": None, "causal": causal, "earlier": earlier, "window": and_masks(causal, window),
         "prefix": or_masks(causal, window), "head": one_head, "noop": noop_mask}


@pytest.mark.parametrize("name", MASKS)
def test_masks(check, name):
    def make():
        mask = MASKS[name] and block_mask(MASKS[name], heads=4 if name == "head" else None)

        def f(q, k, v):
            return flex_attention(q, k, v, block_mask=mask) * 2
        return f
    check(make, call(*qkv()), call(*qkv(seed=1)), call(*qkv(seed=2)))


def alibi(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def capped_by(parameter):
    return lambda score, b, h, q_idx, kv_idx: parameter[h] * torch.tanh(score / parameter[h])


def by_first(table):
    return lambda score, b, h, q_idx, kv_idx: score * table[0]


def branching(table):
    return lambda score, b, h, q_idx, kv_idx: torch.where(q_idx % 2 == 0, score, score + table[q_idx % 3, 1])


SCORES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "alibi": (alibi, (4,)), "relative": (relative, (4, 2 * LENGTH)), "capped": (capped_by, (4,)), "first": (by_first, (4,)),
    "branching": (branching, (3, 2))}


@pytest.mark.parametrize("mask", [None, earlier])
@pytest.mark.parametrize("name", SCORES)
def test_score_functions_with_tensors_from_outside(check, name, mask):
    def make():
        score_of, shape = SCORES[name]
        table = torch.linspace(0.5, 1.5, torch.Size(shape).numel()).view(shape).requires_grad_()
        masked = mask and block_mask(mask)

        def f(q, k, v):
            return flex_attention(q, k, v, score_mod=score_of(table), block_mask=masked).sin()
        return f, table
    calls = [call(*qkv(seed=seed)) for seed in range(3)]
    check(make, *calls, backward=True, tolerance=1e-3)


@pytest.mark.parametrize("name", [None, *SCORES])
def test_gradients_of_queries_keys_and_values(check, differentiable, name):
    def make():
        score_of, shape = SCORES[name] if name else (lambda table: None, (4,))
        table = torch.linspace(0.5, 1.5, torch.Size(shape).numel()).view(shape).requires_grad_()
        masked = block_mask(earlier)

        def f(q, k, v):
            q, k, v = q.sin(), k.sin(), v.sin()
            out, aux = flex_attention(q, k, v, score_of(table), masked, enable_gqa=True, return_aux=AuxRequest(lse=True))
            return out + torch.where(torch.isinf(aux.lse), 0, aux.lse).unsqueeze(-1)
        return f, table
    calls = [call(*[x.requires_grad_() for x in qkv(key_heads=2, seed=seed)]) for seed in range(3)]
    check(make, *calls, backward=True, tolerance=1e-3)


def test_a_derivative_that_is_infinite_where_scores_are_masked(check, differentiable):
    def make():
        masked = block_mask(causal)

        def root(score, b, h, q_idx, kv_idx):
            return torch.sqrt(score.square() * (q_idx - kv_idx + 1).clamp(min=0))

        def f(q, k, v):
            return flex_attention(q * 2, k, v, root, masked)
        return f
    check(make, *[call(*[x.requires_grad_() for x in qkv(seed=seed)]) for seed in range(3)], backward=True, tolerance=1e-3)


def test_heads_that_share_keys_and_a_scale(check):
    def make():
        masked = block_mask(causal, length=LENGTH, keys=32)

        def f(q, k, v, scale):
            return flex_attention(q, k, v, capped, masked, scale, True)
        return f
    given = [call(*qkv(key_heads=2, keys=32, seed=seed), 0.3) for seed in range(3)]
    check(make, *given)


def test_batches_that_share_keys(check):
    def make():
        masked = block_mask(causal, batch=2)

        def f(q, k, v):
            return flex_attention(q, k[:1], v[:1], block_mask=masked)
        return f
    check(make, call(*qkv()), call(*qkv(seed=1)), call(*qkv(seed=2)))


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2)])
def test_results_lie_in_memory_as_queries_do(check, order):
    def make():
        masked = block_mask(causal)

        def f(q, k, v):
            q = q.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])
            return flex_attention(q, k, v, block_mask=masked)
        return f
    check(make, call(*qkv()), call(*qkv(seed=1)), call(*qkv(seed=2)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(check, dtype):
    def make():
        masked = block_mask(causal)

        def f(q, k, v):
            return flex_attention(q, k, v, capped, masked)
        return f
    check(make, *[call(*qkv(seed=seed, dtype=dtype)) for seed in range(3)], tolerance=1e-6 if dtype is torch.float64 else 2e-2)


def test_statistics(check):
    def make():
        masked = block_mask(earlier)

        def f(q, k, v):
            return flex_attention(q, k, v, capped, masked, return_aux=AuxRequest(lse=True))
        return f
    check(make, call(*qkv()), call(*qkv(seed=1)), call(*qkv(seed=2)))


def test_statistics_asked_for_in_the_deprecated_way(check, monkeypatch):
    monkeypatch.setattr(flex, "_WARNINGS_SHOWN", {*flex._WARNINGS_SHOWN, "deprecated_return_lse"})

    def make():
        return lambda q, k, v: flex_attention(q, k, v, return_lse=True)
    check(make, call(*qkv()), call(*qkv(seed=1)), call(*qkv(seed=2)))


# -- masks -------------------------------------------------------------------------------------------------------------

def test_a_mask_by_documents_that_is_made_in_the_call(check):
    def make():
        def f(q, k, v, ids):
            def document(b, h, q_idx, kv_idx):
                return ids[b, q_idx] == ids[b, kv_idx]
            mask = create_block_mask(and_masks(causal, document), 2, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=16)
            return flex_attention(q, k, v, capped, mask)
        return f
    calls = [call(*qkv(seed=seed), (torch.arange(LENGTH).expand(2, LENGTH) // size).contiguous()) for seed, size in
             enumerate((7, 5, 16))]
    check(make, *calls)


def test_what_a_mask_consists_of(check):
    def make():
        def f(ids):
            def document(b, h, q_idx, kv_idx):
                return ids[q_idx] == ids[kv_idx]
            mask = create_block_mask(document, 1, 1, 40, LENGTH, device="cpu", BLOCK_SIZE=(8, 16))
            smaller = mask._adjust(24, 32)
            return (mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices, mask.q_indices,
                    mask.to_dense(), mask[0].kv_indices, smaller.kv_indices, mask.shape, mask.BLOCK_SIZE, smaller.seq_lengths)
        return f
    check(make, *[call(torch.arange(LENGTH) // size) for size in (7, 16, 5)])


def test_masks_as_tensors(check):
    def make():
        bias = torch.linspace(-1, 1, LENGTH)

        def score(score, b, h, q_idx, kv_idx):
            return torch.where(bias[kv_idx] > 0, score, -float("inf"))

        def f(x):
            mask = create_mask(or_masks(causal, window), 2, 3, 16, LENGTH, device="cpu")
            return mask, create_mask(score, 1, 1, 8, 8, "cpu"), x + 1
        return f
    check(make, call(torch.ones(2)), call(torch.ones(2)), call(torch.zeros(2)))


# -- what changes ------------------------------------------------------------------------------------------------------

def test_what_functions_read_is_guarded(check):
    def make():
        state = SimpleNamespace(ids=torch.arange(LENGTH) // 9, limit=8, slope=torch.ones(4))

        def near(b, h, q_idx, kv_idx):
            return (state.ids[q_idx] == state.ids[kv_idx]) | ((q_idx - kv_idx).abs() < state.limit)

        def score(score, b, h, q_idx, kv_idx):
            return score + state.slope[h]
        state.score = score

        def f(q, k, v):
            return flex_attention(q, k, v, state.score, block_mask(near))
        return f, state

    def write(state):
        state.ids.copy_(torch.arange(LENGTH) // 5)

    def replace(state):
        state.slope = torch.linspace(0, 1, 4)

    def number(state):
        state.limit = 3

    def function(state):
        state.score = capped

    def none(state):
        state.score = None
    given = [call(*qkv(seed=seed)) for seed in range(2)]
    check(make, *given, write, *given, replace, *given, number, *given, function, *given, none, *given, captures=4)


def test_masks_that_are_replaced_and_changed(check):
    def make():
        state = SimpleNamespace(mask=block_mask(causal))
        return lambda q, k, v: flex_attention(q, k, v, block_mask=state.mask), state

    def replace(state):
        state.mask = block_mask(window)

    def other_function(state):
        state.mask.mask_mod = earlier

    def none(state):
        state.mask = None
    given = [call(*qkv(seed=seed)) for seed in range(2)]
    check(make, *given, replace, *given, other_function, *given, none, *given, captures=4)


def test_masks_as_arguments_with_other_closures(check):
    def make():
        def f(q, k, v, mask):
            return flex_attention(q, k, v, block_mask=mask)

        def by(ids):
            return block_mask(lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx])
        return f, [by(torch.arange(LENGTH) // size) for size in (3, 7, 20)]
    check(make, *[call_with(lambda state, place=place: (*qkv(seed=place), state[place])) for place in (0, 1, 2, 0)])


@pytest.mark.parametrize("lengths", [(32, 48, 40, 64, 24)])
def test_lengths_that_vary(check, lengths):
    def make():
        slopes = torch.linspace(0, 1, 4)

        def f(q, k, v):
            mask = create_block_mask(causal, None, None, q.size(2), k.size(2), device="cpu", BLOCK_SIZE=128)
            return flex_attention(q, k, v, alibi(slopes), mask)
        return f
    check(make, *[call(*qkv(length=length, keys=length)) for length in lengths], captures=2, unused=1)


# -- programs ----------------------------------------------------------------------------------------------------------

class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(32), nn.Linear(32, 32 + 2 * 16), nn.Linear(32, 32)
        self.cap = nn.Parameter(torch.full((4,), 3.0))

    def score(self, score, b, h, q_idx, kv_idx):
        return self.cap[h] * torch.tanh(score / self.cap[h])

    def forward(self, x, mask):
        q, k, v = self.project(self.norm(x)).split((32, 16, 16), -1)
        q, k, v = (t.unflatten(-1, (-1, 8)).transpose(1, 2) for t in (q, k, v))
        attended = flex_attention(q, k, v, self.score, mask, enable_gqa=True)
        return x + self.out(attended.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("training", [False, True])
def test_a_block_of_a_transformer(check, differentiable, training):
    def make():
        torch.manual_seed(0)
        block, mask = Block().train(training), block_mask(causal)
        for parameter in block.parameters():
            parameter._dynamo_static_input_type = "unguarded"       # Dynamo, which eager mode runs here, leaves such marks

        def f(x):
            with torch.set_grad_enabled(training):
                return block(x, mask)
        return f, list(block.parameters())
    check(make, *[call(torch.randn(2, LENGTH, 32)) for _ in range(3)], backward=training, tolerance=1e-3)


# -- errors, warnings --------------------------------------------------------------------------------------------------

def test_arguments_that_do_not_fit(check):
    def make():
        masked = block_mask(causal)

        def f(q, k, v, **named):
            return flex_attention(q, k, v, block_mask=masked, **named)
        return f
    short, grouped, leaf = qkv(length=40), qkv(key_heads=2), [x.requires_grad_() for x in qkv()]
    check(make, call(*qkv()), call(*short), call(*grouped), call(*leaf), call(*qkv(), return_lse=True, return_aux=AuxRequest()),
          call(*qkv(), kernel_options={"BACKEND": "other"}), call(*qkv(), return_aux=AuxRequest(max_scores=True)),
          call(qkv()[0][0], *qkv()[1:]), captures=None)


def of_a_decision(score, b, h, q_idx, kv_idx):
    return score if score > 0 else score * 2


def of_a_number(score, b, h, q_idx, kv_idx):
    return 1.0


def of_random_numbers(score, b, h, q_idx, kv_idx):
    return score + torch.randn(())


def of_another_shape(score, b, h, q_idx, kv_idx):
    return score.expand(3)


def raising(score, b, h, q_idx, kv_idx):
    raise ValueError("not this score")


@pytest.mark.parametrize("score", [of_a_decision, of_a_number, of_random_numbers, of_another_shape, raising])
def test_functions_that_torch_refuses(score):
    """The call is torch's own then, and raises what it raises in eager mode."""
    def kind(program):
        with pytest.raises(Exception) as raised:
            program(*qkv())
        return type(raised.value), str(raised.value).splitlines()[0]

    def f(q, k, v):
        return flex_attention(q, k, v, score)
    compiled = capture.compile(f, backend="eager")
    assert kind(compiled) == kind(f) == kind(compiled)


def test_gradients_need_the_blocks_of_queries(check):
    def make():
        bias = torch.ones(4, requires_grad=True)
        mask = block_mask(causal)
        mask.q_num_blocks = mask.q_indices = mask.full_q_num_blocks = mask.full_q_indices = None
        return lambda q, k, v: flex_attention(q, k, v, alibi(bias), mask), bias
    check(make, call(*qkv()), call(*qkv()), captures=None, fullgraph=False)


def test_the_operator_called_by_the_program(check):
    """As graphs call it that torch has traced; a function that raises in it is the operator's own matter."""
    def make():
        mask, log = block_mask(causal), SimpleNamespace(raises=False)

        def score(s, b, h, q_idx, kv_idx):
            if log.raises:
                raise ValueError("as told")
            return s + (q_idx - kv_idx)

        def f(q, k, v):
            try:
                return torch.ops.higher_order.flex_attention(q, k, v, score, mask.as_tuple(), 0.25, {})[0]
            except ValueError:
                return q
        return f, log
    check(make, call(*qkv()), call(*qkv(seed=1)), lambda log: setattr(log, "raises", True), call(*qkv()), call(*qkv()),
          captures=None, fullgraph=False)


def test_no_warning_sends_users_to_torch_compile(monkeypatch):
    monkeypatch.setattr(flex, "_WARNINGS_SHOWN", set())
    compiled = capture.compile(lambda q, k, v: flex_attention(q, k, v, capped), backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            compiled(*qkv(seed=seed))
    assert not flex._WARNINGS_SHOWN


def test_neither_captures_nor_hits_call_dynamo(monkeypatch):
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("torch.compile was called")
    monkeypatch.setattr(torch, "compile", refuse)
    mask = block_mask(causal)
    compiled = capture.compile(lambda q, k, v: flex_attention(q, k, v, capped, mask), backend="eager", fullgraph=True)
    for seed in range(3):
        compiled(*qkv(seed=seed))
    assert capture.stats(compiled).hits == 2


def test_torch_compile_with_our_backend():
    mask, slopes = block_mask(causal), torch.linspace(0, 1, 4)

    def f(q, k, v):
        return flex_attention(q, k, v, alibi(slopes), mask)
    compiled = torch.compile(f, backend="capture", fullgraph=True)
    for seed in range(3):
        torch.testing.assert_close(compiled(*qkv(seed=seed)), f(*qkv(seed=seed)), rtol=1e-4, atol=1e-4)


def test_one_that_was_left_to_torch_does_not_stay_there():
    """A call that is abandoned, in one function, does not change how others are captured."""
    with pytest.raises(Exception, match="Data-dependent"):
        capture.compile(lambda q, k, v: flex_attention(q, k, v, of_a_decision), backend="eager")(*qkv())
    assert not torch.compiler.is_dynamo_compiling()
    compiled = capture.compile(lambda q, k, v: flex_attention(q, k, v, capped), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*qkv()), flex_attention(*qkv(), capped))


def test_the_first_call_of_a_process_is_captured():
    program = """
import sys, torch, capture
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
def f(q):
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 32, 32, device="cpu")
    return flex_attention(q, q, q, block_mask=mask)
assert "torch._dynamo" not in sys.modules
compiled = capture.compile(f, backend="eager", fullgraph=True)
for _ in range(2):
    compiled(torch.ones(1, 1, 32, 8))
assert (capture.stats(compiled).captures, capture.stats(compiled).hits) == (1, 1), capture.stats(compiled)
assert "torch._inductor.ir" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("training", [False, True])
def test_a_model_of_transformers(differentiable, training):
    """transformers would compile masks and attention by torch.compile, call by call; Inductor's kernels read memory that nobody has
    written. So this compares with the same model that writes attention out."""
    transformers = pytest.importorskip("transformers")
    config = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  vocab_size=50, max_position_embeddings=128)
    models = []
    for implementation in ("eager", "flex_attention"):
        torch.manual_seed(0)
        made = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**config), attn_implementation=implementation)
        models.append(made.train(training))
    expected, model = models

    def step(model, ids):
        with torch.set_grad_enabled(training):
            return model(ids, labels=ids, use_cache=False)[:2]
    compiled = capture.compile(functools.partial(step, model), backend="eager", fullgraph=True)
    for _ in range(3):
        ids = torch.randint(0, 50, (2, 40))
        for found, wanted in zip(compiled(ids), step(expected, ids)):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.graphs, stats.breaks) == (1, 1, 0), stats


def test_masks_that_torch_would_compile():
    def make():
        return lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(
            causal, None, None, LENGTH, LENGTH, "cpu", 128, True))
    compiled = capture.compile(make(), backend="eager", fullgraph=True)
    expected = flex_attention(*qkv(), block_mask=block_mask(causal))
    for _ in range(3):
        torch.testing.assert_close(compiled(*qkv()), expected)
