"""The tests of CPython that pass natively and not in our interpreter, each by name, with the reason."""
from __future__ import annotations

FRAMES = "asks for the frame behind a traceback: ours have no frame of CPython but one made for the traceback"
ORIGIN = "asks where a coroutine was created, by CPython's frames"
ADDRESSES = "takes the addresses of dead tuples for equal: CPython frees each before it makes the next"
BUILTINS = "deletes or replaces builtins which our own code uses"
COUNTS = "counts the objects of the process, of which some are ours"
CONSTRUCTOR = "expects what C makes of a class of lists that has the `__new__` of object: ours refuses it, as Python code would"
BASES = "changes the bases of a class while an attribute is looked up in it"
TIME = "takes minutes in our interpreter"
HANDLER = "an error in an iterator's `close` attribute that close() reports as unraisable leaves through our frames"
LOCALS = "the frames of our tracebacks hold no locals, and know the line of the exception alone"
CALLBACK = "an exception of Python code called by C has lost the entry of that code"
DEPTH = "exhausts the recursion limit where our own frames need some of it"
VECTORCALL = "compares what C code calls by identity"

DIFFERENCES: dict[str, str] = {
    "test.test_call.TestPEP590.test_vectorcall_override": VECTORCALL,
    "test.test_coroutines.OriginTrackingTest.test_origin_tracking": ORIGIN,
    "test.test_coroutines.OriginTrackingTest.test_origin_tracking_warning": ORIGIN,
    "test.test_descr.ClassPropertiesAndMethods.test_bad_new": CONSTRUCTOR,
    "test.test_descr.ClassPropertiesAndMethods.test_slots": COUNTS,
    "test.test_descr.MiscTests.test_type_lookup_mro_reference": BASES,
    "test.test_exceptions.ExceptionTests.testSettingException": CALLBACK,
    "test.test_exceptions.ExceptionTests.test_memory_error_cleanup": LOCALS,
    "test.test_exceptions.ExceptionTests.test_recursion_in_except_handler": DEPTH,
    "test.test_exceptions.PEP626Tests.test_lineno_after_other_except": LOCALS,
    "test.test_exceptions.PEP626Tests.test_lineno_in_try": LOCALS,
    **{f"test.test_functools.TestLRU{kind}.test_lru_reentrancy_with_len": BUILTINS for kind in ("C", "Py")},
    "test.test_generators.__test__.conjoin": TIME,
    **{f"test.test_itertools.TestBasicOps.test_{name}": TIME for name in (
        "combinations_with_replacement", "permutations", "product", "tee", "tee_del_backward")},
    **{f"test.test_itertools.TestBasicOps.test_{name}_tuple_reuse": ADDRESSES for name in (
        "combinations", "combinations_with_replacement", "permutations", "product", "zip_longest")},
    "test.test_iter.TestCase.test_reduce_mutating_builtins_iter": BUILTINS,
    "test.test_raise.TestTracebackType.test_attrs": FRAMES,
    **{f"test.test_set.Test{kind}.test_hash_effectiveness": TIME for kind in ("FrozenSet", "FrozenSetSubclass")},
    **{f"test.test_weakref.MappingTestCase.test_threaded_weak_valued_{name}": TIME for name in (
        "consistency", "pop", "setdefault")},
    "test.test_yield_from.TestPEP380Operation.test_broken_getattr_handling": HANDLER,
}
