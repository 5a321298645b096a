/* What the extension needs to know of CPython's interpreter frames, and of the layout of its objects. There is one implementation
 * for each version of Python: frame_view_311.c, frame_view_312.c, frame_view_313.c. The build picks one. */
#pragma once

#include <Python.h>
#include <frameobject.h>

#ifdef __cplusplus
extern "C" {
#endif

struct _PyInterpreterFrame;

/* The function that the frame executes (borrowed). */
PyObject *frame_view_function(struct _PyInterpreterFrame *frame);

/* The code object of the frame (borrowed). */
PyCodeObject *frame_view_code(struct _PyInterpreterFrame *frame);

/* Fast locals: positional, keyword-only, *args and **kwargs come first. Borrowed; valid until the frame ends. */
PyObject **frame_view_locals(struct _PyInterpreterFrame *frame);

/* The frame that this thread executes, NULL for none. */
struct _PyInterpreterFrame *frame_view_current(void);

/* Makes the caller of the frame that this thread executes its current frame, so that nobody sees that frame until it is made the
 * current one again, by the second function. The frame must not go on meanwhile. */
void frame_view_hide(struct _PyInterpreterFrame *frame);
void frame_view_show_again(struct _PyInterpreterFrame *frame);

/* The global variables of a frame, and the mapping of its other names: NULL where there is none yet. Borrowed. */
PyObject *frame_view_globals(struct _PyInterpreterFrame *frame);
PyObject *frame_view_names(struct _PyInterpreterFrame *frame);

/* Ends a frame which was never executed, where that is the duty of the evaluation function. */
void frame_view_discard(PyThreadState *tstate, struct _PyInterpreterFrame *frame);

/* Lets `frame`, made by PyFrame_New, show byte offset `lasti` of its code as the current instruction, and no locals. */
void frame_view_set_lasti(PyFrameObject *frame, int lasti);

/* Whether `frame`, of `code`, was made by PyFrame_New and has been told its current instruction, but no locals. */
int frame_view_shows_nothing(PyFrameObject *frame, PyCodeObject *code);

/* Has such a frame show local variables (NULL: unbound) and, for one whose names go to a mapping, that (else NULL). */
void frame_view_show(PyFrameObject *frame, PyObject *const *values, PyObject *names);

/* Whether a tool traces each line that this thread runs: a debugger, or one that measures coverage. */
int lines_are_traced(void);

/* Whether an instance has attributes of its own, in its __dict__ or where they lie before there is one. */
int has_own_attributes(PyObject *object);

/* What an iterator over a range of machine integers has left: the next item, the step to the one after it, and how many items. */
void range_iterator_state(PyObject *iterator, long *next, long *step, long *left);

/* What an iterator over a list or tuple walks over, borrowed, NULL once it is exhausted; and the position of its next item. */
PyObject *sequence_iterator_state(PyObject *iterator, Py_ssize_t *position);

#ifdef __cplusplus
}
#endif
