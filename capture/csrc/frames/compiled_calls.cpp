#include "frames/compiled_calls.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "frames/code_cache.h"
#include "frames/frame_hook.h"
#include "frames/resumption.h"
#include "frames/stance.h"
#include "frames/tail_call.h"
#include "guards/call_kind.h"
#include "guards/guard_tree.h"
#include "guards/modes.h"
#include "stopwatch.h"

namespace capture {
namespace {

PyObject* run_natively = nullptr;  // the singleton that on_miss returns
unsigned int forks = 0;            // that led to this process

// Someone assigned `function.__code__`: guards of the old code say nothing about the new.
void switch_code(CompiledFunction* self, PyCodeObject* code) {
  PyObject* tree = code_cache_find(code, self->trees);
  if (tree == nullptr) {
    Ref fresh = Ref::steal(checked(
        PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(self->tree)), reinterpret_cast<PyObject*>(code))));
    self->trees->add(code, fresh.get());
    tree = fresh.get();
  }
  self->code = code;
  self->tree = tree;
}

PyObject* call_mock(PyObject* mock, PyObject* const* arguments, size_t count, PyObject* lifted) {
  if (lifted == nullptr) return PyObject_Vectorcall(mock, arguments, count, nullptr);
  constexpr size_t kInline = 16;
  std::array<PyObject*, kInline> small;
  std::vector<PyObject*> large;
  PyObject** all = small.data();
  if (count + 1 > kInline) {
    large.resize(count + 1);
    all = large.data();
  }
  std::copy_n(arguments, count, all);
  all[count] = lifted;
  return PyObject_Vectorcall(mock, all, count + 1, nullptr);
}

// `arguments` go into a list, which the capture empties, so that they die when the program lets go of them. If the frame is to run
// after all, it gets them back.
PyObject* call_on_miss(CompiledFunction* self, PyObject* function, PyObject** arguments, size_t count) {
  Ref list = Ref::steal(checked(PyList_New(static_cast<Py_ssize_t>(count))));
  for (size_t i = 0; i < count; i++) {
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), std::exchange(arguments[i], Py_NewRef(Py_None)));
  }
  Ref tree = Ref::borrow(self->tree);  // may be exchanged meanwhile
  Ref on_miss = Ref::borrow(self->on_miss);
  PyObject* result = PyObject_CallFunctionObjArgs(on_miss.get(), function, list.get(), tree.get(), nullptr);
  if (result == nullptr) {  // the program's exception: on_miss itself is not part of its traceback
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Ref own = Ref::steal(traceback);
    PyObject* rest = traceback == nullptr ? nullptr
                                          : reinterpret_cast<PyObject*>(
                                                reinterpret_cast<PyTracebackObject*>(traceback)->tb_next);
    PyErr_Restore(type, value, Py_XNewRef(rest));
  }
  if (result == run_natively) {
    for (size_t i = 0; i < count; i++) {
      Ref placeholder = Ref::steal(std::exchange(arguments[i], Py_NewRef(PyList_GET_ITEM(list.get(), static_cast<Py_ssize_t>(i)))));
    }
  }
  return checked(result);
}

// A mock function raised. The result of on_error, with the error indicator clear, or NULL with the exception as on_error
// left it.
PyObject* call_on_error(CompiledFunction* self, PyObject* entry) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Ref owned_type = Ref::steal(type), owned_value = Ref::steal(value), owned_traceback = Ref::steal(traceback);
  Ref on_error = Ref::borrow(self->on_error);
  Ref answer = Ref::steal(checked(PyObject_CallFunctionObjArgs(on_error.get(), entry, value, nullptr)));
  if (answer.get() == run_natively) return answer.release();
  PyErr_Restore(owned_type.release(), owned_value.release(), PyException_GetTraceback(value));
  return nullptr;
}

// The arguments of a call as they were given.
struct Given {
  PyObject* const* arguments;
  size_t count;
  uint64_t kind() const { return quick_kind(arguments, count); }
};

// Whether a call runs natively without a question to the guards, because many like it did.
bool is_skipped(CompiledFunction* self, PyObject* code, Given given) {
  return !self->native_streaks->empty() && code == reinterpret_cast<PyObject*>(self->code) && stance_is_default() &&
         self->native_streaks->skips(given.kind());
}

// Whether a call that no entry fits runs natively, as calls of its kind do by now.
bool is_refused(CompiledFunction* self, PyObject* const* arguments, size_t count, const Modes& modes, Given given) {
  if (self->native_kinds->empty() || !stance_is_default()) return false;
  uint64_t kind = given.kind();
  Asks asks = self->native_kinds->count(call_kind(arguments, count, modes), self->native_streaks->weight(kind));
  if (asks == Asks::Python) {
    self->native_streaks->end(kind);
    return false;
  }
  auto* counter = asks == Asks::Never ? &self->refused : &self->deferred;
  ++*counter;
  self->native_streaks->note_native(kind, counter);
  return true;
}

