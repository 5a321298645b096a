// The PEP 523 hook: takes over exactly one frame of one thread.
#pragma once

#include "frame_view.h"
#include "python_ref.h"

namespace capture {

// What the next frame of `function` in this thread is handed to.
class FrameTarget {
 public:
  explicit FrameTarget(PyObject* function) : function_(function) {}
  FrameTarget(const FrameTarget&) = delete;
  FrameTarget& operator=(const FrameTarget&) = delete;

  PyObject* function() const { return function_; }

  // Runs the frame in place of the interpreter: its result, or NULL with a Python error. Owns the frame.
  virtual PyObject* run(PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept = 0;

 protected:
  ~FrameTarget() = default;

 private:
  PyObject* function_;  // borrowed: the caller holds it
};

// Arms the hook for its lifetime, or until the frame has come. Nests: what was armed before is armed again afterwards.
class ArmedHook {
 public:
  explicit ArmedHook(FrameTarget& target);
  ~ArmedHook();
  ArmedHook(const ArmedHook&) = delete;
  ArmedHook& operator=(const ArmedHook&) = delete;

 private:
  FrameTarget* outer_;
};

// Evaluates the frame as if there was no hook. Owns the frame.
PyObject* run_frame_natively(PyThreadState* tstate, _PyInterpreterFrame* frame);

}  // namespace capture
