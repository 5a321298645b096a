"""`_C.make_traceback` and the exception being handled."""
import sys
import traceback

import pytest

from capture import _C


def user_function(x):
    y = x + 1
    return lambda: (x, y)


def test_a_traceback_entry_shows_the_users_line():
    line = user_function.__code__.co_firstlineno + 1
    made = _C.make_traceback(None, user_function.__code__, user_function.__globals__, 8, line)
    assert made.tb_lineno == line and made.tb_next is None and made.tb_frame.f_code is user_function.__code__
    assert made.tb_frame.f_lasti == 8 and made.tb_frame.f_locals == {}
    text = "".join(traceback.format_tb(made))
    assert f"line {line}, in user_function" in text and "y = x + 1" in text


def test_entries_chain_and_can_be_raised():
    inner = _C.make_traceback(None, user_function.__code__, globals(), 0, 1)
    outer = _C.make_traceback(inner, user_function.__code__, globals(), 0, 2)
    assert outer.tb_next is inner
    try:
        raise ValueError("x").with_traceback(outer)
    except ValueError as error:
        assert [entry.lineno for entry in traceback.extract_tb(error.__traceback__)][1:] == [2, 1]


def test_frames_of_closures_have_locals():
    code = user_function(1).__code__
    made = _C.make_traceback(None, code, globals(), 2, code.co_firstlineno)
    assert made.tb_frame.f_locals == {}
    made.tb_frame.clear()


def test_wrong_arguments():
    with pytest.raises(TypeError):
        _C.make_traceback(None, user_function, {}, 0, 1)
    with pytest.raises(TypeError):
        _C.make_traceback(1, user_function.__code__, {}, 0, 1)


def test_the_exception_being_handled_can_be_exchanged():
    assert sys.exception() is None
    try:
        raise KeyError("first")
    except KeyError as error:
        assert sys.exception() is error
        other = ValueError("second")
        _C.set_handled_exception(other)
        assert sys.exception() is other
        _C.set_handled_exception(error)
    assert sys.exception() is None
    with pytest.raises(TypeError):
        _C.set_handled_exception(3)
