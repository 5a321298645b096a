// `_C.GuardTree` and `_C.CacheEntry`: the entries of one code object, and which of them applies to a frame.
#pragma once

#include <memory>

#include "guards/modes.h"
#include "python_ref.h"

namespace capture {

class Tree;

struct EntryObject {
  PyObject_HEAD
  PyObject* mock;     // callable, or None: the frame runs natively
  PyObject* payload;  // the pipeline's own
  PyObject* dict;
  PyObject* weakrefs;
  Tree* tree;  // the tree that it is in; nullptr once removed
  unsigned long long hits;
  unsigned long long ran_natively;  // calls that the entry fitted, and that were no hits
  unsigned long long samples, guard_ns, graph_ns, mock_ns;  // timed hits, and where their time went
  bool superseded;  // another entry fits all calls that it fits, as far as sizes allow: it is tried last
  bool alive;
};

struct Match {
  Ref entry;   // an EntryObject; empty: no entry applies
  bool natively = false;  // the entry applies, and the call is no hit: something that it replaces might run code as it dies
  Ref lifted;  // tuple of the values at the entry's lifted sources; empty when it has none
};

// Evaluates the guards of `tree` on the arguments of a frame. Runs no Python code. Throws PythonError (memory only).
Match guard_tree_match(PyObject* tree, PyObject* function, PyObject* const* arguments, size_t count,
                       const Modes& modes);

// How often entries were added to any tree, or removed. What was found of their number holds as long as this does.
uint64_t guard_tree_changes();

bool is_guard_tree(PyObject* object);

void init_guard_tree(PyObject* module);

}  // namespace capture
