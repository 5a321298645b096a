// Whether code of the program may run as what a hit replaces or removes dies: finalizers, callbacks of weak references, generators
// that are closed. Such code could change what the call has read by its guards, unseen.
//
// References that are about to be dropped are followed as the garbage collector does it: an object dies when it loses all of its
// references, and what it refers to loses one then. The program might have put an object elsewhere by then: that is not
// considered. Not seen: what C++ holds (nodes of autograd behind the first, gradients), and what arrays of numpy lie on.
#pragma once

#include <cstdint>
#include <vector>

#include "guards/steps.h"
#include "python_ref.h"

namespace capture {

// Which references an object drops: the names of `Drop` in capture/refgraph/dropped_references.py.
enum class Drop : uint8_t { Item, ChangingItem, Attribute, Contents, Nothing };

struct Loss {
  uint32_t node;  // of the owner
  Drop drop;
  PyObject* key;  // borrowed; an interned string for attributes, None for contents
  uint32_t key_node;  // of a changing item: where the key is
  Py_hash_t hash;
  Py_ssize_t index;  // see item_step
};

// `key`: that of an item, which may be interned; of a changing item the number of a node, of which there are `count`. Throws
// PythonError for an unknown drop, for keys that have no hash, and for wrong numbers.
Loss make_loss(uint32_t node, PyObject* drop, Ref& key, size_t count);

// `values`: of the nodes. `owned`: references of ours. Runs no code of the program's.
bool may_run_code(const std::vector<Loss>& losses, const std::vector<PyObject*>& values, const Owned& owned);

}  // namespace capture
