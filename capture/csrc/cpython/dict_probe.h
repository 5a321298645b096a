/* How CPython searches a dict for a hash, and its functions that take keys with their hashes. */
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

/* The next key of a dict that is kept under a hash, and its value, both borrowed; in the order in which CPython compares keys with
 * one that is looked up. Returns whether there is one. The dict must not change between the calls of one search. */
int dict_probe_next(PyObject *dict, Py_hash_t hash, DictProbe *probe, PyObject **key, PyObject **value);

/* PyDict_Next with the hash that a key is kept under. */
int dict_entry_next(PyObject *dict, Py_ssize_t *position, PyObject **key, PyObject **value, Py_hash_t *hash);

#if PY_VERSION_HEX >= 0x030D0000 /* exported, but declared only where CPython is built */
PyAPI_FUNC(int) _PyDict_SetItem_KnownHash(PyObject *dict, PyObject *key, PyObject *value, Py_hash_t hash);
PyAPI_FUNC(int) _PyDict_DelItem_KnownHash(PyObject *dict, PyObject *key, Py_hash_t hash);
PyAPI_FUNC(int) _PySet_NextEntry(PyObject *set, Py_ssize_t *position, PyObject **key, Py_hash_t *hash);
PyAPI_FUNC(int) _PySet_Update(PyObject *set, PyObject *iterable);
#endif

#ifdef __cplusplus
}
#endif
