/* How CPython searches a dict for a hash. */
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where a search stands; zeros begin one. */
typedef struct {
    size_t slot, perturb;
    int begun;
} DictProbe;

/* The next key of a dict that is kept under a hash, in the order in which CPython compares them with a key that is looked up, and what is under it; both
 * borrowed. Returns whether there is one. The dict must not change between the calls of one search. */
int dict_probe_next(PyObject *dict, Py_hash_t hash, DictProbe *probe, PyObject **key, PyObject **value);

#ifdef __cplusplus
}
#endif
