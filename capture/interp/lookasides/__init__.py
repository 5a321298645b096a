"""What C functions mean: importing this package fills the registry. The first meaning that applies is taken, so the
modules are imported from the particular to the general."""
from capture.interp.lookasides import (
    buffers, contextvars, effects, identity, iterators, sequences, dicts, sets, functional, objects, scalars, torch_objects, weakrefs)

__all__ = ["buffers", "contextvars", "dicts", "effects", "functional", "identity", "iterators", "objects", "scalars", "sequences", "sets",
           "torch_objects", "weakrefs"]
