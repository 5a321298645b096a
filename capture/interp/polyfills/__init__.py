"""Builtins that call Python code, written in Python: importing this package fills the registry. The first polyfill that
applies is taken: special methods of instances come before rules for kinds of containers."""
from capture.interp.polyfills import copying, protocols, operators, keys, mappings, iteration, streams, functional, objects, classes, library

__all__ = ["classes", "copying", "functional", "iteration", "keys", "library", "mappings", "objects", "operators", "protocols", "streams"]
