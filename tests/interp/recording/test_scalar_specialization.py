"""Where a number among the arguments of a tensor operation may be another one on each call."""
from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

from capture.interp.recording.scalar_specialization import Numbers, Place, place_of
from capture.refgraph.source import Attr, Local
from tests.helpers import call, check

CALCULATED = [
    (operator.mul, 1, 2.0), (operator.sub, 0, 2), (operator.imul, 1, 2), (operator.setitem, 2, 3), ("__rsub__", 1, 2.0),
    ("add_", 1, 2), ("add_", "alpha", 2.0), ("addcdiv_", "value", 1), ("lerp_", 2, 0.1), ("masked_fill", 2, 1),
    ("clamp", "min", 1.0), ("pow", 1, 2), ("new_full", 2, 4), ("std", "correction", 1), (torch.where, 2, 1.0), (torch.full, 1, 3.0),
    (torch.tensor, 0, 3), (torch.quantile, 1, 0.1), (torch._foreach_mul_, 1, 3), (F.layer_norm, 4, 1e-5), (F.softplus, 1, 1),
    (F.cross_entropy, "label_smoothing", 0.1), (F.scaled_dot_product_attention, "scale", 0.1), (F.pad, 3, 1.0),
    (torch.ops.aten.mul.Scalar, 1, 2.0), (torch.ops.aten.mul, 1, 2.0)]
DECIDING = [
    ("sum", 1, 0), ("view", 1, 2), ("repeat", 2, 3), ("expand", 1, 3), ("unsqueeze", 1, 1), ("to", 1, 0), ("std", 1, 2),
    ("topk", 1, 1), ("roll", 2, 1), ("select", 1, 1), ("narrow", 3, 2), ("new_full", 1, 4), (torch.arange, 0, 3.0),
    (torch.zeros, 0, 3), (torch.linspace, 2, 4), (torch.dropout, 2, True), (F.dropout, 2, 1), (F.interpolate, 2, 2.0),
    (F.softmax, 1, 1), (F.one_hot, 1, 3), (torch.lstm, 5, 0.1), ("sqrt", 1, 2), ("no_such_method", 1, 2.0),
    (torch.autograd.Function.apply, 0, 1.0)]


@pytest.mark.parametrize("target, where, real", CALCULATED, ids=str)
def test_numbers_that_are_calculated_with(target, where, real) -> None:
    assert place_of(target, where, real) is Place.VALUE and Place.VALUE.allows(real)


@pytest.mark.parametrize("target, where", [
    (torch.dropout, 1), (torch.alpha_dropout, "p"), (F.dropout, 1), (F.feature_alpha_dropout, "p"),
    (F.scaled_dot_product_attention, "dropout_p")],
                         ids=str)
def test_probabilities_of_dropout(target, where) -> None:
    assert place_of(target, where, 0.5) is Place.RATE and Place.RATE.allows(0.5)


@pytest.mark.parametrize("target, where, real", DECIDING, ids=str)
def test_numbers_from_which_more_follows(target, where, real) -> None:
    assert place_of(target, where, real) is Place.FIXED and not Place.FIXED.allows(real)


def test_lists_of_numbers() -> None:
    assert place_of(torch.tensor, 0, [1.0]) is place_of(torch._foreach_addcdiv_, 3, [1.0]) is Place.VALUES
    assert place_of("sum", 1, [0]) is place_of("view", 1, [2]) is Place.FIXED
    assert Place.VALUES.inner is Place.VALUE and not Place.VALUES.allows([1.0])


def test_subscripts_allow_integers_alone() -> None:
    assert place_of(operator.getitem, 1, 3) is place_of(operator.setitem, 1, (3, 1)) is Place.INDEX is Place.INDEX.inner
    assert Place.INDEX.allows(3) and not Place.INDEX.allows(True) and not Place.INDEX.allows(slice(3))


@pytest.mark.parametrize("target, where", [("roll", 1), (torch.roll, "shifts"), ("triu_", 1), (torch.tril, "diagonal"),
                                           ("select", 2), ("narrow", 2)],
                         ids=str)
def test_integers_that_move_elements(target, where) -> None:
    assert place_of(target, where, 3) is Place.INDEX


def test_booleans_decide() -> None:
    assert not Place.VALUE.allows(True)


def test_operators_of_others_are_not_known() -> None:
    library = torch.library.Library("varying_test", "DEF")
    library.define("crop(Tensor x, float part) -> Tensor")
    assert place_of(torch.ops.varying_test.crop, 1, 0.5) is Place.FIXED


def test_a_number_varies_once_it_was_another_one() -> None:
    seen, path, other = Numbers(), Attr(Local("config", 0), "rate"), Local("x", 1)
    assert [seen.varies(path, value) for value in (0.0, 0.0, -0.0, 0.0)] == [False, False, True, True]
    assert [seen.varies(other, value) for value in (float("nan"), float("nan"), 1.0)] == [False, False, True]
    assert seen.varies(Attr(Local("config", 0), "rate"), 0.0)


def test_what_several_captures_differ_by_ends_the_next_trace() -> None:
    seen, size, items = Numbers(), Local("n", 0), Local("items", 1)
    seen.missed([("VALUE", "n", "1")] * 3 + [("VALUE", "n", "2"), ("LENGTH", "items", "1")], continued=False)
    assert not seen.changes_often(size, "VALUE") and not seen.changes_often(items, "LENGTH")
    seen.missed([("VALUE", "n", str(i)) for i in range(3)], continued=False)
    assert seen.changes_often(size, "VALUE") and not seen.changes_often(size, "LENGTH")
    seen.missed([("LENGTH", "items", "2"), ("VALUE", "m", "1")], continued=True)
    assert seen.changes_often(items, "LENGTH") and not seen.changes_often(Local("m", 2), "VALUE")


def test_shifts_of_a_roll_are_no_subscripts() -> None:
    def program(x, n):
        return torch.roll(x, shifts=(n, n, 1), dims=(0, 1, 1)), x.roll((n, n, n), (0, 1, 0))
    x = torch.arange(6.0).reshape(2, 3)
    check(lambda: program, call(x, 1), call(x, 1), call(x, 2), call(x, 5), captures=None)
