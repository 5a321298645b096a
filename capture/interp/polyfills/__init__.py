"""Builtins that call Python code, written in Python: importing this package fills the registry. The first polyfill that
applies is taken: special methods of instances come before rules for kinds of containers."""
from capture.interp.polyfills import (
    stand_ins, async_generators, copying, protocols, text, operators, keys, mappings, iteration, sorting, folds, streams, grouping,
    choices, functional, objects, classes, standard_library, overrides)

__all__ = [
    "async_generators", "choices", "classes", "copying", "folds", "functional", "grouping", "iteration", "keys",
    "mappings", "objects", "operators", "overrides", "protocols", "sorting", "stand_ins", "standard_library", "streams",
    "text"]
