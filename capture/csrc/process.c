// The extension `capture._process`: a process that the program cannot see, and talks to over descriptors that it cannot close.
//
// A program may close any descriptor (os.closerange), wait for any child (os.wait), and have any signal end it (SIGPIPE). So
// - whoever talks to the process is a thread of C with a descriptor table of its own. Nothing that the program does to descriptors
//   reaches it, a fork inherits none of it, and when the program ends, however that comes, the other side reads the end of it.
//   A thread of Python would not do: the garbage collector may close files of the program in any of these. Where the system
//   knows no such tables, each descriptor is looked at before it is used, and is only ever used as a socket.
// - the process is no child of the program. Who starts it is a process in the program's memory that sends no signal when it ends:
//   such a child the program's own waiting passes over. It ends at once, and what it started is then the system's; where it would
//   be the program's, which adopts orphans, it stays as long as that does.
//
// The process gets two sockets: JOBS, for messages (their length, 8 bytes, then that many bytes), and LIFE, over which it says which
// process does the work, and how that ended; when the other end of LIFE closes, it ends. Needs nothing of torch: it is used before
// that is imported.

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { JOBS = 3, LIFE = 4 };    // descriptors of the process, besides the standard ones
enum { TICK = 100 };            // milliseconds between two looks at whether to stop
enum { WORDS = 4000 };          // bytes of what the process last wrote to standard error that are kept
enum { STACK = 256 << 10, THREAD_STACK = 1 << 20 };
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2u
#endif

// --- descriptors

typedef struct {
    int number;
    dev_t device;
    ino_t node;
} File;

static const File NO_FILE = {-1, 0, 0};

static File known(int number) {
    struct stat state;
    return fstat(number, &state) ? NO_FILE : (File){number, state.st_dev, state.st_ino};
}

// Whether a descriptor still is what it was.
static bool ours(const File *file) {
    struct stat state;
    return file->number >= 0 && !fstat(file->number, &state) && state.st_dev == file->device && state.st_ino == file->node;
}

static void discard(File *file) {
    if (ours(file)) close(file->number);
    *file = NO_FILE;
}

// Has this thread share its descriptors with no other, and have none; whether the system can do that.
static bool leave_descriptors(void) {
    return !syscall(SYS_close_range, 0u, ~0u, CLOSE_RANGE_UNSHARE);
}

// --- a process and the thread that talks to it

typedef enum { STARTING, READY, ASKED, ANSWERED, OVER } Stage;

typedef struct {
    pthread_mutex_t lock;               // of all that follows, up to the descriptors
    pthread_cond_t changed;
    int owners;                         // the object of Python, the thread
    Stage stage;
    bool stop;
    int error;                          // errno of a start that failed
    pid_t keeper;                       // the process that was started
    int32_t told[2];                    // what it said: the id of the process that does the work, how that ended
    size_t heard;                       // bytes of it
    char *request, *reply;
    size_t request_size, reply_size;
    char words[WORDS];
    size_t word_count;

    pid_t program;                      // whose thread it is: forks have none
    bool shared;                        // whether descriptors are the program's, too
    char **command, **environment;

    File jobs, life, log;               // of the thread alone, from here on
    pid_t between;                      // who started the process, where it stays
    void *stack;
} Line;

static void free_strings(char **strings) {
    for (char **item = strings; item && *item; ++item) free(*item);
    free(strings);
}

static void release(Line *line) {
    pthread_mutex_lock(&line->lock);
    bool last = --line->owners == 0;
    pthread_mutex_unlock(&line->lock);
    if (!last) return;
    pthread_mutex_destroy(&line->lock);
    pthread_cond_destroy(&line->changed);
    free_strings(line->command);
    free_strings(line->environment);
    free(line->request);
    free(line->reply);
    free(line);
}

static void move_to(Line *line, Stage stage) {
    pthread_mutex_lock(&line->lock);
    line->stage = stage;
    pthread_cond_broadcast(&line->changed);
    pthread_mutex_unlock(&line->lock);
}

static bool stopping(Line *line) {
    pthread_mutex_lock(&line->lock);
    bool stop = line->stop;
    pthread_mutex_unlock(&line->lock);
    return stop;
}

// --- starting it

typedef struct {
    char **command, **environment;
    int jobs, life, log;                // the process's ends
    char *stack;                        // of the process in between, below that of the process until it is one
    bool stay;
    int error;
    pid_t id;
    atomic_bool done;                   // from here on the process in between looks at nothing of this
} Birth;

