"""Every kind of descriptor, found in every way, on classes and instances that change between calls: eager and captured must agree.

    python -m tests.descriptors --cases 10000 --seed 1          # a case that fails is printed with its list of changes

`call_kinds.py` has what a class may hold, `world.py` the classes, the ways of asking them, and what changes from outside.
"""
