#include "frames/stance.h"

#include <utility>

#include "cpython/dict_version.h"
#include "cpython/frame_view.h"
#include "python_ref.h"

namespace capture {
namespace {

PyObject* owner_name = nullptr;     // "torch._dynamo.eval_frame", which is imported when the program first sets a stance
PyObject* owner_namespace = nullptr;  // its vars, once it was
PyObject* stance_name = nullptr;    // "_stance", its global: another object for each stance
PyObject* kind_name = nullptr;      // "stance", the attribute of that object which names it
PyObject* latest = nullptr;         // the one that was looked at last …
bool latest_is_eager = false;       // … and what it says
bool latest_is_default = true;
uint64_t looked_at = 0;             // the version of the dict in which that was looked up
bool mocks_are_files = false;

// Looks at the stance, if it is another one than before. Whether there is any.
bool look_at_stance() {
  if (owner_namespace == nullptr) {
    PyObject* modules = PyImport_GetModuleDict();
    if (dict_version(modules) == looked_at) return false;
    looked_at = dict_version(modules);
    PyObject* owner = PyDict_GetItemWithError(modules, owner_name);
    if (owner == nullptr || !PyModule_Check(owner)) return false;
    owner_namespace = Py_NewRef(PyModule_GetDict(owner));
  }
  if (dict_version(owner_namespace) == looked_at) return latest != nullptr;
  looked_at = dict_version(owner_namespace);
  PyObject* stance = PyDict_GetItemWithError(owner_namespace, stance_name);
  if (stance == nullptr) return false;  // it is still being imported
  if (stance != latest) {
    Ref kind = Ref::steal(PyObject_GetAttr(stance, kind_name));
    if (!kind) PyErr_Clear();
    auto is = [&](const char* name) {
      return kind && PyUnicode_Check(kind.get()) && PyUnicode_CompareWithASCIIString(kind.get(), name) == 0;
    };
    latest_is_eager = is("force_eager");
    latest_is_default = is("default");
    Ref old = Ref::steal(std::exchange(latest, Py_NewRef(stance)));
  }
  return true;
}

}  // namespace

bool eager_is_forced() { return look_at_stance() && latest_is_eager; }

bool stance_is_default() { return !look_at_stance() || latest_is_default; }

bool program_is_traced() { return lines_are_traced() && !mocks_are_files; }

PyObject* step_through_mocks(PyObject*, PyObject* flag) {
  int truth = PyObject_IsTrue(flag);
  if (truth < 0) return nullptr;
  mocks_are_files = truth != 0;
  Py_RETURN_NONE;
}

void init_stance() {
  owner_name = checked(PyUnicode_InternFromString("torch._dynamo.eval_frame"));
  stance_name = checked(PyUnicode_InternFromString("_stance"));
  kind_name = checked(PyUnicode_InternFromString("stance"));
}

}  // namespace capture
