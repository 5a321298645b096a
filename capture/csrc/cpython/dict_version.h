// The version of a dict: another number after each change of it, which no dict has had before.
#pragma once

#include <Python.h>

#include <cstdint>

namespace capture {

inline uint64_t dict_version(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // since 3.12, in favour of watchers
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

}  // namespace capture