// How a call goes on once the guards were asked.
enum class Way { Done, Miss, Native };

struct Outcome {
  Way way;
  PyObject* result = nullptr;  // Done: NULL with an error
};

// Asks the guards about a call, whose arguments are those of its frame, and does what a hit does.
Outcome look_up(CompiledFunction* self, PyObject* function, PyCodeObject* code, PyObject* const* arguments, Given given) noexcept {
  try {
    if (code != self->code) switch_code(self, code);
    size_t count = argument_count(code);
    ModesAtEntry modes;
    bool timed = is_timed(self->calls++);
    uint64_t start = timed ? now_ns() : 0;
    Match match = guard_tree_match(self->tree, function, arguments, count, modes.modes());
    if (!match.entry) {
      return {is_refused(self, arguments, count, modes.modes(), given) ? Way::Native : Way::Miss};
    }
    auto* entry = reinterpret_cast<EntryObject*>(match.entry.get());
    if (match.natively) {
      entry->ran_natively++;
      return {Way::Native};
    }
    entry->hits++;
    if (entry->mock == Py_None) {
      self->native_streaks->note_native(given.kind(), &entry->hits);
      return {Way::Native};
    }
    if (!self->native_streaks->empty()) self->native_streaks->end(given.kind());
    Ref mock = Ref::borrow(entry->mock);  // may be exchanged while it runs
    uint64_t matched = timed ? now_ns() : 0, graph = 0;
    GraphClock clock(timed ? &graph : nullptr);
    PyObject* result = call_mock(mock.get(), arguments, count, match.lifted.get());
    if (timed && result != nullptr) {
      entry->samples++;
      entry->guard_ns += matched - start;
      entry->graph_ns += graph;
      entry->mock_ns += now_ns() - matched - graph;
    }
    if (result != nullptr) return {Way::Done, result};
    {
      SavedError error;
      modes.restore();
    }
    if (self->on_error == Py_None) return {Way::Done};
    Ref answer = Ref::steal(call_on_error(self, match.entry.get()));
    return {answer ? Way::Native : Way::Done};
  } catch (PythonError&) {
  } catch (std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "capture: %s", error.what());
  }
  return {Way::Done};
}

// Whether positional arguments are those of the frame as they are: none is missing, named or collected.
bool are_all(const PyCodeObject* code, size_t count, PyObject* kwnames) {
  return kwnames == nullptr && code->co_kwonlyargcount == 0 && count == static_cast<size_t>(code->co_argcount) &&
         (code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) == 0;
}

// The frame of a call that was no hit when it could be asked without one. `arguments`: a tuple to put in the place of the frame's
// own, or NULL; it is let go of at once, so that an argument lives no longer than the frame needs it. `given`: the arguments as
// the caller gave them. `known`: what the guards have said already.
class CompiledFrame final : public FrameTarget {
 public:
  CompiledFrame(CompiledFunction* self, PyObject* function, Ref* arguments, Given given, std::optional<Way> known)
      : FrameTarget(function), self_(self), arguments_(arguments), given_(given), known_(known) {}

  PyObject* run(PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept override {
    if (arguments_ != nullptr) {
      Ref tuple = std::move(*arguments_);
      PyObject** locals = frame_view_locals(frame);
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.get()); i++) {
        PyObject* placeholder = locals[i];
        locals[i] = Py_NewRef(PyTuple_GET_ITEM(tuple.get(), i));
        Py_DECREF(placeholder);
      }
    }
    PyCodeObject* code = frame_view_code(frame);
    Outcome outcome = known_ ? Outcome{*known_} : look_up(self_, function(), code, frame_view_locals(frame), given_);
    if (outcome.way == Way::Miss) outcome = miss(frame_view_locals(frame), argument_count(code));
    if (outcome.way == Way::Native) return run_frame_natively(tstate, frame);
    frame_view_discard(tstate, frame);
    return outcome.result;
  }

 private:
  Outcome miss(PyObject** arguments, size_t count) noexcept {
    try {
      PyObject* result = call_on_miss(self_, function(), arguments, count);
      if (result != run_natively) return {Way::Done, result};
      Py_DECREF(result);
      return {Way::Native};
    } catch (PythonError&) {
      return {Way::Done};
    }
  }

  CompiledFunction* self_;  // the caller holds it
  Ref* arguments_;
  Given given_;
  std::optional<Way> known_;
};

// Whether the call runs as if nothing was compiled: a tracer of torch's or of lines is at work, or the program asks for it.
bool is_left_alone(CompiledFunction* self) {
  if (program_is_traced()) {
    self->traced++;
    return true;
  }
  return torch_is_tracing() || eager_is_forced();
}

