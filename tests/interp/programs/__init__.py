"""Programs of plain Python for the interpreter: each takes a log."""
from tests.interp.programs import classes, coroutines, environment, exceptions, generators, matching, values
from tests.interp.programs.base import PROGRAMS

__all__ = ["PROGRAMS", "classes", "coroutines", "environment", "exceptions", "generators", "matching", "values"]
