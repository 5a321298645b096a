// The guards of all entries of a tree, merged by common access paths and flattened for evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "guards/checks.h"
#include "guards/deaths.h"
#include "python_ref.h"
#include "guards/steps.h"

namespace capture {

constexpr size_t kMaxEntries = 64;  // one bit each
constexpr uint32_t kNone = UINT32_MAX;
constexpr int64_t kAnyOffset = INT64_MIN;

// One entry's guards as they came from Python. Indices refer to `nodes`, where bases come before what is built on them.
struct EntrySpec {
  struct Node {
    Step step;
    uint32_t base;                   // kNone for roots
    Ref key;
    std::vector<uint32_t> operands;  // Computed
    KeyHash hash;                    // Item
  };
  struct Operand {
    uint32_t node;
    long group;      // STORAGE; SEPARATE: 1 on the first side
    int64_t offset;  // STORAGE; kAnyOffset: wherever it lies
  };
  struct Check {
    Kind kind;
    uint32_t node;  // kNone: MODES
    Ref expected;
    std::vector<Operand> operands;  // ALIAS, DISTINCT, SEPARATE, STORAGE
    KeyHash hash;                   // of forms Key
  };
  std::vector<Node> nodes;
  std::vector<Check> checks;
  std::vector<uint32_t> lifted;
  std::vector<Loss> losses;
  std::vector<Ref> loss_keys;  // which the losses borrow

  int traverse(visitproc visit, void* arg) const;
};

// Throws PythonError (TypeError, IndexError) for anything that is not as `GuardTree.insert` documents it.
EntrySpec parse_entry(PyObject* nodes, PyObject* checks, PyObject* lifted, PyObject* losses);

// Whether a step has a watch of its own; the others depend on what the watch of its base covers, as checks do (`Watched`).
constexpr bool has_watch(Step step) {
  return step == Step::InstanceDict || step == Step::TypeOf || step == Step::Attr;
}

// A place in the flattened tree: a depth-first order, in which a subtree is the range [node, end).
struct Node {
  Step step;
  bool is_live;       // evaluated anew each time: nothing tells whether it has changed
  bool has_items;     // has Item children
  bool watches_dict;  // has Item children or checks on the keys of a dict
  bool watches_type;  // has TypeAttr children or checks on a class
  bool only_identity;  // an Attr of which nothing but the identity is checked
  uint32_t base, end;
  uint32_t checks_begin, checks_end;
  uint32_t watch_begin, watch_end;    // its own watches; those of its subtree follow
  uint32_t tensor_begin, tensor_end;  // likewise
  PyObject* key;                    // borrowed from the entries' specs; a Constant's is resolved
  KeyHash hash;
  Py_ssize_t index;
  uint64_t required;  // entries that cannot apply when this is unreachable
  uint32_t operands_begin, operands_end;
};

// A check of several nodes, or of the modes.
struct Relation {
  Kind kind;
  Form form;
  uint64_t entry;
  uint32_t node;
  const Modes* modes;
  std::vector<EntrySpec::Operand> operands;
};

// Immutable once built. Borrows everything from the entries that it was built from.
struct Program {
  std::vector<Node> nodes;
  std::vector<uint32_t> roots;  // with operands of Computed before what is computed from them
  std::vector<Check> checks;
  std::vector<Relation> relations;
  std::vector<uint32_t> operands;              // of Computed nodes
  std::vector<std::vector<uint32_t>> lifted;   // by entry
  std::vector<std::vector<Loss>> losses;       // by entry
  std::vector<std::vector<uint32_t>> node_of;  // by entry: its spec's nodes -> nodes here
  std::vector<uint32_t> watch_owner;           // the node of each watch
  std::vector<uint32_t> tensor_owner;          // the node of each watch of a tensor
  uint64_t all_entries = 0;
  uint32_t instance_root = kNone;              // the argument by which evaluations are remembered
};

// Throws PythonError. Every object that an entry holds weakly must be alive.
Program build_program(const std::vector<const EntrySpec*>& entries);

}  // namespace capture
