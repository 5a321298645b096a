"""Random programs over a random world, which changes from outside between the calls: eager and captured must agree.

    python -m tests.fuzz --steps 10000 --seed 1 --jobs 2        # a bug is printed as a small program with its list of steps

`pieces.py` says what a world is made of; `objects.py`, `models.py` and `users.py` have the pieces. `writer.py` writes the bodies of
its functions, `steps.py` the calls and the changes between them; `case.py` runs a case in both worlds and compares them,
`shrink.py` makes one that fails small, `hunt.py` looks for more.
"""