// Makes the calls that `result` stands for, one after the other, until there is a result. After a fork between two of them the
// child goes on natively: nothing of it was asked to be captured.
PyObject* follow(PyObject* result) {
  unsigned int before = forks;
  while (result != nullptr && is_tail_call(result)) {
    auto* tail = reinterpret_cast<TailCall*>(result);
    Ref callable = Ref::steal(std::exchange(tail->callable, nullptr));
    Ref function = Ref::steal(std::exchange(tail->function, nullptr));
    Ref arguments = Ref::steal(std::exchange(tail->arguments, nullptr));
    Py_DECREF(result);
    if (function.get() == Py_None) {
      std::optional<PyObject*> outcome = is_resumption(callable.get()) ? resume(callable, function, arguments)
                                                                       : PyObject_Call(callable.get(), arguments.get(), nullptr);
      if (outcome) {
        result = *outcome;
        continue;
      }
    }
    CompiledFunction* self = unpack_function(callable.get());
    auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get()));
    Outcome outcome;
    {
      NotIntercepted scope;
      Given given{&PyTuple_GET_ITEM(arguments.get(), 0), static_cast<size_t>(PyTuple_GET_SIZE(arguments.get()))};
      bool natively = is_skipped(self, PyFunction_GET_CODE(function.get()), given) || forks != before || program_is_traced() ||
                      torch_is_tracing();  // from what was called between two traces on
      outcome = natively ? Outcome{Way::Native} : look_up(self, function.get(), code, given.arguments, given);
    }
    result = outcome.result;
    if (outcome.way == Way::Done) continue;
    // The frame is made with placeholders: who calls a function holds its arguments until it returns.
    std::vector<PyObject*> placeholders(static_cast<size_t>(PyTuple_GET_SIZE(arguments.get())) + 1, Py_None);
    CompiledFrame frame(self, function.get(), &arguments, {}, outcome.way);
    ArmedHook armed(frame);
    result = PyObject_Vectorcall(function.get(), placeholders.data() + 1,
                                 (placeholders.size() - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  }
  return result;
}

PyObject* note_fork(PyObject*, PyObject*) {
  forks++;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"note_fork", note_fork, METH_NOARGS, "This process was forked just now: calls that were under way go on natively in it."},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* run_natively_repr(PyObject*) { return PyUnicode_FromString("RUN_NATIVELY"); }

}  // namespace

PyObject* call_function(CompiledFunction* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
  Given given{args, count + (kwnames == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(kwnames)))};
  if (is_skipped(self, PyFunction_GET_CODE(self->function), given)) {
    NotIntercepted scope;
    return PyObject_Vectorcall(self->function, args, nargsf, kwnames);
  }
  if (is_left_alone(self)) return PyObject_Vectorcall(self->function, args, nargsf, kwnames);
  std::optional<Way> known;
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(self->function));
  if (are_all(code, count, kwnames)) {  // a hit needs no frame
    Outcome outcome;
    {
      NotIntercepted scope;
      outcome = look_up(self, self->function, code, args, given);
    }
    if (outcome.way == Way::Done) return follow(outcome.result);
    if (outcome.way == Way::Native) {  // needs no frame of ours, either
      NotIntercepted scope;
      return PyObject_Vectorcall(self->function, args, nargsf, kwnames);
    }
    known = outcome.way;
  }
  PyObject* result = nullptr;
  {
    CompiledFrame frame(self, self->function, nullptr, given, known);
    ArmedHook armed(frame);
    result = PyObject_Vectorcall(self->function, args, nargsf, kwnames);
  }
  return follow(result);
}

PyObject* compiled_function_run(PyObject* compiled, PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept {
  Ref keep = Ref::borrow(compiled);
  CompiledFunction* self = unpack_function(compiled);
  PyCodeObject* code = frame_view_code(frame);
  Given given{frame_view_locals(frame), argument_count(code)};
  if (is_skipped(self, reinterpret_cast<PyObject*>(code), given)) return run_frame_natively(tstate, frame);
  return follow(CompiledFrame(self, self->function, nullptr, given, std::nullopt).run(tstate, frame));
}

PyObject* call_as(Ref compiled, Ref function, Ref arguments) {
  PyObject* tail = make_tail_call(std::move(compiled), std::move(function), std::move(arguments));
  return tail == nullptr ? nullptr : follow(tail);
}

PyObject* run_natively_sentinel() { return run_natively; }

void init_compiled_calls(PyObject* module) {
  static PyType_Slot sentinel_slots[] = {{Py_tp_repr, reinterpret_cast<void*>(run_natively_repr)}, {0, nullptr}};
  static PyType_Spec sentinel_spec = {"capture._C.RunNatively", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT,
                                      sentinel_slots};
  Ref sentinel_type = Ref::steal(checked(PyType_FromSpec(&sentinel_spec)));
  run_natively = checked(PyObject_CallNoArgs(sentinel_type.get()));
  checked(PyModule_AddObjectRef(module, "RUN_NATIVELY", run_natively));
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
