// Whether code of the program runs as objects die: finalizers, callbacks of weak references, generators that are closed.
//
// References that are about to be dropped are followed as the garbage collector does it: an object dies when it loses all of its
// references, and what it refers to loses one then.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include <c10/util/SmallVector.h>

#include "python_ref.h"

namespace capture {

// Which references of an object are dropped: as `Loss` of capture/refgraph/losses.py.
enum class Loss : uint8_t { Item, Attribute, All };

// Throws PythonError for an unknown name.
Loss parse_loss(PyObject* name);

class Deaths {
 public:
  // `nodes`: None, or a dict of a trace's own references, which do not count: id of an object -> what holds it as `_ref`, perhaps.
  explicit Deaths(PyObject* nodes = Py_None) : nodes_(nodes) {}

  // `owner` drops its item or attribute `key`, of which `hash` is the hash, if it has one; or all of its items.
  void lose(PyObject* owner, Loss loss, PyObject* key, Py_hash_t hash);

  // An object loses a reference; `ours`: how many others are ours, and not the program's.
  void drop(PyObject* object, Py_ssize_t ours = 0) {
    PyTypeObject* type = Py_TYPE(object);
    // Numbers, strings and the like refer to nothing, and nobody can watch them.
    if (!PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC) && type->tp_finalize == nullptr && type->tp_weaklistoffset == 0) return;
    drop_any(object, ours);
  }

  // Follows what was dropped. The class of an object by whose death code runs, borrowed; nullptr: none does.
  PyTypeObject* loud();

 private:
  void drop_any(PyObject* object, Py_ssize_t ours);
  bool is_held_by_node(PyObject* object) const;
  // Drops what an object refers to.
  void follow(PyObject* object, traverseproc traverse);
  static int visit(PyObject* object, void* self);

  PyObject* nodes_;
  c10::SmallVector<PyObject*, 8> dying_;
  std::unordered_map<PyObject*, Py_ssize_t> lost_;  // of objects with several references: how many of these
};

void init_deaths(PyObject* module);

}  // namespace capture
