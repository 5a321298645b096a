// A process that the program cannot see, and the line to it, over descriptors that the program cannot close.
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
// The process gets two sockets: JOBS, for messages (their length, 8 bytes, then that many bytes), and LIFE, over which it says
// which process does the work, and how that ended; when the other end of LIFE closes, it ends. Needs nothing of torch: it is used
// before that is imported.

#ifndef CAPTURE_LINE_H
#define CAPTURE_LINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { JOBS = 3, LIFE = 4 };    // descriptors of the process, besides the standard ones
enum { WORDS = 4000 };          // bytes of what the process last wrote to standard error that are kept

// A descriptor, and what it leads to.
typedef struct {
    int number;
    dev_t device;
    ino_t node;
} File;

static const File NO_FILE = {-1, 0, 0};

typedef enum { STARTING, READY, ASKED, ANSWERED, STOPPED, OVER } Stage;    // STOPPED: nobody waits for an answer any more

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

// Starts the thread, which owns the line too: 0, or why it cannot be. Everything that it needs to know is in the line.
int start_talking(Line *line);

// Sends a signal to the process, and to the one that does the work, unless they have ended: they live while their end of LIFE is
// open.
void signal_process(Line *line, int number);

// One owner less. The last one frees the line.
void release_line(Line *line);

void free_strings(char **strings);

// Closes a descriptor, if it still is what it was.
void discard(File *file);

#endif
