/* CPython 3.12: the evaluation function owns the frame: it clears it and pops it off the thread's data stack. */
#define Py_BUILD_CORE
#include "frame_view.h"
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_interp.h"
#include "internal/pycore_list.h"
#include "internal/pycore_object.h"
#include "internal/pycore_range.h"
#include "internal/pycore_tuple.h"

PyObject *frame_view_function(struct _PyInterpreterFrame *frame) {
    return frame->f_funcobj;
}

PyCodeObject *frame_view_code(struct _PyInterpreterFrame *frame) {
    return frame->f_code;
}

PyObject **frame_view_locals(struct _PyInterpreterFrame *frame) {
    return frame->localsplus;
}

/* As _PyThreadState_PopFrame, which is not exported. */
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

void frame_view_discard(PyThreadState *tstate, struct _PyInterpreterFrame *frame) {
    /* A frame which was never executed has neither a frame object nor stack items; only references to release. Values
     * are released before the frame is popped, because their finalizers may push frames of their own. */
    for (int i = 0; i < frame->stacktop; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    Py_CLEAR(frame->f_locals);
    Py_CLEAR(frame->f_funcobj);
    Py_CLEAR(frame->f_code);
    pop_frame(tstate, frame);
}

void frame_view_set_lasti(PyFrameObject *frame, int lasti) {
    /* No local is to be shown: the free variables of a frame that has begun are expected to be cells. */
    frame->f_frame->stacktop = 0;
    frame->f_frame->prev_instr = _PyCode_CODE(frame->f_frame->f_code) + lasti / (int)sizeof(_Py_CODEUNIT);
}

int frame_view_shows_nothing(PyFrameObject *frame, PyCodeObject *code) {
    struct _PyInterpreterFrame *view = frame->f_frame;
    return view->owner == FRAME_OWNED_BY_FRAME_OBJECT && view->stacktop == 0 && view->f_code == code;
}

void frame_view_show(PyFrameObject *frame, PyObject *const *values, PyObject *names) {
    struct _PyInterpreterFrame *view = frame->f_frame;
    int count = view->f_code->co_nlocalsplus, free = count - PyCode_GetNumFree(view->f_code);
    for (int i = free; i < count; i++) {    /* whoever asks for a free variable expects a cell */
        if (values[i] == NULL || !PyCell_Check(values[i])) return;
    }
    for (int i = 0; i < count; i++) view->localsplus[i] = Py_XNewRef(values[i]);
    view->stacktop = count;
    if (names != NULL && view->f_locals == NULL) view->f_locals = Py_NewRef(names);
}

int lines_are_traced(void) {
    /* By sys.settrace, or by sys.monitoring: as its DEBUGGER_ID or its COVERAGE_ID. */
    PyThreadState *tstate = _PyThreadState_UncheckedGet();
    PyObject **tools = tstate->interp->monitoring_tool_names;
    return tstate->c_tracefunc != NULL || tools[0] != NULL || tools[1] != NULL;
}

static int has_items(PyObject *dict) {
    return dict != NULL && PyDict_GET_SIZE(dict) > 0;
}

/* The number of values is kept two bytes before them. */
static int has_values(PyDictValues *values) {
    return values != NULL && ((uint8_t *)values)[-2] > 0;
}

int has_own_attributes(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        PyDictOrValues where = *_PyObject_DictOrValuesPointer(object);
        return _PyDictOrValues_IsValues(where) ? has_values(_PyDictOrValues_GetValues(where)) : has_items(where.dict);
    }
    return type->tp_dictoffset > 0 && has_items(*(PyObject **)((char *)object + type->tp_dictoffset));
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
