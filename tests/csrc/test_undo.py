"""Memory and version counters that are put back."""
from __future__ import annotations

import pytest
import torch

from capture import _C


def versions(*tensors: torch.Tensor) -> list[int]:
    return [tensor._version for tensor in tensors]


def test_memory_and_versions_are_put_back() -> None:
    x, y = torch.arange(6.0).reshape(2, 3), torch.ones(2, dtype=torch.bool)
    x.add_(0)
    before, counted = [x.clone(), y.clone()], versions(x, y)
    undo = _C.Undo((x, y), (x, y), ())
    x.mul_(2)
    x[0].zero_()
    y.logical_not_()
    undo.put_back()
    assert torch.equal(x, before[0]) and torch.equal(y, before[1]) and versions(x, y) == counted
    x.mul_(2)
    undo.put_back()
    assert torch.equal(x, before[0])


def test_only_what_a_view_reaches_over_is_kept() -> None:
    base = torch.arange(12.0)
    view = base[2:10].view(2, 4)[:, 1:3]            # 3, 4 … 7, 8
    undo = _C.Undo((view,), (view,), ())
    base.fill_(-1)
    undo.put_back()
    assert base.tolist() == [-1, -1, -1, 3, 4, 5, 6, 7, 8, -1, -1, -1]


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.empty(0, 3)[:, 1], torch.tensor(3), torch.empty(2, device="meta")],
                         ids=["empty", "empty view", "scalar", "meta"])
def test_tensors_of_any_size(tensor: torch.Tensor) -> None:
    undo = _C.Undo((tensor,), (tensor,), ())
    tensor.zero_()
    undo.put_back()
    assert tensor.is_meta or tensor.tolist() in ([], 3)


def test_a_tensor_of_inference_mode_counts_no_version() -> None:
    with torch.inference_mode():
        x = torch.zeros(2)
        undo = _C.Undo((x,), (x,), ())
        x.add_(1)
        undo.put_back()
    assert x.tolist() == [0, 0]


def test_autograd_knows_nothing_of_it() -> None:
    weight = torch.ones(2, requires_grad=True)
    y = (weight * weight).sum()
    undo = _C.Undo((weight,), (weight,), ())
    with torch.no_grad():
        weight.add_(1)
    undo.put_back()
    y.backward()                                    # what it has saved is as it was
    assert weight.is_leaf and weight.grad.tolist() == [2, 2]


def test_the_memory_stays_alive() -> None:
    x = torch.ones(1000)
    undo = _C.Undo((x,), (), ())
    del x
    undo.put_back()


def test_gradients_are_put_back() -> None:
    weight, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    weight.sum().backward()
    gradient = weight.grad
    gradient.label = "kept"
    undo = _C.Undo((), (), (weight, other))
    number = id(gradient)
    del gradient
    weight.grad = None
    undo.put_back()
    assert id(weight.grad) == number and weight.grad.label == "kept" and weight.grad.tolist() == [1, 1] and other.grad is None
    weight.sum().backward()
    assert weight.grad.tolist() == [2, 2]


def test_what_is_no_tensor_is_refused() -> None:
    for arguments in (((1.5,), (), ()), ((), (1.5,), ()), ((), (), (1.5,))):
        with pytest.raises(TypeError, match="a float is no tensor"):
            _C.Undo(*arguments)
    with pytest.raises(ValueError, match="has no storage"):
        _C.Undo((torch.ones(1).to_sparse(),), (), ())
    with pytest.raises(TypeError):
        _C.Undo([torch.ones(1)], (), ())
