"""Classes of tensors with code of their own under names by which capture asks tensors."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

from tests.helpers import call, check


@pytest.mark.parametrize("make", [lambda cls, x: torch.Tensor._make_subclass(cls, x), lambda cls, x: x.as_subclass(cls)])
@pytest.mark.parametrize("name", [
    "device", "layout", "_version", "is_nested", "shape", "requires_grad", "untyped_storage", "dim", "size", "stride", "numel",
    "storage_offset", "element_size", "is_floating_point", "is_complex"])
def test_attributes_of_tensors_that_a_class_cannot_tell_yet(name: str, make: Callable[[type, torch.Tensor], torch.Tensor]) -> None:
    """Capture asks torch's own: the class has code under that name, which eager mode does not run."""
    def tell(self: Any) -> Any:
        raise AttributeError(f"{name} of what is not there yet")

    is_method = type(getattr(torch.Tensor, name)) is type(torch.Tensor.add)
    cls = type("Lacking", (torch.Tensor,), {name: tell if is_method else property(tell)})

    def program(x):
        made = make(cls, x.clone())
        torch.Tensor.mul_(made, 3)
        return (made * 2).as_subclass(torch.Tensor), x + 1
    check(lambda: program, *[call(torch.ones(3))] * 3)


def test_gradients_of_each_sample() -> None:
    """`ExpandedWeight` tells its device by an attribute that it is given once it is made."""
    def make():
        module = torch.nn.Linear(3, 2)

        def program(x):
            for parameter in module.parameters():
                parameter.grad_sample = None
            call_for_per_sample_grads(module)(x).sum().backward()
            return [parameter.grad_sample.clone() for parameter in module.parameters()]
        return program, module
    check(make, *[call(torch.ones(4, 3))] * 3, captures=None, fullgraph=False)
