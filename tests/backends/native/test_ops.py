"""The table of scalar operations agrees with eager about dtypes, and says what it takes."""
import pytest
import torch

from capture.backends.native import ops

DTYPES = sorted(ops.STORED, key=str)


def arguments(op: ops.ScalarOp, dtype: torch.dtype) -> list[torch.Tensor]:
    values = [torch.tensor(numbers, dtype=torch.int8).to(dtype) for numbers in ([1, 3, 2], [1, 2, 1], [2, 1, 3])]
    return [torch.tensor([True, False, True]), *values[:2]] if op.name == "where" else values[:op.arity]


@pytest.mark.parametrize("name", ops.OPS)
def test_the_result_has_the_dtype_of_eager(name):
    op = ops.OPS[name]
    for dtype in op.accepts:
        given = arguments(op, dtype)
        expected = ops.result_dtype(name, *(argument.dtype for argument in given))
        for wanted in [expected] if expected else DTYPES:
            result = ops.evaluate(name, wanted, *given)
            assert (result.dtype, result.shape) == (wanted, (3,)), dtype


@pytest.mark.parametrize("name", ops.OPS)
def test_what_is_not_accepted_is_refused(name):
    op = ops.OPS[name]
    for dtype in set(DTYPES) - op.accepts:
        with pytest.raises(TypeError, match=name):
            ops.result_dtype(name, *(argument.dtype for argument in arguments(op, dtype)))


@pytest.mark.parametrize("dtypes", [(torch.int32,), (torch.int32, torch.int64), (torch.int32,) * 3])
def test_arguments_that_do_not_fit_are_refused(dtypes):
    with pytest.raises(TypeError):
        ops.result_dtype("add", *dtypes)


def test_a_condition_is_bool():
    assert ops.result_dtype("where", torch.bool, torch.int8, torch.int8) == torch.int8
    with pytest.raises(TypeError):
        ops.result_dtype("where", torch.int8, torch.int8, torch.int8)
    with pytest.raises(TypeError):
        ops.result_dtype("where", torch.bool, torch.int8, torch.int16)


@pytest.mark.parametrize("name,dtype,given,expected", [
    ("floordiv", torch.int32, ([7, -7, 7, -7], [2, 2, -2, -2]), [3, -4, -4, 3]),
    ("truncdiv", torch.int32, ([7, -7, 7, -7], [2, 2, -2, -2]), [3, -3, -3, 3]),
    ("remainder", torch.int32, ([7, -7, 7, -7], [2, 2, -2, -2]), [1, 1, -1, -1]),
    ("fmod", torch.int32, ([7, -7, 7, -7], [2, 2, -2, -2]), [1, -1, 1, -1]),
    ("lshift", torch.int8, ([1, 1, 1, -1], [1, 7, 8, -1]), [2, -128, 0, 0]),
    ("rshift", torch.int8, ([4, -4, -4, 4], [1, 1, 100, -1]), [2, -2, -1, 0]),
    ("add", torch.uint8, ([255], [1]), [0]),
    ("neg", torch.uint8, ([1],), [255]),
    ("not", torch.bool, ([True, False],), [False, True]),
    ("not", torch.uint8, ([1],), [254]),
    ("and", torch.bool, ([True, True], [True, False]), [True, False]),
    ("round", torch.float32, ([0.5, 1.5, -2.5],), [0.0, 2.0, -2.0]),
    ("sign", torch.float32, ([float("nan"), -2.0],), [0.0, -1.0]),
    ("to", torch.int32, ([1.9, -1.9],), [1, -1]),
    ("to", torch.bool, ([0.0, 0.1, float("nan")],), [False, True, True]),
])
def test_meaning(name, dtype, given, expected):
    given = [torch.tensor(values) if name == "to" else torch.tensor(values, dtype=dtype) for values in given]
    assert ops.evaluate(name, dtype, *given).tolist() == expected
