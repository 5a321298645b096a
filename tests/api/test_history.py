"""What reports keep of captures and misses: counts that are added up, paths in the user's words."""
from __future__ import annotations

import operator

from capture.history import Counts, labelled, total
from capture.interp.coroutines.bodies import dormant_of
from capture.refgraph.source import Attr, Computed, Literal, Local

X = Local("x", 0)


def test_counts_are_added_up() -> None:
    one, other = Counts(1, hits=3, graphs=1, operations=5), Counts(2, native_calls=4)
    assert total([one, other, other]) == Counts(5, hits=3, native_calls=8, graphs=1, operations=5) and total([]) == Counts()
    assert other == Counts(2, native_calls=4)
    one.clear()
    assert one == Counts()


def test_paths_are_in_the_users_words() -> None:
    assert str(labelled(Computed(dormant_of, (X,)), {})) == "the state of a generator"
    assert str(labelled(Computed(operator.add, (Attr(X, "n"), Literal(1))), {"x": "y"})) == "(y.n + 1)"
    assert str(labelled(Attr(X, "n"), {"x": "the result of f()"})) == "(the result of f()).n"
