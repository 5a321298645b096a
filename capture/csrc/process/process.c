// The extension `capture._process`: `Process`, one that the program cannot see (line.h), for Python.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "process/line.h"

// Waits, without Python's lock, until the stage is not `stage` or the time is over. Called with the line's lock.
static void await_change(Line *line, Stage stage, double seconds) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = seconds < 0 ? 0 : seconds > 1e6 ? 1e6 : seconds;
    end.tv_sec += (time_t)seconds;
    end.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (end.tv_nsec >= 1000000000) end.tv_sec += 1, end.tv_nsec -= 1000000000;
    PyThreadState *state = PyEval_SaveThread();
    while (line->stage == stage && pthread_cond_timedwait(&line->changed, &line->lock, &end) != ETIMEDOUT) {}
    pthread_mutex_unlock(&line->lock);
    PyEval_RestoreThread(state);
    pthread_mutex_lock(&line->lock);
}

typedef struct {
    PyObject_HEAD
    Line *line;
} Process;

// A copy of a list of bytes, which ends with NULL.
static char **strings_of(PyObject *list) {
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "expected a list of bytes");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(list);
    char **strings = calloc((size_t)count + 1, sizeof *strings);
    for (Py_ssize_t i = 0; strings && i < count; ++i) {
        char *text = PyBytes_AsString(PyList_GET_ITEM(list, i));
        strings[i] = text ? strdup(text) : NULL;
        if (!strings[i]) {
            free_strings(strings);
            return PyErr_Occurred() ? NULL : (char **)PyErr_NoMemory();
        }
    }
    return strings ? strings : (char **)PyErr_NoMemory();
}

static PyObject *process_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"command", "environment", "shared", NULL};
    PyObject *command, *environment;
    int shared = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|p", names, &command, &environment, &shared)) return NULL;
    Process *self = (Process *)type->tp_alloc(type, 0);
    Line *line = self ? calloc(1, sizeof *line) : NULL;
    if (!line) {
        Py_XDECREF(self);
        return PyErr_NoMemory();
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&line->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&line->lock, NULL);
    line->jobs = line->life = line->log = NO_FILE;
    line->shared = shared;
    line->program = getpid();
    line->owners = 1;
    self->line = line;
    if (!(line->command = strings_of(command)) || !(line->environment = strings_of(environment))) {
        Py_DECREF(self);
        return NULL;
    }
    line->owners = 2;
    int error = line->command[0] ? start_talking(line) : ENOENT;
    if (error) {
        line->owners = 1;
    } else {
        pthread_mutex_lock(&line->lock);
        while (line->stage == STARTING) await_change(line, STARTING, 1.0);
        error = line->error;
        pthread_mutex_unlock(&line->lock);
    }
    if (!error) return (PyObject *)self;
    errno = error;
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, line->command[0]);
    Py_DECREF(self);
    return NULL;
}

static PyObject *process_stop(Process *self, PyObject *Py_UNUSED(ignored)) {
    pthread_mutex_lock(&self->line->lock);
    self->line->stop = true;
    pthread_cond_broadcast(&self->line->changed);
    pthread_mutex_unlock(&self->line->lock);
    Py_RETURN_NONE;
}

static void process_dealloc(Process *self) {
    if (self->line && self->line->program == getpid()) {        // in a fork its lock may be held for ever
        Py_XDECREF(process_stop(self, NULL));
        release_line(self->line);
    }
    Py_TYPE(self)->tp_free(self);
}

static PyObject *process_exchange(Process *self, PyObject *args) {
    Line *line = self->line;
    Py_buffer message;
    double seconds;
    if (!PyArg_ParseTuple(args, "y*d", &message, &seconds)) return NULL;
    uint64_t length = (uint64_t)message.len;
    char *request = malloc(sizeof length + length);
    if (request) {
        memcpy(request, &length, sizeof length);
        memcpy(request + sizeof length, message.buf, length);
    }
    PyBuffer_Release(&message);
    if (!request) return PyErr_NoMemory();
    PyObject *result = NULL;
    pthread_mutex_lock(&line->lock);
    if (line->stage == READY) {
        line->request = request;
        line->request_size = sizeof length + length;
        line->stage = ASKED;
        pthread_cond_broadcast(&line->changed);
        await_change(line, ASKED, seconds);
        request = NULL;
    }
    char *reply = NULL;
    size_t size = line->reply_size;
    Stage stage = line->stage;
    if (stage == ANSWERED) {
        reply = line->reply;
        line->reply = NULL;
        line->stage = READY;
    }
    pthread_mutex_unlock(&line->lock);
    free(request);
    if (stage == ANSWERED) {
        result = PyBytes_FromStringAndSize(reply, (Py_ssize_t)size);
        free(reply);
    } else if (stage == STOPPED || stage == OVER) {
        PyErr_SetString(PyExc_EOFError, "the process has ended");
    } else {
        PyErr_SetString(PyExc_TimeoutError, "the process has not answered yet");
    }
    return result;
}

