"""Nests that look at indices of which the program reads only a part, and where there need be none."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.backends.native.lowering.checks import check, nests

X, PLACES = torch.rand(6, 4), torch.tensor([2, 0, 5, 1])

READ = {
    "whole": lambda x, i: x[i] * 2, "of each row a part": lambda x, i: x[i][:, :2] * 2, "turned": lambda x, i: x[i].t().flip(0) + 1,
    "flat": lambda x, i: x[i].reshape(-1) + 1, "regrouped": lambda x, i: x[i].view(2, 2, 4).transpose(0, 1).reshape(4, 4) + 1,
    "sums": lambda x, i: x[i].sum(0), "whole, and a part": lambda x, i: (y := x[i])[1:].sum(0) + y.sum(0),
    "repeated": lambda x, i: x[i][None].expand(3, 4, 4) + 1, "padded": lambda x, i: F.pad(x[i], (0, 0, 1, 1)) + 1,
    "two": lambda x, i: x[i[:, None], i.clamp(max=3)[None]] + 1,
    "rotated": lambda x, i: torch.cat([x[i][:, 2:], x[i][:, :2]], 1) * x[i],
    "loss": lambda x, i: F.cross_entropy(x[:4], i.clamp(max=3)), "embedding": lambda x, i: F.embedding(i, x)[..., :3] * 2,
}
KNOWN = {
    "constants": lambda x, i: x[torch.tensor([3, 1, 2])][:2] * 2, "positions": lambda x, i: x[torch.arange(4)][:2] * 2,
    "resized": lambda x, i: F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear")[:, :, :3, :3] * 2,
}
PARTLY = {
    "rows": lambda x, i: x[i][:2] * 2, "row": lambda x, i: x[i][1] * 2, "embedding": lambda x, i: F.embedding(i, x)[:2] * 2,
    "negative": lambda x, i: x[i - 3][:2] * 2, "no columns": lambda x, i: x[i][:, :0].sum(),
    "gather": lambda x, i: x.gather(0, i[:, None])[:2] * 2,
    "constants from the end": lambda x, i: x[torch.tensor([3, 1, -2])][:2] * 2,
}


def checks(program):
    return sum("_check" in statement.name for statement in program.body)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", READ)
def test_what_is_read_whole_has_no_check(name, dynamic):
    program = check(READ[name], X, PLACES, dynamic=dynamic)
    assert nests(program) >= 1 and checks(program) == 0


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_to_be_in_range_has_no_check(name):
    assert checks(check(KNOWN[name], X, PLACES)) == 0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PARTLY)
def test_what_is_read_in_part_has_one(name, dynamic):
    assert checks(check(PARTLY[name], X, PLACES, dynamic=dynamic)) == 1
