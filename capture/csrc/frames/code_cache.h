// Which guard trees belong to a code object: a small table in the code object itself, freed with it.
#pragma once

#include "python_ref.h"

namespace capture {

// An owner of trees: it holds the strong references, the tables only say where they are. (A strong reference from a
// code object would close a cycle that the garbage collector cannot see.)
class TreeOwner {
 public:
  // The code object dies, and `tree` with it.
  virtual void forget_tree(PyObject* tree) noexcept = 0;

 protected:
  ~TreeOwner() = default;
};

// The tree of `owner` for `code` (borrowed), or nullptr.
PyObject* code_cache_find(PyCodeObject* code, const TreeOwner* owner);
// Throws PythonError.
void code_cache_add(PyCodeObject* code, TreeOwner* owner, PyObject* tree);
// Removes the rows of a dying owner.
void code_cache_remove(PyCodeObject* code, const TreeOwner* owner);

void init_code_cache(PyObject* module);

}  // namespace capture
