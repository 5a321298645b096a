"""`generate()` of `transformers` with prompts and results of all lengths: a few captures of the model, then hits alone, and eager
mode's tokens."""
from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

import capture

pytestmark = pytest.mark.usefixtures("open_sizes", "kernels_at_once")
WIDTH = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32, "num_key_value_heads": 2}
TEXT = {"vocab_size": 99, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LENGTHS = (5, 6), (9, 12), (7, 3), (6, 9)          # of prompts, and of what follows
HOW: dict[str, dict[str, Any]] = {"greedy": {}, "sampling": {"do_sample": True}, "beams": {"num_beams": 3}}
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}}


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=99, n_positions=128, n_embd=32, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2, pad_token_id=0))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**WIDTH, **TEXT))


def t5() -> Any:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=4, decoder_start_token_id=0))


def mistral() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**WIDTH, **TEXT, sliding_window=8))


def gemma2() -> Any:
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**WIDTH, **TEXT, head_dim=8, sliding_window=8))


def tokens(program: Any, prompt: torch.Tensor, count: int, **how: Any) -> torch.Tensor:
    """What a model says to a prompt: tokens, and none that stands for nothing, as which the model itself would warn of."""
    torch.manual_seed(1)
    return program.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count,
                            suppress_tokens=[0], **how)


@pytest.mark.parametrize(("make", "how", "most", "options"), [
    (gpt2, "greedy", 3, NATIVE), (llama, "sampling", 3, {"backend": "eager"}), (llama, "beams", 3, {"backend": "eager"}),
    (t5, "greedy", 3, {"backend": "eager"}), (gemma2, "sampling", 4, {"backend": "eager"})])
def test_generate(make: Any, how: str, most: int, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    eager = make().eval()
    model = copy.deepcopy(eager)
    model.forward = capture.compile(model.forward, **options)
    before = 0
    for length, count in LENGTHS:
        prompt = torch.randint(3, 99, (1, length))
        assert torch.equal(tokens(eager, prompt, count, **HOW[how]), tokens(model, prompt, count, **HOW[how]))
        stats = capture.stats(model.forward)
        hits, before = stats.hits - before, stats.hits
    assert stats.captures <= most and not stats.native_calls and not stats.breaks, stats.misses
    assert hits == count                            # of the last one
    assert options != NATIVE or stats.compiled == 2 and not stats.compile_errors       # the first prompt's never came again


# The model, (rows, length of the prompt, what follows) of each call, a kind of cache, and how many captures there may be: of one
# row and of several; of prompts and what follows on both sides of a window, for which the model itself has several branches.
MIXED: dict[str, tuple[Any, tuple[tuple[int, int, int], ...], dict[str, Any], int]] = {
    "a cache of one size": (llama, ((1, 5, 4), (1, 9, 6), (1, 7, 3), (1, 6, 5)), {"cache_implementation": "static"}, 3),
    "rows": (gpt2, ((1, 5, 4), (3, 7, 4), (1, 9, 6), (3, 4, 5), (1, 7, 3), (2, 6, 2)), {}, 4),
    "rows, several first": (gpt2, ((2, 5, 4), (1, 9, 6), (3, 7, 3), (1, 4, 5), (2, 8, 4)), {}, 3),
    "rows, several first, rotated": (llama, ((2, 5, 4), (1, 9, 6), (3, 7, 3), (1, 4, 5), (2, 8, 4)), {}, 3),
    "rows of what is encoded, several first": (t5, ((2, 5, 4), (1, 9, 6), (3, 7, 3), (1, 4, 5), (2, 8, 4)), {}, 4),
    "rows and window, several first": (
        mistral, ((2, 5, 6), (1, 12, 10), (3, 7, 3), (1, 4, 12), (2, 13, 4), (3, 9, 7), (1, 9, 5)), {}, 8),
    "rows and a cache of one size": (
        llama, ((1, 5, 4), (1, 9, 6), (3, 7, 4), (1, 6, 5), (2, 4, 3)), {"cache_implementation": "static"}, 5),
    "window": (mistral, ((1, 5, 6), (1, 9, 6), (1, 7, 3), (1, 6, 5), (1, 13, 3), (1, 4, 6)), {}, 6),
    "rows and window": (mistral, ((1, 5, 6), (3, 9, 12), (1, 7, 3), (2, 6, 9), (4, 13, 4), (1, 4, 7), (2, 9, 5)), {}, 10)}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_calls(name: str) -> None:
    make, calls, how, most = MIXED[name]
    torch.manual_seed(0)
    eager = make().eval()
    model = copy.deepcopy(eager)
    model.forward = capture.compile(model.forward, backend="eager")
    for rows, length, count in calls:
        prompt = torch.randint(3, 99, (rows, length))
        assert torch.equal(tokens(eager, prompt, count, **how), tokens(model, prompt, count, **how))
    stats = capture.stats(model.forward)
    assert stats.captures <= most and not stats.native_calls and not stats.breaks, stats.misses
    if name == "window":
        branches_of_the_model(model)


@pytest.mark.parametrize(("make", "how"), [(mistral, {"cache_implementation": "static"}), (gemma2, {})])
def test_further_captures_are_branches_of_the_model(make: Any, how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    model.forward = capture.compile(model.forward, backend="eager")
    for rows, length, count in MIXED["window"][1]:
        tokens(model, torch.randint(3, 99, (rows, length)), count, **how)
    branches_of_the_model(model)


def branches_of_the_model(model: Any) -> None:
    """Besides sizes, nothing but an `if` of the model's own, by window and length, has had calls captured again."""
    changes = [change for frame in capture.report(model.forward).frames for recapture in frame.recaptures
               for change in recapture.changes if change.kind != "TENSOR"]
    places = [change.place for change in changes if change.place is not None]
    assert places and len(places) == len(changes) and all(place.text.startswith(("if ", "elif ")) for place in places), changes
    assert all("transformers" in place.file for place in places)
