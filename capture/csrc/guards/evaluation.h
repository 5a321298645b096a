// Evaluates a Program on the arguments of a frame.
//
// The first evaluation walks all paths. It leaves *watches* behind: words of memory, in depth-first order, which as long
// as they are unchanged prove that the walk would end the same. The proof is by induction: a watched address is valid
// because the watches before it hold. What makes it sound is that the version of a dict or a class is never used
// again: where it is unchanged, the dict is the same object with the same values, alive all the time. Values found by
// way of such dicts are therefore *pinned*, and nothing needs to be done for checks of their identity or of immutable
// values. What no word can tell (items of a list, cells, computed values) is *live*: walked anew each time, down to the
// dicts below it.
//
// When a watch does not hold, its node alone is walked again, down to dicts that did not change.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "guards/program.h"
#include "guards/tensor_properties.h"

namespace capture {

// Kinds of watches, in the low bits of the address; a plain word has none of them set.
enum class WatchKind : uintptr_t { Word = 0, Check = 1, Live = 2 };

struct Watch {
  uintptr_t address;
  uint64_t expected;
};

// What is remembered of the last evaluation for one `self`.
struct Memory {
  explicit Memory(const Program& program);

  PyObject* instance = nullptr;     // compared, never dereferenced
  std::vector<PyObject*> values;    // of nodes: valid once verified
  std::vector<uint64_t> versions;   // of nodes that are dicts: for which the children below were walked; 0: never
  std::vector<uint64_t> failed;     // of nodes: entries that do not apply because of it
  std::vector<uint64_t> root_failed;  // of roots: of all nodes below
  std::vector<bool> walked;         // of roots
  std::vector<Watch> watches;
  std::vector<TensorWatch> tensors;
};

struct Arguments {
  PyObject* function;
  PyObject* const* locals;
  size_t count;
};

class Evaluation {
 public:
  Evaluation(const Program& program, Memory& memory, const Arguments& arguments)
      : program_(program), memory_(memory), arguments_(arguments) {}

  // The entries that apply, as a bit mask.
  uint64_t run(const Modes& modes);

  // After a run that found no entry: for each entry the shortest path that rules it out. Empty if one path alone does not tell.
  std::vector<uint32_t> witnesses(const Modes& modes) const;

  // Whether the modes and these nodes rule out all entries. Follows only the paths of these, and leaves the memory as it is.
  bool are_ruled_out(const std::vector<uint32_t>& nodes, const Modes& modes);

  // Walks everything, so that `memory.values` is complete.
  void walk_all();

  // Whether a relation holds between the values as they were walked.
  bool holds(const Relation& relation, const Modes& modes) const;

  // The new references that the evaluation holds.
  const Owned& owned() const { return owned_; }

  // Why a relation does not hold; nothing when it does.
  std::optional<Difference> explain_failure(const Relation& relation, const Modes& modes) const;

 private:
  void walk(uint32_t index, bool pinned);
  void mark_unreachable(uint32_t index, bool pinned);
  template <class ValueOf>
  PyObject* step(const Node& node, ValueOf value_of);
  PyObject* follow(uint32_t index);
  uint64_t fitting(const Modes& modes) const;
  bool holds(const Watch& watch) const;
  void verify(const Node& root);
  uint32_t repair(uint32_t watch);
  bool sides_hold(const Relation& relation) const;
  bool storage_holds(const Relation& relation) const;
  void set_failed(uint32_t index, uint64_t mask);

  const Program& program_;
  Memory& memory_;
  const Arguments& arguments_;
  Owned owned_;
  bool changed_ = false;
};

}  // namespace capture
