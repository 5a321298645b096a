/* The search of Objects/dictobject.c, which is the same in CPython 3.11 to 3.13. */
#define Py_BUILD_CORE
#include "cpython/dict_probe.h"
#include "internal/pycore_dict.h"

enum { PERTURB_SHIFT = 5 };

/* The number of the entry that a slot of the hash table refers to, or DKIX_EMPTY or DKIX_DUMMY. */
static Py_ssize_t entry_at(const PyDictKeysObject *keys, size_t slot) {
    if (keys->dk_log2_size < 8)
        return ((const int8_t *)keys->dk_indices)[slot];
    if (keys->dk_log2_size < 16)
        return ((const int16_t *)keys->dk_indices)[slot];
    if (keys->dk_log2_size < 32)
        return ((const int32_t *)keys->dk_indices)[slot];
    return (Py_ssize_t)((const int64_t *)keys->dk_indices)[slot];
}

/* Whether the entry of this number has this hash, and is one of this dict. */
static int has_hash(PyDictObject *dict, Py_ssize_t number, Py_hash_t hash, PyObject **key, PyObject **value) {
    PyDictKeysObject *keys = dict->ma_keys;
    if (keys->dk_kind == DICT_KEYS_GENERAL) {
        PyDictKeyEntry *entry = &DK_ENTRIES(keys)[number];
        *key = entry->me_key;
        *value = entry->me_value;
        return entry->me_hash == hash;
    }
    PyDictUnicodeEntry *entry = &DK_UNICODE_ENTRIES(keys)[number];
    *key = entry->me_key;
    *value = dict->ma_values != NULL ? dict->ma_values->values[number] : entry->me_value;
    return *value != NULL && ((PyASCIIObject *)*key)->hash == hash;
}

int dict_probe_next(PyObject *dict, Py_hash_t hash, DictProbe *probe, PyObject **key, PyObject **value) {
    PyDictObject *table = (PyDictObject *)dict;
    size_t mask = (size_t)DK_SIZE(table->ma_keys) - 1;
    while (1) {
        if (!probe->begun) {
            probe->begun = 1;
            probe->perturb = (size_t)hash;
            probe->slot = (size_t)hash & mask;
        } else {
            probe->perturb >>= PERTURB_SHIFT;
            probe->slot = (probe->slot * 5 + probe->perturb + 1) & mask;
        }
        Py_ssize_t number = entry_at(table->ma_keys, probe->slot);
        if (number == DKIX_EMPTY)
            return 0;
        if (number >= 0 && has_hash(table, number, hash, key, value))
            return 1;
    }
}

int dict_entry_next(PyObject *dict, Py_ssize_t *position, PyObject **key, PyObject **value, Py_hash_t *hash) {
    if (!PyDict_Next(dict, position, key, value))
        return 0;
    PyDictKeysObject *keys = ((PyDictObject *)dict)->ma_keys;       /* `position` is behind the entry */
    *hash = keys->dk_kind == DICT_KEYS_GENERAL ? DK_ENTRIES(keys)[*position - 1].me_hash : ((PyASCIIObject *)*key)->hash;
    return 1;
}
