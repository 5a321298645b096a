"""Every language model of transformers that can be made small, beside eager mode, with several lengths: `python -m
tests.models.architectures [--every N --first K] [--training] [--native]`. Weights and tokens are random."""
from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

import tests.search_settings  # noqa: F401  # isort: skip
import capture
from tests import helpers
from tests.backends.native.end_to_end import engine
from tests.helpers import Call

CLASSES: dict[str, Any] = {**MODEL_FOR_MASKED_LM_MAPPING_NAMES, **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}    # by architecture
WORDS = 99
SMALL = {
    "vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "dim", "emb_dim"), 32),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
                     "num_decoder_layers", "num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads",
                     "num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64), **dict.fromkeys(("head_dim", "d_kv"), 8),
    "moe_intermediate_size": 16}
LARGEST = 5_000_000         # parameters of what counts as small
SECONDS = 300               # for one model


def small_model(name: str) -> nn.Module:
    """A model of an architecture, of a few thousand parameters where its configuration can be told so. Raises what eager mode, or
    the configuration, raises."""
    configuration = CONFIG_MAPPING[name]
    known = configuration().to_dict()
    given = {field: value for field, value in SMALL.items() if field in known}
    model: nn.Module = getattr(transformers, CLASSES[name])(configuration(**given))
    if sum(parameter.numel() for parameter in model.parameters()) > LARGEST:
        raise ValueError(f"{name} cannot be made small")
    return model


def tokens(rows: int, length: int, training: bool) -> Call:
    """A call with random tokens, and labels for training."""
    def arguments(_: nn.Module) -> tuple[tuple, dict[str, Any]]:
        ids = torch.randint(3, WORDS, (rows, length))
        return (), {"input_ids": ids, **({"labels": ids} if training else {})}
    return Call(arguments)


def compare(name: str, training: bool, native: bool) -> Any:
    """Runs a model with two lengths and numbers of rows, and the first ones again; returns its statistics. Raises AssertionError
    where anything differs from eager mode."""
    check: Callable[..., Any] = engine.check if native else helpers.check
    steps = [tokens(rows, length, training) for rows, length in ((2, 7), (2, 7), (3, 9), (3, 11), (2, 7))]
    options: dict[str, Any] = {"tolerance": 1e-3} if native else {}
    with torch.set_grad_enabled(training):
        return check(lambda: small_model(name).train(training), *steps, captures=None, fullgraph=False, backward=training,
                     **options)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in what takes longer."""
    def end(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")
    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models.architectures", description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--native", action="store_true", help="with kernels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts = {"equal": 0, "different": 0, "not made": 0}
    for name in sorted(CLASSES)[options.first::options.every]:
        try:
            with at_most(SECONDS):
                small_model(name)(input_ids=torch.randint(3, WORDS, (2, 7)))
        except Exception as error:
            counts["not made"] += 1
            print(f"{name}: not made: {type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}", flush=True)
            continue
        try:
            with at_most(SECONDS):
                stats = compare(name, options.training, options.native)
        except Exception as error:
            counts["different"] += 1
            print(f"{name}: DIFFERENT\n{type(error).__name__}: {str(error)[:2000]}", flush=True)
        else:
            counts["equal"] += 1
            print(f"{name}: equal; {stats.captures} captures, {stats.breaks} breaks, {stats.compiled} of {stats.graphs} graphs "
                  f"compiled {stats.compile_errors[:1]}", flush=True)
        capture.reset()
    print(counts)
    return bool(counts["different"])


if __name__ == "__main__":
    sys.exit(main())