static PyObject *process_wait(Process *self, PyObject *args) {
    Line *line = self->line;
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds)) return NULL;
    pthread_mutex_lock(&line->lock);
    for (Stage stage = line->stage; stage != OVER; stage = line->stage) {
        await_change(line, stage, seconds);
        if (line->stage == stage) break;
    }
    bool over = line->stage == OVER;
    pthread_mutex_unlock(&line->lock);
    return PyBool_FromLong(over);
}

static PyObject *process_kill(Process *self, PyObject *Py_UNUSED(ignored)) {
    signal_process(self->line, SIGKILL);
    Py_RETURN_NONE;
}

static PyObject *process_forget(Process *self, PyObject *Py_UNUSED(ignored)) {
    if (self->line->shared && self->line->program != getpid()) {
        discard(&self->line->jobs);
        discard(&self->line->life);
        discard(&self->line->log);
    }
    Py_RETURN_NONE;
}

static PyObject *told(Process *self, size_t place) {
    Line *line = self->line;
    pthread_mutex_lock(&line->lock);
    bool known = line->heard >= (place + 1) * sizeof line->told[0];
    int32_t value = line->told[place];
    pthread_mutex_unlock(&line->lock);
    return known ? PyLong_FromLong(value) : Py_NewRef(Py_None);
}

static PyObject *process_id(Process *self, void *Py_UNUSED(closure)) { return told(self, 0); }
static PyObject *process_status(Process *self, void *Py_UNUSED(closure)) { return told(self, 1); }
static PyObject *process_keeper(Process *self, void *Py_UNUSED(closure)) { return PyLong_FromLong(self->line->keeper); }

static PyObject *process_words(Process *self, void *Py_UNUSED(closure)) {
    pthread_mutex_lock(&self->line->lock);
    PyObject *words = PyBytes_FromStringAndSize(self->line->words, (Py_ssize_t)self->line->word_count);
    pthread_mutex_unlock(&self->line->lock);
    return words;
}

static PyMethodDef process_methods[] = {
    {"exchange", (PyCFunction)process_exchange, METH_VARARGS,
     "exchange(message, seconds): what the process answers. Raises EOFError when it has ended, TimeoutError when it takes longer; "
     "then it can only be stopped. One thread at a time."},
    {"stop", (PyCFunction)process_stop, METH_NOARGS, "Has the process end."},
    {"wait", (PyCFunction)process_wait, METH_VARARGS, "wait(seconds): whether the process and all that it started have ended."},
    {"kill", (PyCFunction)process_kill, METH_NOARGS, "Ends a process that does not end."},
    {"forget", (PyCFunction)process_forget, METH_NOARGS, "In a fork: closes what it inherited of a process of its parent."},
    {NULL},
};

static PyGetSetDef process_getset[] = {
    {"id", (getter)process_id, NULL, "The process that does the work; None if it ended before it could say.", NULL},
    {"status", (getter)process_status, NULL, "How that ended (a signal's number is negative), as far as it is known.", NULL},
    {"keeper", (getter)process_keeper, NULL, "The process that looks after it.", NULL},
    {"words", (getter)process_words, NULL, "The end of what it had written to standard error when it answered or ended.", NULL},
    {NULL},
};

static PyTypeObject process_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "capture._process.Process",
    .tp_doc = "Process(command, environment, shared=False): starts a process, and waits until it says who it is. Raises OSError.\n"
              "shared: uses the program's own table of descriptors, as where the system has no others.",
    .tp_basicsize = sizeof(Process),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = process_new,
    .tp_dealloc = (destructor)process_dealloc,
    .tp_methods = process_methods,
    .tp_getset = process_getset,
};

static PyObject *end_with_parent(PyObject *Py_UNUSED(module), PyObject *args) {
    int number;
    if (!PyArg_ParseTuple(args, "i", &number)) return NULL;
    return PyBool_FromLong(!prctl(PR_SET_PDEATHSIG, number, 0, 0, 0));
}

static PyObject *adopt_orphans(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(!prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
}

static PyMethodDef functions[] = {
    {"end_with_parent", end_with_parent, METH_VARARGS, "end_with_parent(signal): has this process get a signal when its parent ends."},
    {"adopt_orphans", adopt_orphans, METH_NOARGS,
     "adopt_orphans(): has the children of a descendant that ends become children of this process."},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "capture._process", .m_size = -1, .m_methods = functions,
    .m_doc = "A process that the program cannot see, and talks to over descriptors that it cannot close.",
};

PyMODINIT_FUNC PyInit__process(void) {
    if (PyType_Ready(&process_type)) return NULL;
    PyObject *self = PyModule_Create(&module);
    if (self && (PyModule_AddObjectRef(self, "Process", (PyObject *)&process_type) ||
                 PyModule_AddIntConstant(self, "JOBS", JOBS) || PyModule_AddIntConstant(self, "LIFE", LIFE))) {
        Py_CLEAR(self);
    }
    return self;
}
