/* wakes N [KIND]: a thread that waits N times, and another one that ends each wait: by futex, eventfd, pipe, poll or
 * epoll (default: each of them N times).
 *
 *   main "waker"    -> wake      writes or FUTEX_WAKE, as soon as the other one sleeps
 *   thread "wakee"  -> wait_for  FUTEX_WAIT, read, poll or epoll_wait
 *
 * The kernel's own count of the wakee's voluntary switches tells that it sleeps; meanwhile the waker does not, so that
 * nothing else wakes one of the two. The counts of switches are printed: they are N for each kind.
 */
#include "truth.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

enum { FUTEX, EVENTFD, PIPE, POLL, EPOLL, N_KINDS };
static const char *const names[N_KINDS] = {"futex", "eventfd", "pipe", "poll", "epoll"};

static long n_rounds;
static int only = -1;
static int event_fd, epoll_fd, pipe_fds[2];
static volatile uint32_t word;
static volatile long n_begun, n_done;
static volatile pid_t wakee_tid;

static void take_event(void) {
    uint64_t count;
    check(read(event_fd, &count, sizeof count) != sizeof count, "read");
}

FRAME static void wait_for(int kind, uint32_t round) {
    char byte;
    struct pollfd polled = {.fd = event_fd, .events = POLLIN};
    struct epoll_event event;
    switch (kind) {
    case FUTEX:
        while (word < round) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, round - 1, NULL, NULL, 0);
        break;
    case EVENTFD:
        take_event();
        break;
    case PIPE:
        check(read(pipe_fds[0], &byte, 1) != 1, "read");
        break;
    case POLL:
        check(poll(&polled, 1, -1) != 1, "poll");
        take_event();
        break;
    case EPOLL:
        check(epoll_wait(epoll_fd, &event, 1, -1) != 1, "epoll_wait");
        take_event();
        break;
    }
    KEEP_FRAME();
}

FRAME static void wake(int kind) {
    uint64_t one = 1;
    switch (kind) {
    case FUTEX:
        word++;
        syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        break;
    case PIPE:
        check(write(pipe_fds[1], "x", 1) != 1, "write");
        break;
    default:
        check(write(event_fd, &one, sizeof one) != sizeof one, "write");
    }
    KEEP_FRAME();
}

static int is_chosen(int kind) { return only < 0 || kind == only; }

static void *wakee(void *unused) {
    (void)unused;
    pthread_setname_np(pthread_self(), "wakee");
    wakee_tid = thread_id();
    for (int kind = 0; kind < N_KINDS; kind++)
        for (long i = 1; is_chosen(kind) && i <= n_rounds; i++) {
            n_begun++;
            wait_for(kind, (uint32_t)i);
            n_done++;
        }
    return NULL;
}

static long voluntary_switches(void) {
    static char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)wakee_tid);
    int fd = open(path, O_RDONLY);
    check(fd < 0, path);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n < 0 ? 0 : n] = 0;
    char *line = strstr(text, "\nvoluntary_ctxt_switches:");
    check(!line, "voluntary_ctxt_switches");
    return atol(strchr(line, ':') + 1);
}

/* Until it has left its CPU, and a little longer: the kernel counts first, and leaves then. */
static long until_it_sleeps(long before) {
    long now;
    while ((now = voluntary_switches()) == before) sched_yield();
    for (int64_t start = wall_ns(); wall_ns() - start < 100000;) continue;
    return now;
}

int main(int argc, char **argv) {
    pthread_t thread;
    n_rounds = argc > 1 ? atol(argv[1]) : 101;
    for (int kind = 0; argc > 2 && kind < N_KINDS; kind++)
        if (!strcmp(argv[2], names[kind])) only = kind;
    pthread_setname_np(pthread_self(), "waker");
    struct epoll_event event = {.events = EPOLLIN};
    check((event_fd = eventfd(0, 0)) < 0 || pipe(pipe_fds), "eventfd, pipe");
    check((epoll_fd = epoll_create1(0)) < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, event_fd, &event), "epoll");
    check(pthread_create(&thread, NULL, wakee, NULL), "pthread_create");
    while (!n_begun) sched_yield();
    printf("{");
    for (int kind = 0; kind < N_KINDS; kind++) {
        long n_switches = 0;
        for (long i = 1; is_chosen(kind) && i <= n_rounds; i++) {
            static long done, switches;
            while (n_begun == done) sched_yield();
            long now = until_it_sleeps(switches);
            n_switches += now - switches;
            switches = now;
            wake(kind);
            while (n_done == done) sched_yield();
            done++;
        }
        if (is_chosen(kind)) printf("\"%s\": %ld, ", names[kind], n_switches);
    }
    pthread_join(thread, NULL);
    printf("\"waker\": %d, \"wakee\": %d}\n", (int)getpid(), (int)wakee_tid);
    return 0;
}
