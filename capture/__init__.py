"""capture: a Python-to-graph capture JIT for PyTorch."""
from capture import errors
from capture.api import Stats, compile, disable, explain, is_capturing, reset, stats, wait

__all__ = ["Stats", "compile", "disable", "errors", "explain", "is_capturing", "reset", "stats", "wait"]
__version__ = "0.1.0"
