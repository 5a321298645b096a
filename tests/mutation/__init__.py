"""Requirements by mutation: programs whose world is changed, at every place that they can reach, between two calls.

    python -m tests.mutation tests/stale tests/language --each 40 --seed 1      # the programs of these tests; bugs are printed
    python -m tests.mutation tests/stale --guards                               # also: which guards can be told from none

`places.py` finds the places where a program's world holds something, `mutators.py` and `modes.py` say what can be changed there,
`world.py` runs a program in eager and captured worlds with one of these changes, `guards.py` with a guard less, `hunt.py` draws
from all there is, `plugin.py` takes programs from tests.
"""
