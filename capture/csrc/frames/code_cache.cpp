#include "frames/code_cache.h"

#include <algorithm>
#include <vector>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // 3.12 has the same functions under public names too

namespace capture {
namespace {

struct Row {
  TreeOwner* owner;
  PyObject* tree;  // borrowed from owner
};

using Table = std::vector<Row>;

Py_ssize_t extra_index = -1;

Table* table_of(PyCodeObject* code) {
  void* table = nullptr;
  checked(_PyCode_GetExtra(reinterpret_cast<PyObject*>(code), extra_index, &table));
  return static_cast<Table*>(table);
}

void free_table(void* extra) {
  auto* table = static_cast<Table*>(extra);
  if (table == nullptr) return;
  Table rows = std::move(*table);
  delete table;
  for (const Row& row : rows) row.owner->forget_tree(row.tree);
}

// The trees registered for a code object: for reports and tests.
PyObject* trees_of_code(PyObject*, PyObject* code) {
  try {
    if (!PyCode_Check(code)) {
      PyErr_Format(PyExc_TypeError, "a code object is needed, not %.200s", Py_TYPE(code)->tp_name);
      return nullptr;
    }
    Ref trees = Ref::steal(checked(PyList_New(0)));
    if (Table* table = table_of(reinterpret_cast<PyCodeObject*>(code))) {
      for (const Row& row : *table) checked(PyList_Append(trees.get(), row.tree));
    }
    return trees.release();
  } catch (PythonError&) {
    return nullptr;
  }
}

PyMethodDef functions[] = {
    {"trees", trees_of_code, METH_O, "The guard trees that live on a code object."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* code_cache_find(PyCodeObject* code, const TreeOwner* owner) {
  Table* table = table_of(code);
  if (table == nullptr) return nullptr;
  auto row = std::find_if(table->begin(), table->end(), [&](const Row& r) { return r.owner == owner; });
  return row == table->end() ? nullptr : row->tree;
}

void code_cache_add(PyCodeObject* code, TreeOwner* owner, PyObject* tree) {
  Table* table = table_of(code);
  if (table == nullptr) {
    table = new Table;
    if (_PyCode_SetExtra(reinterpret_cast<PyObject*>(code), extra_index, table) < 0) {
      delete table;
      throw PythonError{};
    }
  }
  table->push_back({owner, tree});
}

void code_cache_remove(PyCodeObject* code, const TreeOwner* owner) {
  if (Table* table = table_of(code)) std::erase_if(*table, [&](const Row& row) { return row.owner == owner; });
}

void init_code_cache(PyObject* module) {
  extra_index = _PyEval_RequestCodeExtraIndex(free_table);
  if (extra_index < 0) {
    PyErr_SetString(PyExc_RuntimeError, "no index for extra data on code objects is left in this process");
    throw PythonError{};
  }
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
