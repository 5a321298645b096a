/* What the implementations for CPython 3.12 and later have in common. There, the evaluation function owns the frame: it clears the
 * frame and pops it off the thread's data stack. */
#include "cpython/frame_view_common.h"
#include "internal/pycore_interp.h"
#include "internal/pycore_list.h"
#include "internal/pycore_range.h"
#include "internal/pycore_tuple.h"

PyObject *frame_view_function(struct _PyInterpreterFrame *frame) {
    return frame->f_funcobj;
}

/* As _PyThreadState_PopFrame, which 3.12 does not export. */
static void pop_frame(PyThreadState *tstate, struct _PyInterpreterFrame *frame) {
    PyObject **base = (PyObject **)frame;
    _PyStackChunk *chunk = tstate->datastack_chunk;
    if (base != &chunk->data[0]) {
        tstate->datastack_top = base;
        return;
    }
    _PyStackChunk *previous = chunk->previous;
    tstate->datastack_top = &previous->data[previous->top];
    tstate->datastack_chunk = previous;
    tstate->datastack_limit = (PyObject **)((char *)previous + previous->size);
    PyObjectArenaAllocator arena;
    PyObject_GetArenaAllocator(&arena);
    arena.free(arena.ctx, chunk, chunk->size);
}

/* Releases the references of a frame which was never executed: it has neither a frame object nor stack items. Values are released
 * before the frame is popped, because their finalizers may push frames of their own. */
static void discard(PyThreadState *tstate, struct _PyInterpreterFrame *frame, PyCodeObject *code) {
    for (int i = 0; i < frame->stacktop; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    Py_CLEAR(frame->f_locals);
    Py_CLEAR(frame->f_funcobj);
    Py_DECREF(code);
    pop_frame(tstate, frame);
}

int lines_are_traced(void) {
    /* By sys.settrace, or by sys.monitoring: as its DEBUGGER_ID or its COVERAGE_ID. */
    PyThreadState *tstate = _PyThreadState_UncheckedGet();
    PyObject **tools = tstate->interp->monitoring_tool_names;
    return tstate->c_tracefunc != NULL || tools[0] != NULL || tools[1] != NULL;
}

void range_iterator_state(PyObject *iterator, long *next, long *step, long *left) {
    _PyRangeIterObject *range = (_PyRangeIterObject *)iterator;
    *next = range->start;
    *step = range->step;
    *left = range->len;
}

PyObject *sequence_iterator_state(PyObject *iterator, Py_ssize_t *position) {
    if (Py_TYPE(iterator) == &PyListIter_Type) {
        *position = ((_PyListIterObject *)iterator)->it_index;
        return (PyObject *)((_PyListIterObject *)iterator)->it_seq;
    }
    *position = ((_PyTupleIterObject *)iterator)->it_index;
    return (PyObject *)((_PyTupleIterObject *)iterator)->it_seq;
}