// Code that runs as a process of its own in the program's memory: its stack is not what sanitizers take it for.
#define IN_BETWEEN __attribute__((no_sanitize("address", "undefined")))

// Becomes the process. It shares the program's memory until then, so it touches nothing but its own stack.
IN_BETWEEN static int become(void *argument) {
    Birth *birth = argument;
    setpgid(0, 0);      // Ctrl-C is for the program
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    int jobs = fcntl(birth->jobs, F_DUPFD, 10), life = fcntl(birth->life, F_DUPFD, 10), log = fcntl(birth->log, F_DUPFD, 10);
    for (int number = 0; number <= LIFE; ++number) close(number);
    int null = open("/dev/null", O_RDWR);               // number 0
    dup2(log < 0 ? null : log, 1);
    dup2(1, 2);
    dup2(jobs, JOBS);
    dup2(life, LIFE);
    if (syscall(SYS_close_range, LIFE + 1u, ~0u, 0u)) {
        for (int number = LIFE + 1, end = (int)sysconf(_SC_OPEN_MAX); number < end; ++number) close(number);
    }
    struct sigaction usual = {.sa_handler = SIG_DFL};   // who ignores SIGCHLD does not learn how its children ended
    for (int number = 1; number < NSIG; ++number) {
        if (number != SIGHUP) sigaction(number, &usual, NULL);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvpe(birth->command[0], birth->command, birth->environment);
    birth->error = errno;
    return 127;
}

// The process in between. Its signals are all blocked.
IN_BETWEEN static int bear(void *argument) {
    Birth *birth = argument;
    pid_t id = clone(become, birth->stack + STACK / 2, CLONE_VM | CLONE_VFORK | SIGCHLD, birth);
    if (id < 0) birth->error = errno;
    bool stay = id > 0 && (birth->stay || birth->error);
    birth->id = id;
    atomic_store(&birth->done, true);
    if (stay) waitpid(id, NULL, 0);
    return 0;
}

// Whether orphans become this process's children.
static bool adopts(void) {
    int reaper = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &reaper, 0, 0, 0);
    return reaper || getpid() == 1;
}

// Waits for the process in between, which the line then knows no more.
static void bury(Line *line) {
    while (line->between > 0 && waitpid(line->between, NULL, __WCLONE) < 0 && errno == EINTR) {}
    if (line->stack) munmap(line->stack, STACK);
    line->between = 0;
    line->stack = NULL;
}

// Starts the process: 0, or why it could not be.
static int spawn(Line *line, Birth *birth) {
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) return errno;
    birth->stay = adopts();
    birth->stack = line->stack = stack;
    line->between = clone(bear, birth->stack + STACK, CLONE_VM | (birth->stay ? 0 : CLONE_VFORK), birth);   // no signal at its end
    int error = line->between < 0 ? errno : 0;
    while (!error && !atomic_load(&birth->done)) {
        usleep(1000);
        if (waitpid(line->between, NULL, __WCLONE | WNOHANG) && !atomic_load(&birth->done)) error = ECHILD;     // it was killed
    }
    if (error || birth->error || !birth->stay) bury(line);
    return error ? error : birth->error;
}

static int start(Line *line) {
    int jobs[2], life[2];
    line->shared = line->shared || !leave_descriptors();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, jobs)) return errno;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life)) {
        int error = errno;
        close(jobs[0]);
        close(jobs[1]);
        return error;
    }
    int log = memfd_create("capture-log", MFD_CLOEXEC);
    line->jobs = known(jobs[0]);
    line->life = known(life[0]);
    line->log = log < 0 ? NO_FILE : known(log);
    Birth birth = {.command = line->command, .environment = line->environment, .jobs = jobs[1], .life = life[1], .log = log};
    int error = spawn(line, &birth);
    close(jobs[1]);
    close(life[1]);
    pthread_mutex_lock(&line->lock);
    line->keeper = error ? 0 : birth.id;
    pthread_mutex_unlock(&line->lock);
    return error;
}

// --- talking to it

// Waits until a file is ready; false when it is not ours any more, or all is to stop.
static bool await(Line *line, const File *file, short events) {
    while (!stopping(line) && ours(file)) {
        struct pollfd item = {file->number, events, 0};
        if (poll(&item, 1, TICK) > 0) return true;
    }
    return false;
}

static bool again(void) { return errno == EAGAIN || errno == EINTR; }

