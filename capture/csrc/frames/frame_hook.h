// The PEP 523 hook: takes over exactly one frame of one thread, or, while an interceptor is set, frames of all threads.
#pragma once

#include "cpython/frame_view.h"
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

// Looks at all frames that begin while it is set, but for those that run inside of one which it took over.
class FrameInterceptor {
 public:
  FrameInterceptor(const FrameInterceptor&) = delete;
  FrameInterceptor& operator=(const FrameInterceptor&) = delete;

  // Whether `run` is to be called with frames of this code. Asked for each frame.
  virtual bool wants(PyCodeObject* code) noexcept = 0;
  // Runs the frame in place of the interpreter: its result, or NULL with a Python error. Owns the frame.
  virtual PyObject* run(PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept = 0;

 protected:
  FrameInterceptor() = default;
  ~FrameInterceptor() = default;
};

// Hides the frames of this thread from the interceptor for its lifetime, as inside of a frame that was taken over.
class NotIntercepted {
 public:
  explicit NotIntercepted(bool value = true);
  ~NotIntercepted();
  NotIntercepted(const NotIntercepted&) = delete;
  NotIntercepted& operator=(const NotIntercepted&) = delete;

 private:
  bool outer_;
};

// Whether the interceptor looks at the frames that this thread begins.
bool frames_are_intercepted();

// Replaces the interceptor of the process; nullptr: there is none.
void set_interceptor(FrameInterceptor* interceptor);

// Evaluates a frame that the interceptor declines after all, as if there was none; with `deep`, the frames below it as well.
PyObject* pass_frame_on(PyThreadState* tstate, _PyInterpreterFrame* frame, bool deep);

// Evaluates the frame as if there was no hook. Owns the frame.
PyObject* run_frame_natively(PyThreadState* tstate, _PyInterpreterFrame* frame);

}  // namespace capture
