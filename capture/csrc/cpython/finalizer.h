/* Whether the finalizer of an object is still to run. */
#pragma once
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Has an object that the garbage collector tracks die without its finalizer, as one that has run already. */
void drop_finalizer(PyObject *object);

#ifdef __cplusplus
}
#endif
