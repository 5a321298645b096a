"""Padding masks: `transformers` looks at their values in Python (`mask.all()`), so one graph is not always possible."""
from __future__ import annotations

import pytest
import torch

from tests.helpers import Call, check
from tests.models.zoo import ZOO, tokens


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
