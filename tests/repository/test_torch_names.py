"""Names of torch's that are private, or that not all versions of torch have: each that capture uses is there, and is listed."""
from __future__ import annotations

import pytest

from capture.torch_versions import SINCE, VERSION
from tests import torch_names
from tests.torch_names import ROOT, all_uses, missing, uses_of


@pytest.mark.parametrize("file", [str(path.relative_to(ROOT)) for path in sorted((ROOT / "capture").rglob("*.py"))])
def test_torch_has_the_names_that_are_used(file: str) -> None:
    assert list(missing(uses_of((ROOT / file).read_text(), file))) == []


def test_every_name_that_some_versions_have_is_used() -> None:
    assert set(SINCE) <= {use.path for use in all_uses() if use.optional}


def test_a_missing_name_is_told_in_a_sentence() -> None:
    source = """
import sys
import torch
from torch._C import _functorch as functorch
from torch._ops import OpOverlord

def f(x):
    import torch._dynamic as dynamic
    owner = sys.modules.get("torch._dynamo.eval_frame")
    print(getattr(owner, "_stances", None), dynamic.x, functorch.maybe_current_level, functorch.gone, x._private, torch.no_grad)
    return torch._C._set_grad_enabled, torch._C._gone_too(torch.Tensor.__add__)
"""
    version = ".".join(map(str, VERSION))
    assert list(missing(uses_of(source, "f.py"))) == [
        f"torch {version} has no torch._ops.OpOverlord, which f.py, line 5, uses",
        f"torch {version} has no torch._dynamic, which f.py, line 8, uses",
        f"torch {version} has no torch._dynamo.eval_frame._stances, which f.py, line 10, uses",
        f"torch {version} has no torch._dynamic.x, which f.py, line 10, uses",
        f"torch {version} has no torch._C._functorch.gone, which f.py, line 10, uses",
        f"torch {version} has no torch._C._gone_too, which f.py, line 11, uses"]


def test_the_page_lists_what_is_used() -> None:
    assert torch_names.PAGE.read_text() == torch_names.page(), "python -m tests.torch_names"
