"""CPython's own tests of the language, run by our interpreter: it must pass what CPython passes."""
from __future__ import annotations

import pytest

from tests.cpython.score import score

# The language itself, quickly; the rest of `score.MODULES` takes many minutes.
MODULES = tuple("test_" + name for name in (
    "grammar asyncgen contextlib class coroutines decorators dictcomps except_star extcall genexps iter keywordonlyarg list "
    "listcomps metaclass named_expressions patma positional_only_arg property raise scope setcomps subclassinit super tuple unpack "
    "unpack_ex with yield_from").split())
LIMIT = 100     # seconds for one of their tests: one that hangs is named before this one is ended


@pytest.mark.parametrize("module", MODULES)
def test_module(module):
    found = score(module, limit=LIMIT)
    assert found.passed or found.failed
    assert not found.unexplained, "\n".join(f"{test}: {text}" for test, text in found.unexplained.items())
    assert not found.outdated, f"remove {found.outdated} from differences.py"
