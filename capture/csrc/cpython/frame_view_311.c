/* CPython 3.11: the caller of the evaluation function (_PyEval_Vector) clears the frame and pops it. */
#define Py_BUILD_CORE
#include "cpython/frame_view.h"
#include "internal/pycore_code.h"
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"
#include "cpython/frame_view_common.h"

PyObject *frame_view_function(struct _PyInterpreterFrame *frame) {
    return (PyObject *)frame->f_func;
}

PyCodeObject *frame_view_code(struct _PyInterpreterFrame *frame) {
    return frame->f_code;
}

void frame_view_discard(PyThreadState *tstate, struct _PyInterpreterFrame *frame) {
    (void)tstate;
    (void)frame;
}

void frame_view_set_lasti(PyFrameObject *frame, int lasti) {
    /* No local is to be shown: the free variables of a frame that has begun are expected to be cells. */
    frame->f_frame->stacktop = 0;
    frame->f_frame->prev_instr = _PyCode_CODE(frame->f_frame->f_code) + lasti / (int)sizeof(_Py_CODEUNIT);
}

int lines_are_traced(void) {
    return _PyThreadState_UncheckedGet()->c_tracefunc != NULL;
}

/* The number of values is kept two bytes before them. */
static int has_values(PyDictValues *values) {
    return values != NULL && ((uint8_t *)values)[-2] > 0;
}

int has_own_attributes(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        return has_values(*_PyObject_ValuesPointer(object)) || has_items(*_PyObject_ManagedDictPointer(object));
    }
    return type->tp_dictoffset > 0 && has_items(*(PyObject **)((char *)object + type->tp_dictoffset));
}

/* As in Objects/rangeobject.c, which no header declares. */
typedef struct {
    PyObject_HEAD
    long index;
    long start;
    long step;
    long len;
} RangeIterator;

void range_iterator_state(PyObject *iterator, long *next, long *step, long *left) {
    RangeIterator *range = (RangeIterator *)iterator;
    *next = (long)((unsigned long)range->start + (unsigned long)range->index * (unsigned long)range->step);
    *step = range->step;
    *left = range->len - range->index;
}

/* As in Objects/listobject.c and Objects/tupleobject.c. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t index;
    PyObject *sequence;
} SequenceIterator;

PyObject *sequence_iterator_state(PyObject *iterator, Py_ssize_t *position) {
    *position = ((SequenceIterator *)iterator)->index;
    return ((SequenceIterator *)iterator)->sequence;
}
