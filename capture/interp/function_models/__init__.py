"""What C functions mean: importing this package fills the registry. The first meaning that applies is taken, so the
modules are imported from the particular to the general."""
import types

from capture.interp.core.registry import MODELS, POLYFILLS, PURE
from capture.interp.function_models import (
    autograd, autograd_functions, buffers, checkpoints, classes, collectives, contextvars, control_flow, data_parallel,
    decimals, dynamo_operators, printing, library_effects, random_streams, exception_groups, flex_attention, helpers_of_polyfills,
    identity, iterators, keys, locks, sequences, sequence_changes, dicts, sets, functional, objects, overrides, process_groups,
    progress_bars, scalars, scripted, signatures, standard_library, symbolic_numbers, torch_legacy, numpy_arrays, pinned_code,
    torch_objects, transforms, weakrefs)

__all__ = ["autograd", "autograd_functions", "buffers", "checkpoints", "classes", "collectives", "contextvars", "control_flow",
           "data_parallel", "decimals", "dicts", "dynamo_operators", "exception_groups", "flex_attention", "functional",
           "helpers_of_polyfills", "identity", "iterators", "keys", "library_effects", "locks", "numpy_arrays", "objects",
           "overrides", "printing", "process_groups", "progress_bars", "random_streams", "scalars", "scripted", "sequence_changes",
           "sequences", "sets", "signatures", "standard_library", "symbolic_numbers", "torch_legacy", "torch_objects", "transforms",
           "weakrefs"]

for _function in (*MODELS, *POLYFILLS, *PURE):
    if type(_function) is types.FunctionType and pinned_code.is_of_python(_function):
        pinned_code.original_meaning(_function)
