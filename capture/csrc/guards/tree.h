// The entries of one code object, with the program that evaluates their guards: which of them applies to a call, and why not.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "guards/difference.h"
#include "guards/evaluation.h"
#include "guards/guard_tree.h"
#include "guards/program.h"

namespace capture {

class Tree {
 public:
  Tree() = default;
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  ~Tree() { clear(); }

  // Throws PythonError; then the tree is as before.
  void add(EntryObject* entry, EntrySpec spec);
  Match match(const Arguments& arguments, const Modes& modes);
  // List of (entry, index of the first check that fails or -1 for a lifted value, subject, expected, found).
  PyObject* explain(const Arguments& arguments, bool every);
  PyObject* entries() const;
  void discard(EntryObject* entry);
  void reorder();
  void note_death() { has_dead_ = true; }
  void clear();
  int traverse(visitproc visit, void* arg) const;

 private:
  struct Row {
    Ref entry;
    EntrySpec spec;
    EntryObject* object() const { return reinterpret_cast<EntryObject*>(entry.get()); }
  };
  // Marks the tree as in use, so that what it evaluates is not rebuilt meanwhile.
  struct InUse {
    explicit InUse(Tree& tree) : tree(tree) { tree.in_use_ = true; }
    ~InUse() { tree.in_use_ = false; }
    Tree& tree;
  };

  // Whether the program is that of the rows: one that is added while they are in use is not in it yet.
  bool is_current() const { return program_ != nullptr && program_->lifted.size() == rows_.size(); }
  static bool refers_to_the_dead(const EntrySpec& spec);
  void order();
  void discard_dead();
  void refresh();
  Memory& memory_for(const Arguments& arguments);
  std::optional<Difference> failure(const Row& row, size_t index, const Evaluation& evaluation, const Memory& memory,
                                    const Modes& modes, long& which) const;

  static constexpr size_t kMaxMemories = 32;

  std::deque<Row> rows_;  // which stay where they are while others are added
  std::unique_ptr<Program> program_;  // nullptr: to be built
  std::vector<std::unique_ptr<Memory>> memories_;
  size_t last_memory_ = 0;
  std::vector<uint32_t> witnesses_;  // nodes that ruled out all entries for the last call; none: an entry applied to it
  bool in_use_ = false;
  bool has_dead_ = false;  // some entry is not alive, and still here
};

}  // namespace capture
