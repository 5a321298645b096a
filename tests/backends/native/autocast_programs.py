"""Programs under autocast with transforms of torch.func, and with gradients that they compute."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, hessian, jacrev, jvp, vmap

Program = Callable[[Tensor, Tensor, Tensor], Any]
SIZE = 8


def network(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(F.linear(x, w, b).tanh(), w, b)


def penalty(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    total = network(x, w, b).float().square().sum()
    return total + torch.autograd.grad(total, x, create_graph=True)[0].square().sum()


def in_float32(x: Tensor, w: Tensor, b: Tensor) -> Any:
    """Autocast has losses compute in float32, which are composed of operators that it leaves alone."""
    y = F.linear(x, w, b)
    total = F.kl_div(y.log_softmax(-1), F.linear(x, w).softmax(-1), reduction="batchmean") + F.mse_loss(y, x)
    found = torch.autograd.grad(total, (w, b), create_graph=True)
    return total, (found[0] @ found[0]).float(), *found


def gradients(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return torch.autograd.grad(F.cross_entropy(network(x, w, b), x.argmax(-1)), (w, b))


def backward_outside(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The backward pass of a product that was not cast casts what it multiplies, but not outside of the block."""
    with torch.autocast("cpu", enabled=False):
        y = network(x, w, b)
    inside, = torch.autograd.grad(y.sum(), w, create_graph=True)
    with torch.autocast("cpu", enabled=False):
        outside, = torch.autograd.grad(y.square().sum(), w, create_graph=True)
    return inside + outside + F.linear(w, w)


def first_without_gradients(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The cast that is kept then has no gradients."""
    with torch.no_grad():
        target = F.linear(x, w)
    loss = F.mse_loss(F.linear(x, w, b), target)
    return loss + torch.autograd.grad(loss, x, create_graph=True)[0].square().sum()


def own_cast(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Of values that are no weights."""
    y = (x * 2).to(torch.bfloat16)
    loss = F.linear(y, w, b).float().sin().sum()
    return loss + torch.autograd.grad(loss, b, create_graph=True)[0].square().sum()


def mapped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return vmap(lambda row: F.linear(row, w, b).sigmoid())(x) + F.linear(x, w)


def after_a_cast(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """What is kept was cast outside of the transform."""
    return F.linear(x, w, b) @ w + vmap(lambda row: row @ w)(x) + torch.bmm(x[None], w[None])[0] + vmap(lambda row: w @ row)(x)


def gradients_of_each(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return vmap(grad(lambda v, row: F.linear(row, v, b).sigmoid().sum()), (None, 0))(w, x)


def of_inputs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return vmap(grad(lambda row: network(row, w, b).float().sum()))(x) + F.linear(x, w)


def second(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return hessian(lambda v: F.linear(v, w, b).float().sin().sum())(x[0])


def forward_mode(x: Tensor, w: Tensor, b: Tensor) -> Any:
    return jvp(lambda v: (v @ w + b).sin(), (x,), (x * 2,))


def jacobian(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return jacrev(lambda v: (v @ w + b).sin())(x[0])


def with_a_part_that_is_off(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    with torch.autocast("cpu", enabled=False):
        y = y + vmap(lambda row: F.linear(row, w, b))(x)
    return y + vmap(lambda row: F.linear(row, w, b))(x)


def block_within(x: Tensor, w: Tensor, b: Tensor) -> Any:
    def row_of(row: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(row, w, b).sin()
    with torch.autocast("cpu", enabled=False):
        return vmap(row_of)(x), w @ w


PROGRAMS: list[Program] = [
    penalty, in_float32, gradients, backward_outside, first_without_gradients, own_cast, mapped, after_a_cast, gradients_of_each,
    of_inputs, second, forward_mode, jacobian, with_a_part_that_is_off, block_within]


def within(program: Program) -> Program:
    """A program with a block of its own around it."""
    def run(x: Tensor, w: Tensor, b: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return program(x, w, b)
    return run


def tensors(seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(*shape, requires_grad=True) for shape in ((5, SIZE), (SIZE, SIZE), (SIZE,))]


def gradients_of(results: Any, given: list[Tensor]) -> list[Tensor | None]:
    """Those of a sum over results."""
    wanted = [result for result in torch.utils._pytree.tree_leaves(results) if result.requires_grad]
    if not wanted:
        return []
    total = torch.stack([(result.float() * 1.5).sin().sum() for result in wanted]).sum()
    return list(torch.autograd.grad(total, given, allow_unused=True))
