"""What mock functions call: tensors dressed as in eager mode, and calls from frames like the user's."""
from __future__ import annotations

import sys
import warnings

import pytest
import torch

from capture.refgraph.effects import Keywords
from capture.refgraph.runtime import CallFrom, dress

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("make", [
    lambda w: w * 2, lambda w: (w * 2).sum(), lambda w: w.double() + 1, lambda w: torch.zeros(0) * w.sum(),
    lambda w: (w * 1e9).exp()],
    ids=["matrix", "scalar", "double", "empty", "infinite"])
def test_a_dressed_tensor_prints_like_a_result(make) -> None:
    result = make(X.clone().requires_grad_())
    dressed = dress(result.detach(), torch.Tensor, type(result.grad_fn).__name__)
    assert (repr(dressed), str(dressed), f"{dressed}", str([dressed])) == (repr(result), str(result), f"{result}", str([result]))
    if result.dim() == 0:
        assert f"{dressed:.2f}" == f"{result:.2f}" and "%.2f" % dressed == "%.2f" % result
    assert dressed.requires_grad and isinstance(dressed, torch.Tensor) and torch.equal(dressed, result)


def test_dressed_leaves_and_parameters() -> None:
    for leaf in (X.clone().requires_grad_(), torch.nn.Parameter(X)):
        assert repr(dress(leaf.detach(), type(leaf), None)) == repr(leaf)


def stand_in(name: str, line: int):
    code = (lambda function, args, kwargs: function(*args, **kwargs)).__code__
    return code.replace(co_filename="user.py", co_name=name, co_firstlineno=line)


def test_callers_are_found_where_the_user_called() -> None:
    inner, outer = {"__name__": "inner"}, {"__name__": "outer"}
    call = CallFrom((stand_in("f", 7), stand_in("g", 30)))

    def frames():
        frame, found = sys._getframe(1), []
        for _ in range(2):
            found.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno, frame.f_globals["__name__"]))
            frame = frame.f_back
        return found
    assert call((inner, outer), frames) == [("user.py", "f", 7, "inner"), ("user.py", "g", 30, "outer")]


@pytest.mark.parametrize(("level", "place"), [(1, ("user.py", 7)), (2, ("user.py", 30)), (3, (__file__, None))])
def test_a_warning_passes_over_the_frames_between(level: int, place) -> None:
    call = CallFrom((stand_in("f", 7), stand_in("g", 30)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(({"__builtins__": __builtins__}, {"__builtins__": __builtins__}), warnings.warn, "careful", stacklevel=level)
    assert caught[0].filename == place[0] and caught[0].lineno == (place[1] or caught[0].lineno)


def test_keywords() -> None:
    template = Keywords(str.format, ("a", "b"))
    assert template("{} {a} {b}", 1, 2, 3) == "1 2 3"
