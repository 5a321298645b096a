"""Every question that a program can ask of a value, asked of a universe of objects: a program is captured with one, and called
with all others. Whatever a hit answers must be what eager mode answers: value, type, identity, exception, what is left changed.

    python -m tests.universe --seed 1 --cases 100000 --jobs 2       # a bug is printed as a program, and by which call it shows

`objects.py` are the objects, `programs.py` and `statements.py` what is asked of them, `case.py` draws a case and runs it,
`outcome.py` describes what a call came to, `asking.py` and `special_methods.py` count what objects are asked for. Cases are run in
processes of their own, by `tests/fuzz/hunt.py`.
"""
