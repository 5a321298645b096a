"""The tests of CPython that pass natively and not in our interpreter, each by name, with the reason."""
from __future__ import annotations

RUNNING = "a generator or coroutine resumed by our own loop does not look running, or awaited, from outside"
CODE = "a generator's gi_code is that of the driver which stands for it"
TRACING = "functions set by sys.settrace are not told of lines that our loop runs"
FRAMES = "asks for the frame behind a traceback: ours have no frame of CPython but one made for the traceback"
ORIGIN = "asks where a coroutine was created, by CPython's frames"
IDENTITY = "asks for the type of an iterator, which is a class of ours"
ADDRESSES = "takes the addresses of dead tuples for equal: CPython frees each before it makes the next"
DELETED = "deletes builtins which our own code uses"
DESCRIPTOR = "a special method given by a property: polyfills call special methods as functions"
HANDLER = "an error in an iterator's `throw` attribute that close() reports as unraisable leaves through our frames"
STACK = "counts the frames of CPython's stack, in which our own lie"
LOCALS = "the frames of our tracebacks hold no locals, and know the line of the exception alone"
MESSAGE = "a message of Argument Clinic, where a polyfill binds its arguments"
CALLBACK = "an exception of Python code called by C has lost the entry of that code"
NAMES = "an AttributeError that `__getattr__` raises is not given the name and the object"
DEPTH = "exhausts the recursion limit where our own frames need some of it"
VECTORCALL = "compares what C code calls by identity"
DEAD_PROXY = "our bookkeeping asks a dead weak proxy for its class, which raises"

DIFFERENCES: dict[str, str] = {
    "test.test_call.CFunctionCallsErrorMessages.test_varargs14_kw": MESSAGE,
    "test.test_call.TestPEP590.test_vectorcall_override": VECTORCALL,
    "test.test_class.ClassTests.testForExceptionsRaisedInInstanceGetattr2": DESCRIPTOR,
    "test.test_coroutines.CoroutineTest.test_cr_await": RUNNING,
    "test.test_coroutines.CoroutineTest.test_stack_in_coroutine_throw": STACK,
    "test.test_coroutines.OriginTrackingTest.test_origin_tracking": ORIGIN,
    "test.test_coroutines.OriginTrackingTest.test_origin_tracking_warning": ORIGIN,
    **{f"test.test_exceptions.AttributeErrorTests.test_getattr_suggestions_{name}": NAMES for name in ("invalid_args", "no_args")},
    "test.test_exceptions.ExceptionTests.testSettingException": CALLBACK,
    "test.test_exceptions.ExceptionTests.test_memory_error_cleanup": LOCALS,
    "test.test_exceptions.ExceptionTests.test_recursion_error_cleanup": LOCALS,
    "test.test_exceptions.ExceptionTests.test_recursion_in_except_handler": DEPTH,
    "test.test_exceptions.PEP626Tests.test_lineno_after_other_except": LOCALS,
    "test.test_exceptions.PEP626Tests.test_lineno_in_try": LOCALS,
    "test.test_generators.YieldFromTests.test_generator_gi_yieldfrom": RUNNING,
    "test.test_generators.__test__.syntax": CODE,
    "test.test_genexps.__test__.doctests": ADDRESSES,
    "test.test_iter.TestCase.test_mutating_seq_class_iter_pickle": IDENTITY,
    "test.test_iter.TestCase.test_reduce_mutating_builtins_iter": DELETED,
    **{f"test.test_patma.TestTracing.test_{name}": TRACING for name in (
        "default_capture", "default_wildcard", "no_default", "only_default_capture", "only_default_wildcard", "unreachable_code")},
    "test.test_raise.TestTracebackType.test_attrs": FRAMES,
    "test.test_set.TestSet.test_weakref": DEAD_PROXY,
    "test.test_set.TestSetSubclass.test_weakref": DEAD_PROXY,
    "test.test_types.CoroutineTests.test_async_def": CODE,
    "test.test_types.CoroutineTests.test_duck_gen": DESCRIPTOR,
    "test.test_yield_from.TestPEP380Operation.test_broken_getattr_handling": HANDLER,
}
