"""Whether two objects from outside are the same one: captured with two, called with one, and the other way."""
from __future__ import annotations

import pytest
import torch

from tests.helpers import call_with, check

KINDS = {"slice": slice(None), "error": KeyError(), "tensor": torch.ones(2), "text": "ab" * 9, "number": 12345, "float": 2.5,
         "list": [1], "tuple": (1,), "empty": (), "nested": ([],), "range": range(3), "dict": {}, "class": KeyError,
         "function": len, "none": None, "bytes": b"ab", "dtype": torch.float32, "size": torch.Size([2]),
         "device": torch.device("cpu")}


@pytest.mark.parametrize("first", KINDS)
def test_two_objects_become_one(first) -> None:
    def program(x, a, b):
        return x + 1, a is b, a is not b
    for second in KINDS:
        for a, b in (first, second), (second, first):
            calls = [call_with(lambda kinds, given=given: (kinds["tensor"], *map(kinds.get, given)))
                     for given in ((a, b), (a, a), (b, b), (b, a), (a, b))]
            check(lambda: (program, KINDS), *calls, captures=None)
