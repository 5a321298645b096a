"""What a hit returns lies in memory, and is known to autograd, as in eager mode; backward passes take what eager mode has saved."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import capture
from tests import helpers
from tests.backends.native.end_to_end import engine as native
from tests.backends.native.end_to_end.aliases import GRAD, PLAIN, check, check_plans
from tests.backends.native.end_to_end.engine import AT_ONCE, no_trial, runs_compiled  # noqa: F401

VIEWS = ("a.view(-1)", "a[1:]", "a.t()", "a.chunk(2)[0]", "a.detach()", "a.data", "a.unbind(0)[1]", "a", "a[:, 1:].detach()")
EDITS = ("r[0].zero_()", "with torch.no_grad(): r[0].zero_()", "r[0].data.zero_()", "with torch.no_grad(): r[0].add_(1)")


@pytest.mark.parametrize("view", VIEWS)
def test_a_result_that_is_saved_is_written_to_through_a_view(engine: dict[str, Any], view: str) -> None:
    plans = [(edit, "r[1].sum().backward()") for edit in EDITS]
    check_plans(engine, (GRAD, PLAIN), f"a = x @ y\nreturn {view}, (a + 3).sin()", *plans)
    check_plans(engine, (GRAD, PLAIN), f"a = (x @ y).exp()\nreturn {view}, a * 2", *plans)


@pytest.mark.parametrize("saved", ["x.tanh() * 1", "x.exp() + 1", "x.softmax(-1) * y", "F.gelu(x)", "(x + 1).sin()", "x.relu() @ y",
                                   "F.layer_norm(x, (4,), y[0], y[1]).sigmoid() * 2"])
def test_an_input_is_written_to_before_the_backward_pass(engine: dict[str, Any], saved: str) -> None:
    edits = "with torch.no_grad(): a[0].mul_(3)", "a[0].data.mul_(3)", "a[1].data.mul_(3)", "a[1].detach().mul_(3)"
    for inputs in ((f"{GRAD} * 1", GRAD), (GRAD, PLAIN)):
        check_plans(engine, inputs, f"return {saved},", *((edit, "r[0].sum().backward()") for edit in edits))


@pytest.mark.parametrize("write", ["t.mul_(3)", "t[1:].mul_(3)"])
@pytest.mark.parametrize("view", ["x.view(-1)", "x.t()", "x.unsqueeze(0).permute(2, 0, 1)", "x.unflatten(1, (2, 2)).squeeze()",
                                  "x[1:]"])
def test_an_input_that_is_written_to_through_a_view_is_saved_as_that(engine: dict[str, Any], view: str, write: str) -> None:
    body = f"t = {view}\nwith torch.no_grad(): {write}\nreturn (t * t + 1).sqrt(), t.sin(), x"
    edits = "a[0].data.mul_(3)", "r[2].data[1:].zero_()", "with torch.no_grad(): a[0].mul_(3)"
    check_plans(engine, (GRAD,), body, *((edit, "(r[0].sum() + r[1].sum()).backward()") for edit in edits))


@pytest.mark.parametrize("view", ["x.select(1, 1)", "x[:, 1]", "x.diagonal()", "x[1]", "x.unbind(0)[1]", "x.mT[1:]", "x"])
@pytest.mark.parametrize("whole", ["x.view(-1)", "x.t()", "x.unsqueeze(0)"])
def test_an_input_that_is_written_to_through_another_view_is_saved_in_views(engine: dict[str, Any], whole: str, view: str) -> None:
    edits = "a[0].data.mul_(3)", "a[0].data[1:].zero_()", "with torch.no_grad(): a[0].mul_(3)"
    for returned in ("t.sin()", "(t * t + 1).sqrt()"):
        body = f"t = {view}\nwith torch.no_grad(): {whole}.mul_(2)\nreturn {returned},"
        check_plans(engine, (GRAD,), body, *((edit, "r[0].sum().backward()") for edit in edits))


@pytest.mark.parametrize("body", [
    "return x @ y,", "return x * 2,", "return x.exp(), x.sin()", "return x[0] * x[1],", "return (x * 1) @ y,",
    "return x * x, y.sin()", "return x @ y, x.detach()", "a = x.exp()\nreturn a, a.sin(), a.detach()",
    "return x * y, x.view(-1)", "return x.detach(), x @ y",
    "a = x * 2\nreturn a, a.sin()", "a = x * 2\nreturn a, a + y", "a = x.exp()\nreturn a, a * y, (a + 1).sin()",
    "a = x @ y\nb = a.tanh() * a\nreturn b, b.sin() * y, a", "a = x.exp()\nreturn a.sin(), a, x"])
def test_a_tensor_is_detached_in_place_before_the_backward_pass(engine: dict[str, Any], body: str) -> None:
    passes = "sum(t.sum() for t in r if t.requires_grad).backward()", "r[1].sum().backward()", "r[0].sum().backward()"
    again = "r[-1].sum().backward(retain_graph=True)"
    plans = [(f"{t}.detach_()", *passes) for t in ("a[0]", "a[1]", "r[0]", "r[1]")]
    plans += [("a[0].detach_().requires_grad_()", *passes), ("r[0].detach_()", "r[0] = None", "r[1].sum().backward()"),
              (again, "a[0].detach_()", again, *passes), ("a[0].mul_(2).detach_()", *passes), (again, "r[0].detach_()", *passes)]
    for inputs in ((f"{GRAD} * 1", f"{GRAD} * 1"), (GRAD, PLAIN)):
        check_plans(engine, inputs, body, *plans)


def test_a_checkpoint_of_a_result_where_an_input_is_written_to(engine: dict[str, Any]) -> None:
    body = ("a = x + x\nwith torch.no_grad(): x.mul_(2)\n"
            "b = checkpoint(lambda u, v: (u * v).exp() + v, a, x, use_reentrant=False)\nreturn b, a")
    check(engine, (GRAD,), body, "r[0].sum().backward(retain_graph=True)", "r[0].sum().backward()")


@pytest.mark.parametrize("returned", ["x.data", "x.detach()", "x.data.view(-1)", "x.exp().data", "torch.cat([x, x])[-3:]",
                                      "F.linear(x[None], y, y[0])", "x.mul(2).add_(1)", "x.mul(2).data.add_(1)",
                                      "x.mul(2)[1:].add_(1)", "torch.einsum('ij,kj->ik', x, y)", "x.view(2, 8).expand(3, 2, 8)",
                                      "(x * 2).t()[1:].unfold(0, 2, 1)", "x.sum().expand_as(y[:1, :1])"])
def test_memory_views_and_versions_of_a_result(engine: dict[str, Any], returned: str) -> None:
    for inputs in ((PLAIN, PLAIN), (GRAD, GRAD)):
        check(engine, inputs, f"a = {returned}\nreturn a, x * 2", "with torch.no_grad(): r[0].zero_()", "r[1].sum().backward()",
              "r[0].mul_(2)", "(r[0] * r[0]).sum().backward()")


@pytest.mark.parametrize("views", ["torch.unravel_index((x > 0).long() * 3, (2, 2))", "(x.sum().expand_as(x[:1, :1]), x * 2)"])
def test_views_that_an_operator_makes_within_itself_are_compiled(views: str) -> None:
    check(AT_ONCE, (PLAIN,), f"return {views}", "r[0].zero_()", "r[1].add_(r[0])")
    f = eval(f"lambda x: {views}", {"torch": torch})
    compiled = capture.compile(f, **AT_ONCE)
    for _ in range(2):
        compiled(torch.randn(4, 4))
    assert runs_compiled(compiled)


@pytest.mark.parametrize("made", ["F.linear(y[0], x[0], x[1, 1])", "F.linear(y[0, 0], x[0, 0], x[1, 1]).view(1)",
                                  "F.one_hot((x[0] > 0).long(), 2)"])
def test_what_an_operator_returns_counts_its_own_writes(engine: dict[str, Any], made: str) -> None:
    for inputs in ((PLAIN, PLAIN), (GRAD, GRAD)):
        check(engine, inputs, f"a = {made}\nreturn a, x * 2", "with torch.no_grad(): r[0].add_(1)", "r[1].sum().backward()")


def test_a_pass_frees_nothing_above_what_its_result_is_not_computed_from(engine: dict[str, Any]) -> None:
    for returned in ("x * y, y.cumsum(0)", "(x * y).view(-1), y.cumsum(0)[0], x * 2"):
        check(engine, (f"{GRAD} * 1", f"{GRAD} * 1"), f"return {returned}", "a[0].sum().backward()", "r[1].sum().backward()",
              "r[0].sum().backward()")


def test_a_write_through_a_view_is_freed_once(engine: dict[str, Any]) -> None:
    check(engine, (f"{GRAD} * 1",), "a = x.mean(0)\nb = a[::2]\nb.add_(b.detach())\nreturn a, b, F.layer_norm(b, (2,))",
          "torch.autograd.grad(r[2].sum(), a[0])", "r[0].sum().backward()")


@pytest.mark.parametrize("write", ["torch._foreach_mul_([x, y], 2)", "torch._foreach_add_([x], [y.detach()])",
                                   "torch._foreach_copy_([y], [x.detach()])", "torch.mul(y.detach(), 2, out=z)"])
def test_writes_to_lists_of_tensors_are_counted(engine: dict[str, Any], write: str) -> None:
    for inputs in ((GRAD, GRAD, PLAIN), (PLAIN, PLAIN, PLAIN)):
        check(engine, inputs, f"a = (x * y).sin()\nwith torch.no_grad(): {write}\nreturn a, x * 2",
              "r[1].sum().backward(retain_graph=True)", "r[0].sum().backward()")


def test_a_graph_made_before_a_compiled_step_notices_it() -> None:
    def step(weights: list[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_mul_(weights, 2)

    compiled = capture.compile(step, **AT_ONCE)
    for _ in range(3):
        weight = torch.ones(3, requires_grad=True)
        before = weight * weight
        compiled([weight])
        with pytest.raises(RuntimeError, match="is at version 1; expected version 0"):
            before.sum().backward()
    assert runs_compiled(compiled)


# Leaves that are views of what requires no gradients: autograd finds the history of their views in that, once it was written to.
OWN = ("torch.randn(16).view(4, 4).requires_grad_()", "torch.randn(4, 4).t().requires_grad_()",
       "torch.randn(2, 4, 4).unbind(0)[0].requires_grad_()", "torch.no_grad()(torch.randn(5, 4).narrow)(0, 1, 4).requires_grad_()")
# Leaves that share memory with others, and are no views of these.
DETACHED = "torch.randn(16).view(4, 4).detach().requires_grad_()", "torch.nn.Parameter(torch.randn(5, 4)[1:])"


@pytest.mark.parametrize("write", ["with torch.no_grad(): t.mul_(2)", "with torch.no_grad(): x.mul_(2)", "x.detach().mul_(2)",
                                   "t.mul_(2)", "x.data.mul_(2)", "t[0] = 1"])
@pytest.mark.parametrize("made", ["t = x.flatten()", "t = x[1:]", "t = x.mT", "t = x.unbind(0)[1]", "t = x.detach()",
                                  "with torch.no_grad(): t = x[1:]", "t = x.as_strided((2, 2), (1, 4))", "s = x.exp()\nt = x[0]"])
def test_a_leaf_that_is_a_view_is_written_to(engine: dict[str, Any], made: str, write: str) -> None:
    backward, later = "sum(t.sum() for t in r if t.requires_grad).backward()", "with torch.no_grad(): a[0].mul_(2)"
    for leaf in OWN + DETACHED:
        for returned in ("t.sin(), x.cos()", "t, x * 2", "t.sin(),"):
            plans = (backward,), ("g = torch.autograd.grad(r[0].sum(), a[0])",), (later, backward)
            # Of the last two leaves, which may not be written to with gradients, later errors tell something else.
            check_plans(engine, (leaf,), f"{made}\n{write}\nreturn {returned}", *plans[:2 if leaf in OWN[2:] else 3])


@pytest.mark.parametrize("body", ["t = x.flatten()\ny.mul_(2)\nreturn t.sin(), x.cos()", "a = x.sin()\ny.mul_(2)\nreturn a, x * 2",
                                  "t = x.flatten()\nwith torch.no_grad(): x.mul_(2)\nreturn t.sin(), y * 2"])
@pytest.mark.parametrize("beside", ["a[0]._base[:1]", "a[0]._base.data[:1]", "a[0].detach()[:1]"])
def test_a_leaf_that_is_a_view_beside_another_view(engine: dict[str, Any], beside: str, body: str) -> None:
    check_plans(engine, ("torch.randn(5, 4)[1:].requires_grad_()", beside), body, ("(r[0].sum() + r[1].sum()).backward()",),
                ("a[1].mul_(2)", "r[0].sum().backward()"))


@pytest.mark.parametrize("body", ["with torch.no_grad(): x.mul_(2)", "with torch.no_grad(): x[1:].mul_(2)",
                                  "with torch.no_grad(): x[0] = 1", "t = x.flatten()"])
def test_graphs_that_write_to_a_leaf_that_is_a_view_are_compiled(body: str) -> None:
    """If no views of it are used after that."""
    check(AT_ONCE, OWN[:1], f"{body}\nreturn x.sin(),", "r[0].sum().backward()")
    names: dict[str, Any] = {"torch": torch}
    exec(f"def program(x):\n {body}\n return x.sin()", names)
    compiled = capture.compile(names["program"], **AT_ONCE)
    for _ in range(2):
        compiled(torch.randn(16).view(4, 4).requires_grad_())
    assert runs_compiled(compiled)


APART = f"torch.no_grad()(({GRAD} * 1).__getitem__)(slice(1, None))"                # a leaf
OUTDATED = (f"(lambda base: (base[0], base.mul_(a[0]))[0])({PLAIN[:-1]}, 4))",      # gets a node when it is asked for it
            f"(lambda base: (torch.no_grad()(base.__getitem__)(0), base.mul_(a[0]))[0])({GRAD[:12]}4, {GRAD[12:]} * 1)")


@pytest.mark.parametrize("view", (APART, *OUTDATED))
@pytest.mark.parametrize("body", ["return y * 2, y", "with torch.no_grad(): y.mul_(2)\nreturn y.sin(), y[0]",
                                  "return x[0] * y, y.sin()"])
def test_views_without_nodes_of_what_requires_gradients(engine: dict[str, Any], view: str, body: str) -> None:
    check(engine, (GRAD, view), body, "r[0].sum().backward(retain_graph=True)", "with torch.no_grad(): a[1].add_(1)",
          "r[0].sum().backward(retain_graph=True)", "r[1].sum().backward()")


@pytest.mark.filterwarnings("ignore:.*expanded tensors")
@pytest.mark.parametrize("write", ["y[y > 0] = 0", "y.masked_fill_(y > 0, 0)", "y.index_fill_(0, torch.tensor([1]), 7)"])
@pytest.mark.parametrize("view", ["x[0].expand(4, 4)", "torch.meshgrid(x.view(-1), x[0], indexing='ij')[0]", "x.unfold(0, 2, 1)"])
def test_writes_to_a_tensor_that_overlaps_itself(engine: dict[str, Any], view: str, write: str) -> None:
    check(engine, (PLAIN,), f"y = {view}\n{write}\nreturn x * 2, y", "r[0].add_(1)")


@pytest.mark.parametrize("write", ["y.add_(y.diagonal())", "y.add_(y.diagonal().detach())", "y.mul_(y[:, ::2].t()[0])",
                                   "y[1:, 1:] += y[:-1, :-1]", "torch.add(y.diagonal(), y, out=y)",
                                   "y[:3] = y[1:].t()[1:].t()", "y.copy_(y[0, 0])"])
def test_writes_to_an_operand(engine: dict[str, Any], write: str) -> None:
    """What comes of them depends on the order of the elements."""
    check(engine, (PLAIN,), f"y = x\n{write}\nreturn y * 2, x", "r[0].add_(1)")
    check(engine, (PLAIN,), f"y = x + 1\n{write}\nreturn y * 2, x", "r[0].add_(1)")


@pytest.mark.parametrize("write", ["y[:, :2].add_(y[:, 2:])", "y[:, :2] = y[:, 2:]", "y[0].mul_(y[1])", "y[:, 0] = y[:, 1]",
                                   "y[::2] += y[1::2]", "y.add_(y)"])
def test_writes_beside_an_operand_are_compiled(write: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def program(x):\n y = x + 1\n {write}\n return y * 2", names)
    compiled = capture.compile(names["program"], **AT_ONCE)
    for _ in range(3):
        x = torch.randn(4, 4)
        assert torch.allclose(compiled(x), names["program"](x))
    assert runs_compiled(compiled)


@pytest.mark.parametrize("write", ["torch._foreach_mul_([a, b], 2)", "torch._foreach_add_([a, c], [c, a])",
                                   "torch._foreach_mul_([a, a], 2)",
                                   "torch._foreach_mul_(a.split(2), 2)", "torch._foreach_add_([a, c], [y, y])"])
def test_writes_to_lists_of_tensors_that_overlap(engine: dict[str, Any], write: str) -> None:
    check(engine, (PLAIN, PLAIN), f"a = x * 2\nb = a.diagonal()\nc = y + 1\n{write}\nreturn a * 1, c")


@pytest.mark.parametrize("use", ["F.dropout(a, 0.5, inplace=True)", "F.dropout(a, 0.5)", "a.flatten()", "a.chunk(2)[1]"])
@pytest.mark.parametrize("size", ["0", "9"])
def test_what_is_computed_of_a_tensor_that_an_operation_resized(engine: dict[str, Any], size: str, use: str) -> None:
    body = f"b = torch.empty({size})\na = torch.mul(x.detach(), 2, out=b)\nreturn {use}, a, x * 2"
    check(engine, (GRAD,), body, "r[2].sum().backward()")


@pytest.mark.parametrize("made", ["a.unsafe_chunk(2)[1]", "a.unsafe_split(2)[0]", "torch.ops.aten._unsafe_view(a, [-1])"])
def test_results_on_the_memory_of_what_they_are_no_views_of(engine: dict[str, Any], made: str) -> None:
    for inputs in ((GRAD,), (PLAIN,)):
        check(engine, inputs, f"a = x.exp()\nreturn {made}, x * 2", "r[0].sum().backward()", "r[0].add_(1)",
              "r[1].sum().backward()")


@pytest.mark.parametrize("written", ["b", "b[0]", "b.chunk(2)[0]", "x", "x[0]", "c"])
@pytest.mark.parametrize("made", ["x.unsafe_chunk(2)[0]", "x.unsafe_split(2)[0]", "x.unsafe_split_with_sizes([2, 2])[0]",
                                  "torch.ops.aten._unsafe_view(x, [-1])"])
def test_writes_to_what_shares_its_memory_with_what_it_is_no_view_of(engine: dict[str, Any], made: str, written: str) -> None:
    check(engine, (PLAIN, GRAD), f"b = {made}\nc = x.view(-1)\n{written}.add_(1)\nreturn b * 2, x.sin(), c, y * 2",
          "r[3].sum().backward()")


def test_what_is_made_like_a_tensor_that_was_written_to(engine: dict[str, Any]) -> None:
    check(engine, (f"{PLAIN}.t()", PLAIN), "torch.mul(x, 2, out=y)\nreturn torch.empty_like(y).copy_(x), x * 2")
    check(engine, (f"{PLAIN}.t()", PLAIN), "y.copy_(x)\nreturn torch.zeros_like(y) + 1, y * 2")


def test_errors_of_saved_views_that_may_not_be_written_to(engine: dict[str, Any]) -> None:
    check(engine, (GRAD,), "a = x.split(1)[0].squeeze()\nreturn (a * a).sqrt(), x", "with torch.no_grad(): r[1][0] = 5",
          "r[0].sum().backward()")


def test_hooks_of_results_that_a_pass_does_not_start_at(engine: dict[str, Any]) -> None:
    for step in ("r[0].sum().backward()", "r[1].sum().backward(retain_graph=True)"):
        check(engine, (GRAD, GRAD), "a = x.sin() * y\nreturn a.exp(), a * 3, a[0]", "r[0].register_hook(lambda g: g * 2)",
              "r[1].register_hook(note('r[1]'))", "r[1].retain_grad()",
              "r[2].register_hook(note('r[2]'))", step, "(r[0].sum() + r[1].sum()).backward()")


def test_a_result_that_retains_its_gradient(engine: dict[str, Any]) -> None:
    for kept in ("a", "b", "x"):
        check(engine, (f"{GRAD} * 1",), f"a = x * 2\nb = a.exp()\n{kept}.retain_grad()\nreturn a, b", "r[1].sum().backward()")


def test_passes_that_eager_mode_computes_free_the_graph_too(engine: dict[str, Any]) -> None:
    batched = "g = torch.autograd.grad(r[0], a[0], torch.ones(2, 4, 4), is_grads_batched=True{})"
    twice = "g = torch.autograd.grad(r[0].sum(), a[0], create_graph=True{})"
    for first, second in ((batched, ""), (batched, ", retain_graph=True"), (twice, ""), (twice, ", retain_graph=False")):
        for returned in ("x.exp()", "x.exp(), x.sin()"):
            check(engine, (GRAD,), f"return {returned},", first.format(second), "r[0].sum().backward()", "r[-1].sum().backward()")


@pytest.mark.parametrize("retain", ["", "retain_graph=True"])
def test_a_pass_that_fails_has_freed_what_it_came_past(engine: dict[str, Any], retain: str) -> None:
    for edited in ("a[1]", "r[1]"):
        check(engine, (GRAD, GRAD), "t = (x @ y).exp()\nreturn t.sin().exp(), t, (x * x).cos()",
              f"with torch.no_grad(): {edited}.mul_(2)", *[f"r[0].sum().backward({retain})"] * 2, "r[2].sum().backward()",
              "(r[0].sum() + r[2].sum()).backward()", "r[1].sum().backward()")


def test_gradients_of_gradients_of_an_input_that_the_graph_writes_to(engine: dict[str, Any]) -> None:
    for plan in ("g = torch.autograd.grad(r[0], a, torch.eye(r[0].numel()).view(-1, *r[0].shape), is_grads_batched=True)",
                 "g = torch.autograd.grad(r[0].sum(), a, create_graph=True)"):
        for body in ("t = torch.stack([x, x]) * y\nwith torch.no_grad(): x[1:].mul_(3)\nreturn t * t, x",
                     "with torch.no_grad(): x.clamp_(-1, 1).mul_(2)\nreturn x * x * y, x"):
            check(engine, (GRAD, GRAD), body, plan, "sum(v.sum() for v in g if v.requires_grad).backward()")


@pytest.mark.parametrize("edited", ["r[0]", "r[1]", "a[0]", "a[1]"])
@pytest.mark.parametrize("made", ["torch._foreach_add([x, y], 1)", "torch._foreach_mul([x, y], [y, x])",
                                  "torch._foreach_exp([x, y])"])
def test_what_operators_on_lists_save(engine: dict[str, Any], made: str, edited: str) -> None:
    check(engine, (f"{GRAD} * 1", f"{GRAD} * 1"), f"a, b = {made}\nreturn a, b", f"with torch.no_grad(): {edited}.mul_(3)",
          "r[0].sum().backward()", "r[1].sum().backward()")


@pytest.mark.parametrize("made", ["x.prod(0)", "x.max(0)[0]", "x.new_zeros(4)", "x.mean(0).mul_(2)", "F.linear(y[0], x, x[0])",
                                  "torch.mul(x, 2, out=torch.empty(0))", "x * y", "x.detach()", "x.add_(1)", "x[0]"])
def test_versions_of_what_is_computed_of_tensors_of_inference_mode(engine: dict[str, Any], made: str) -> None:
    check(engine, ("torch.inference_mode()(lambda: torch.randn(4, 4))()", PLAIN), f"a = {made}\nreturn a, y * 2", "r[0].add_(1)")


@pytest.mark.parametrize("made", ["torch.add(x, x, out=torch.empty(9, 4))", "torch.add(x, x, out=torch.empty(0))",
                                  "(x * 2).resize_(2, 2)"])
@pytest.mark.filterwarnings("ignore:An output")
def test_results_of_more_memory_than_they_need(engine: dict[str, Any], made: str) -> None:
    check(engine, (PLAIN,), f"a = {made}\nreturn a.view(-1), x * 2", "r[0].add_(1)")


@pytest.mark.parametrize("turned", ["unsqueeze_(0)", "t_()", "squeeze_()", "as_strided_((16,), (1,))"])
@pytest.mark.parametrize("alias", ["x.data", "x.detach()", "(x * 1).data", "x * 1"])
def test_views_of_a_tensor_whose_shape_is_changed_in_place(engine: dict[str, Any], alias: str, turned: str) -> None:
    """They are views of it as it has become, though the same view could be made of it as it was."""
    for view in ("v.reshape(-1)", "v.reshape(-1)[1:3]", "v[0]"):
        check(engine, (f"({GRAD} * 1)[:3]",), f"v = {alias}\nwith torch.no_grad(): v.{turned}\nreturn {view}, x.sin()")


@pytest.mark.parametrize("write", ["x.data.mul_(2)", "x.data[1:].mul_(2)", "x.detach().mul_(2)", "v = x.data\nv.t_()\nv.mul_(2)",
                                   "x.mul_(2)", "x.data.t().data.mul_(2)"])
@pytest.mark.parametrize("given", [GRAD, f"{GRAD} * 1"])
@pytest.mark.filterwarnings("error")
def test_data_is_written_to_in_a_graph_that_computes_gradients(engine: dict[str, Any], given: str, write: str) -> None:
    """Nobody counts that as a write to the tensor."""
    body, write = "g, = torch.autograd.grad((x * x * y).sum(), x, create_graph=True)", write.replace("\n", "; ")
    for before, after in ((f"with torch.no_grad(): {write}\n", ""), ("", f"\nwith torch.no_grad(): {write}"),
                          ("z = x.sin()\n", f"\nwith torch.no_grad(): {write}\ng = g * z")):
        check(engine, (given, GRAD), f"{before}{body}{after}\nreturn g * 3, (x * y).sin(), x", "r[0].sum().backward()")


@pytest.mark.parametrize("given", ["x.diagonal()", "x[0]", "x[:, 1]", "x * 1", "(x * 1)[1]", "x.view(-1)[:4]"])
@pytest.mark.parametrize("grown", ["torch.mul(y, 2, out=v)", "v.resize_(4, 4).copy_(y)", "torch.add(y, x, out=v)"])
@pytest.mark.filterwarnings("ignore:An output")
def test_a_view_that_is_given_more_elements(engine: dict[str, Any], grown: str, given: str) -> None:
    """It lies over other elements of what it is a view of, whether or not the graph goes on with it."""
    for result in ("x, y * 2", "v, x, x + y"):
        check(engine, (PLAIN, PLAIN), f"v = {given}\nw = v\n{grown}\nreturn {result}", "r[0].add_(1)")


@pytest.mark.parametrize("call", ["F.rrelu(x, training=True)", "torch.rrelu(x.mT, training=True)",
                                  "F.rrelu(x * 2, 0.1, 0.2, True, True)", "F.rrelu(x)", "torch.nn.RReLU()(x)",
                                  "torch.nn.RReLU(0.1)(x.mT)"])
def test_strides_of_rrelu(engine: dict[str, Any], call: str) -> None:
    for given in ("torch.randn(3, 4, 5).permute(2, 0, 1)", "torch.randn(5, 4, requires_grad=True)"):
        check(engine, (given, GRAD), f"return {call}, y * 2", "r[0].mul_(2)", "r[1].sum().backward()", "r[0].sum().backward()")
        check(engine, (given, GRAD), f"return {call}, y * 2", "a[0].data.mul_(2)", "r[0].sum().backward()")


@pytest.mark.parametrize("edit", ["with torch.no_grad(): {}.mul_(3)", "{}.data.mul_(3)", "{}.detach()[0] = 2"])
@pytest.mark.parametrize("body", [
    "a = checkpoint(lambda u: (u * y).sin(), x, use_reentrant=False)\nreturn a, x * y",
    "a = checkpoint(lambda u, v: (u * u).sin(), x, y, use_reentrant=False)\nreturn a, x.sigmoid()",
    "b = x * 2\na = checkpoint(lambda u: (u * y).sigmoid().sin(), b, use_reentrant=False)\nreturn a.cos() * a, b",
    "b = x * 2\na = checkpoint(lambda u: (u * b).sigmoid().sin(), y, use_reentrant=False)\nreturn a.cos() * a, b",
    "a = checkpoint(lambda u: checkpoint(lambda v: v.sin() * y, u.sigmoid(), use_reentrant=False).cos(), x, use_reentrant=False)\n"
    "return a, y * 2",
    "a = checkpoint(lambda u, k: u.sin() * k['y'].sigmoid(), x, {'y': y}, use_reentrant=False)\nreturn a, x.cos()",
    "a = checkpoint(lambda u: (u * y).sigmoid(), x, use_reentrant=False)\nreturn a.cos(), a",
    "b = checkpoint(lambda u: (u * y).sigmoid(), x, use_reentrant=False)\n"
    "a = checkpoint(lambda u: (u * y).sigmoid().cos(), b, use_reentrant=False)\nreturn a, y * b",
"a = checkpoint(lambda u: u.sin() * y, x, use_reentrant=True)\nreturn a, x.cos()"])
def test_checkpoints_of_tensors_that_are_written_to_later(engine: dict[str, Any], body: str, edit: str) -> None:
    edits = [edit.format(edited) for edited in ("a[0]", "a[1]", "r[0]", "r[1]")]
    before = [(edit, "(r[0].sum() + r[1].sum()).backward(retain_graph=True)", "r[0].sum().backward()") for edit in edits]
    between = [("r[0].sum().backward(retain_graph=True)", edit, "r[0].sum().backward()", "r[1].sum().backward()",
                "r[0].sum().backward()") for edit in edits]
    check_plans(engine, (GRAD, GRAD), body, *before, *between)
    check_plans(engine, (f"{GRAD} * 1", GRAD), body, *before)


@pytest.mark.parametrize("view", ["torch._neg_view(a)", "torch.view_as_complex(a.view(8, 2)).conj()", "a.mT",
                                  "torch._neg_view(a.mT)"])
def test_results_that_are_written_to_through_views_of_another_kind(engine: dict[str, Any], view: str) -> None:
    for given in (PLAIN, GRAD):
        check(engine, (given, PLAIN), f"a = x * 2\n{view}.add_(1)\nreturn a, y * 2", "r[0].sum().backward()", "r[0].sin()")


@pytest.mark.filterwarnings("ignore:An output")
def test_errors_tell_of_the_shape_that_an_input_has_by_now(engine: dict[str, Any]) -> None:
    check(engine, (GRAD, PLAIN), "return F.elu(x), y * 2", "with torch.no_grad(): torch.mul(a[1][0], 2, out=a[0])",
          "r[0].sum().backward()")


@pytest.mark.parametrize("view", ["x.split(2)[1]", "x[2:]", "x.unbind(0)[3]", "x.detach()[1:]"])
def test_views_of_what_was_written_to_before_the_call(engine: dict[str, Any], view: str) -> None:
    check(engine, (PLAIN,), f"{view}.mul_(2)\nreturn x, x * 2", "with torch.no_grad(): r = f(*a)", "r = f(*a)", "r[1].mul_(2)")


@pytest.mark.parametrize("write", ["a.mT.masked_fill_(a.mT > 0, 0)", "torch.add(y, 1, out=a.mT)", "a.mT.mul_(2)", "a.mT.copy_(y)"])
def test_strides_of_what_is_written_to_through_views(engine: dict[str, Any], write: str) -> None:
    for mode in ("", "with torch.no_grad(): "):
        check(engine, (PLAIN, PLAIN), f"a = x * 2\n{mode}{write}\nreturn a, y * 2", "r[0].view(-1).add_(1)")


def test_errors_tell_what_eager_mode_tells() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        a = (x @ w).exp()
        return a, (a + x).tanh() @ w

    texts = []
    for call in (f, capture.compile(f, **AT_ONCE)):
        for written in (lambda x, w, r: r[0], lambda x, w, r: w, lambda x, w, r: x, lambda x, w, r: x._base):
            for _ in range(2):
                x, w = (torch.ones(5, 3, requires_grad=True) * 1)[1:], torch.ones(3, 3, requires_grad=True)
                result = call(x, w)
                with torch.no_grad():
                    written(x, w, result).add_(1)
                with pytest.raises(RuntimeError) as raised:
                    (result[0].sum() + result[1].sum()).backward()
            texts.append(str(raised.value))
    assert texts[:4] == texts[4:]


def test_saved_copies_of_parameters_are_small() -> None:
    """What is computed again of a normalisation takes copies of its weights, and not of its result."""
    from capture.backends.aot import trace
    from tests.backends.native.traced import specs

    def f(x: Tensor, v: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return F.layer_norm(x @ v, (4,), w, b).sin() * 2,
    inputs = [torch.randn(size, requires_grad=True) for size in ((64, 4), (4, 4), (4,), (4,))]
    traced = trace(torch.fx.symbolic_trace(f), specs(inputs))
    assert traced.backward is not None
    placeholders = traced.backward.graph.find_nodes(op="placeholder")
    sizes = [node.meta["val"].numel() for node in placeholders[:len(traced.signature.saved)]]
    assert sum(size > 64 for size in sizes) == 2, "the input, and its product"


def leaf() -> Callable[..., Any]:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.ones(2, requires_grad=True)
        return made, made * 2 + x
    return f


def assigned() -> Callable[..., Any]:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.data = torch.zeros([0])
        return y
    return f


def asked() -> Callable[..., Any]:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.requires_grad_()
        return x, x * 2
    return f


@pytest.mark.parametrize("make", [leaf, assigned, asked])
@pytest.mark.parametrize("backend", ["eager", "native", "aot_eager", "callable"])
def test_what_backends_that_trace_would_lose(make: Callable[[], Callable[..., Any]], backend: str) -> None:
    from torch._dynamo.backends.debugging import aot_eager
    arguments = AT_ONCE if backend == "native" else {"backend": (lambda gm, inputs: aot_eager(gm, inputs)) if backend == "callable"
                                                     else backend}
    compiled = capture.compile(make(), **arguments)
    for _ in range(3):
        worlds = []
        for call in (make(), compiled):
            x = torch.arange(2.0)
            outputs = call(x)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            if outputs[-1].requires_grad:
                outputs[-1].sum().backward()
            worlds.append([(t.shape, t.requires_grad, t.is_leaf, t.tolist(), t.grad if t.is_leaf and t.grad is None else
                            t.grad.tolist() if t.is_leaf else None) for t in (x, *outputs)])
        assert worlds[0] == worlds[1]


def test_several_results_and_aliases_of_one_and_of_an_argument() -> None:
    def program(x, y):
        z = (x + y).relu()
        x.mul_(2)
        return z, z.T, x, {"sum": z.sum(), "view": x[0]}
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    native.check(lambda: program, helpers.call(x, y), helpers.call(x, y), helpers.call(y, x), captures=1)


@pytest.mark.parametrize("body", ["x * 2", "x.resolve_conj()", "x.imag * 2", "x.imag.resolve_neg()", "x.sin()", "x.t() @ x"])
def test_conjugate_and_negative_inputs(engine: dict[str, Any], body: str) -> None:
    check(engine, ("torch.randn(4, 4, dtype=torch.complex64).conj()",), f"return {body},", "r = f(*a)", "r[0].mul_(2)")
    check(engine, ("torch._neg_view(torch.randn(4, 4))",), f"return {body.replace('.imag', '')},", "r = f(*a)", "r[0].mul_(2)")


def test_gradients_that_are_conjugate_or_have_no_memory(engine: dict[str, Any]) -> None:
    """What leads to such gradients is outside of the graph: `conj()`, derivatives of what has none, sparse embeddings."""
    given = ("torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)", PLAIN)
    for body in ("return x * x * y,", "a = x * y\nreturn a, a.view(-1), a * 2"):
        check(engine, given, body, "(r[0].conj() * 2j).real.sum().backward()")
        check(engine, given, body, "r[0].backward(r[0].detach().conj())")
    for body in ("return x * 3,", "return (x @ y).exp(),", "return x + y,"):
        check(engine, (GRAD, PLAIN), body, "r[0].backward(torch._efficientzerotensor((4, 4)))")
        check(engine, (GRAD, PLAIN), body, "g = torch.autograd.grad(r[0].abs().sum(), a[0], create_graph=True)[0]",
              "g.sum().backward()")
    check(engine, (GRAD,), "return x * 2,", "loss = F.embedding(torch.tensor([0, 2, 2]), r[0], sparse=True).sum()",
          "g = torch.autograd.grad(loss, a[0])[0]; assert g.is_sparse; g = g.to_dense()")
    check(engine, (GRAD, "torch._efficientzerotensor((4, 4))"), "return x * y, x + y", "r[0].sum().backward()")


@pytest.mark.parametrize("call", [
    "F.batch_norm(x, r[:3], r[:3], training=True)",
    "F.batch_norm(x, r[:3], r[3:], training=True)", "F.batch_norm(x, r[:3], r[3:], r[:3], training=True)",
    "F.batch_norm(x, x[0], x[1], training=True)",
    "F.instance_norm(x.view(2, 3, 2), r[:3], r[:3])", "F.instance_norm(x.view(2, 3, 2), r[:3], r[3:])",
    "torch.native_batch_norm(x, None, None, r[:3], r[:3], True, 0.3, 1e-5)[0]",
    "torch.batch_norm(x, None, None, r[:3], r[:3], True, 0.3, 1e-5, False)"])
@pytest.mark.parametrize("engine", ["eager", "native"], indirect=True)
def test_running_statistics_that_lie_where_another_argument_does(engine: dict[str, Any], call: str) -> None:
    scope = {"F": F, "torch": torch}
    program = eval(f"lambda x, r: ({call} * 2, r.sum(), x.sum())", scope)
    compiled = capture.compile(program, **engine)
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        x, r = torch.randn(4, 3, generator=generator), torch.rand(6, generator=generator)
        ours, theirs = (x.clone(), r.clone()), (x.clone(), r.clone())
        torch.testing.assert_close((compiled(*ours), *ours), (program(*theirs), *theirs))
    assert capture.stats(compiled).hits == 3
