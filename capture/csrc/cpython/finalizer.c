/* The mark of an object whose finalizer has run, which only CPython's internal headers tell. */
#define Py_BUILD_CORE
#include "cpython/finalizer.h"
#include "internal/pycore_gc.h"

void drop_finalizer(PyObject *object) { _PyGC_SET_FINALIZED(object); }
