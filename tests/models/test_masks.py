"""Padding masks: `transformers` looks at their values in Python (`mask.all()`), so one graph is not always possible."""
from __future__ import annotations

import pytest
import torch

import capture
from tests.helpers import Call, check
from tests.models.zoo import TEXT, TRANSFORMER, ZOO, tokens


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_an_attention_mask(name: str, padded: bool) -> None:
    def arguments(module: torch.nn.Module) -> tuple[tuple, dict]:
        ids, mask = tokens(2), torch.ones(2, 7, dtype=torch.long)
        if padded:
            mask[1, 5:] = 0
        inputs = {"input_ids": ids, "attention_mask": mask}
        return (), inputs | ({"decoder_input_ids": tokens(2, 5)} if name == "t5" else {})
    with torch.no_grad():
        check(lambda: ZOO[name].build()[0].eval(), Call(arguments), Call(arguments), captures=None, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_padding_that_an_installed_package_looks_for(backend: str) -> None:
    """`pad_token_id in input_ids[:, [-1, 0]]`, asked for a warning: a guard asks it, and each answer is captured once."""
    from transformers import DebertaConfig, DebertaModel
    module = DebertaModel(DebertaConfig(**TRANSFORMER, **TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"])).eval()
    options = {"options": {"background": False}} if backend == "native" else {}
    compiled = capture.compile(module, fullgraph=True, backend=backend, **options)
    for number in range(6):
        ids = tokens(2).clamp(min=1)
        if number == 3:
            ids[:, -1] = 0
        with torch.no_grad():
            assert torch.allclose(compiled(ids).last_hidden_state, module(ids).last_hidden_state, atol=1e-5)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.native_calls, stats.breaks) == (2, 0, 0)