static bool send_all(Line *line, const char *data, size_t size) {
    while (size) {
        ssize_t count = ours(&line->jobs) ? send(line->jobs.number, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
        if (count == 0 || (count < 0 && !again())) return false;
        if (count < 0 && !await(line, &line->jobs, POLLOUT)) return false;
        if (count > 0) data += count, size -= count;
    }
    return true;
}

static bool receive_all(Line *line, char *data, size_t size) {
    while (size) {
        if (!await(line, &line->jobs, POLLIN)) return false;
        ssize_t count = recv(line->jobs.number, data, size, MSG_DONTWAIT);
        if (count == 0 || (count < 0 && !again())) return false;
        if (count > 0) data += count, size -= count;
    }
    return true;
}

// Takes down what the process says of itself, if it has said anything; false at the end.
static bool hear(Line *line) {
    char data[sizeof line->told];
    ssize_t count = recv(line->life.number, data, sizeof data, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && !again())) return false;
    pthread_mutex_lock(&line->lock);
    for (ssize_t i = 0; i < count && line->heard < sizeof line->told; ++i) ((char *)line->told)[line->heard++] = data[i];
    pthread_mutex_unlock(&line->lock);
    return true;
}

static void note_words(Line *line) {
    struct stat state;
    if (!ours(&line->log) || fstat(line->log.number, &state)) return;
    off_t from = state.st_size > WORDS ? state.st_size - WORDS : 0;
    pthread_mutex_lock(&line->lock);
    ssize_t count = pread(line->log.number, line->words, WORDS, from);
    line->word_count = count < 0 ? 0 : (size_t)count;
    pthread_mutex_unlock(&line->lock);
}

// Waits for a request and takes it; false when all is to stop.
static bool take(Line *line, char **request, size_t *size) {
    pthread_mutex_lock(&line->lock);
    while (!line->stop && !line->request) pthread_cond_wait(&line->changed, &line->lock);
    bool going = !line->stop;
    *request = line->request;
    *size = line->request_size;
    line->request = NULL;
    pthread_mutex_unlock(&line->lock);
    return going;
}

static bool answer(Line *line, const char *request, size_t size) {
    uint64_t length;
    if (!send_all(line, request, size) || !receive_all(line, (char *)&length, sizeof length)) return false;
    char *reply = malloc(length ? length : 1);
    if (!reply || !receive_all(line, reply, length)) {
        free(reply);
        return false;
    }
    note_words(line);
    pthread_mutex_lock(&line->lock);
    line->reply = reply;
    line->reply_size = length;
    pthread_mutex_unlock(&line->lock);
    move_to(line, ANSWERED);
    return true;
}

// Has the process end, and waits for that.
static void finish(Line *line) {
    discard(&line->jobs);
    if (ours(&line->life)) shutdown(line->life.number, SHUT_WR);
    while (ours(&line->life)) {
        struct pollfd item = {line->life.number, POLLIN, 0};
        if (poll(&item, 1, TICK) > 0 && !hear(line)) break;
    }
    note_words(line);
    discard(&line->life);
    discard(&line->log);
    bury(line);
    move_to(line, OVER);
}

static void *talk(void *argument) {
    Line *line = argument;
    int error = start(line);
    pthread_mutex_lock(&line->lock);
    line->error = error;
    pthread_mutex_unlock(&line->lock);
    if (!error) {
        while (line->heard < sizeof line->told[0] && await(line, &line->life, POLLIN) && hear(line)) {}
        if (line->heard >= sizeof line->told[0]) move_to(line, READY);
        char *request = NULL;
        size_t size;
        while (line->heard >= sizeof line->told[0] && take(line, &request, &size)) {
            bool answered = answer(line, request, size);
            free(request);
            request = NULL;
            if (!answered) break;
        }
        free(request);
    }
    finish(line);
    release(line);
    return NULL;
}

static int start_thread(Line *line) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);        // the program's signals are for its own threads
    int error = pthread_create(&thread, &attributes, talk, line);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

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

// --- for Python

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
    int error = line->command[0] ? start_thread(line) : ENOENT;
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
        release(self->line);
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
    } else if (stage == OVER) {
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
    Line *line = self->line;
    pthread_mutex_lock(&line->lock);
    if (line->stage != OVER && line->keeper > 0) {      // it lives, as its end of LIFE is open: the numbers are theirs
        if (line->told[0] > 0) kill(line->told[0], SIGKILL);
        kill(line->keeper, SIGKILL);
    }
    pthread_mutex_unlock(&line->lock);
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

static PyMethodDef functions[] = {
    {"end_with_parent", end_with_parent, METH_VARARGS, "end_with_parent(signal): has this process get a signal when its parent ends."},
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
