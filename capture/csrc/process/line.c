// The thread that starts a process and talks to it: see line.h.

#define _GNU_SOURCE
#include "process/line.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TICK = 100 };            // milliseconds between two looks at whether to stop
enum { STACK = 256 << 10, THREAD_STACK = 1 << 20 };
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2u
#endif

// --- descriptors

static File known(int number) {
    struct stat state;
    return fstat(number, &state) ? NO_FILE : (File){number, state.st_dev, state.st_ino};
}

// Whether a descriptor still is what it was.
static bool ours(const File *file) {
    struct stat state;
    return file->number >= 0 && !fstat(file->number, &state) && state.st_dev == file->device && state.st_ino == file->node;
}

void discard(File *file) {
    if (ours(file)) close(file->number);
    *file = NO_FILE;
}

// Has this thread share its descriptors with no other, and have none; whether the system can do that.
static bool leave_descriptors(void) {
    return !syscall(SYS_close_range, 0u, ~0u, CLOSE_RANGE_UNSHARE);
}

// --- what the program and the thread share

void free_strings(char **strings) {
    for (char **item = strings; item && *item; ++item) free(*item);
    free(strings);
}

void release_line(Line *line) {
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

void signal_process(Line *line, int number) {
    pthread_mutex_lock(&line->lock);
    if (line->stage != OVER && line->keeper > 0) {
        if (line->told[0] > 0) kill(line->told[0], number);
        kill(line->keeper, number);
    }
    pthread_mutex_unlock(&line->lock);
}

// Has the process end, and waits for that.
static void finish(Line *line) {
    if (stopping(line)) move_to(line, STOPPED);
    discard(&line->jobs);
    if (ours(&line->life)) shutdown(line->life.number, SHUT_WR);
    while (ours(&line->life)) {
        struct pollfd item = {line->life.number, POLLIN, 0};
        if (poll(&item, 1, TICK) <= 0) {
            signal_process(line, SIGCONT);      // it has not heard, as somebody has stopped it
        } else if (!hear(line)) {
            break;
        }
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
    release_line(line);
    return NULL;
}

int start_talking(Line *line) {
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
