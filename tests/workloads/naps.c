/* naps sleep|wait [COUNT NS]...: COUNT times NS each, one kind after the other. naps woken COUNT.
 *
 *   sleep   main sleeps for so long
 *   woken   main sleeps until another thread wakes it, which has seen by the kernel's count that main left its CPU: a
 *           timer may fire before that, and there was no sleep then
 *   wait    another thread, of policy idle, waits for the CPU that both may have alone: main wakes it, and works for so
 *           long before it sleeps. (The scheduler gives the other one a turn before, now and then.)
 *
 * Printed for each kind: [NS, the longest, how many may be in a later power of two than NS, how much longer they were
 * than that in all, in how many of them it never left its CPU by itself (their timers fired before it could)], by a
 * clock that is read before and behind. Of each wait its length by such a clock, at least and at most: whom main took
 * the CPU from when it was woken has waited before main read its clock. And how often main left its CPU by itself and
 * how long it waited for one, and the other one was preempted where it did not wake main, by the kernel's accounts.
 */
#include "truth.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

enum { MOST_WAITS = 1009 };

typedef struct {
    pid_t tid;
    int64_t told_ns; /* when it had a CPU, just before main was woken */
    long n_preempted;
} Waiter;

typedef struct {
    int64_t least_ns, most_ns;
} Wait;

static int to_waiter[2], to_main[2];
static Wait measured[MOST_WAITS];
static int n_waits;

static void *wait_and_tell(void *mine) {
    struct sched_param none = {0};
    Waiter *waiter = mine;
    int64_t woken_ns;
    long n_by_main = 0;
    waiter->tid = thread_id();
    check(sched_setscheduler(0, SCHED_IDLE, &none), "sched_setscheduler");
    for (long n_slept = used().ru_nvcsw; read(to_waiter[0], &woken_ns, sizeof woken_ns) == sizeof woken_ns;) {
        int64_t now_ns = wall_ns();
        int has_slept = used().ru_nvcsw != n_slept;
        Wait wait = {now_ns - woken_ns, now_ns - (has_slept ? woken_ns : waiter->told_ns)};
        struct rusage before = used();
        n_slept = before.ru_nvcsw;
        waiter->told_ns = wall_ns();
        check(write(to_main[1], &wait, sizeof wait) != sizeof wait, "write");
        n_by_main += used().ru_nivcsw != before.ru_nivcsw;
    }
    waiter->n_preempted = used().ru_nivcsw - n_by_main;
    return NULL;
}

static int64_t waited(int64_t length_ns) {
    int64_t begin_ns = wall_ns();
    check(n_waits == MOST_WAITS, "more waits than are kept");
    Wait *wait = &measured[n_waits++];
    check(write(to_waiter[1], &begin_ns, sizeof begin_ns) != sizeof begin_ns, "write");
    while (wall_ns() - begin_ns < length_ns) continue;
    check(read(to_main[0], wait, sizeof *wait) != sizeof *wait, "read");
    return wait->least_ns;
}

static int64_t slept(int64_t length_ns) {
    int64_t begin_ns = wall_ns();
    sleep_ns(length_ns);
    return wall_ns() - begin_ns;
}

/* How often the thread of a status file of /proc has left its CPU by itself. */
static long n_left(int status) {
    static const char name[] = "\nvoluntary_ctxt_switches:";
    char text[4096];
    ssize_t length = pread(status, text, sizeof text - 1, 0);
    check(length <= 0, "pread");
    text[length] = 0;
    char *found = strstr(text, name);
    check(!found, "voluntary_ctxt_switches");
    return atol(found + sizeof name - 1);
}

static long n_to_wake; /* 0 as long as it is being done */
static int wakes;

static void *wake_who_left(void *unused) {
    int status = open("/proc/self/status", O_RDONLY | O_CLOEXEC); /* main's */
    uint64_t one = 1;
    long n_seen = n_left(status), n_now;
    for (long i = __atomic_exchange_n(&n_to_wake, 0, __ATOMIC_ACQ_REL); i > 0; i--) {
        while ((n_now = n_left(status)) == n_seen) continue;
        n_seen = n_now;
        for (int64_t seen_ns = wall_ns(); wall_ns() - seen_ns < 100000;) continue; /* so often that each is asked why */
        check(write(wakes, &one, sizeof one) != sizeof one, "write");
    }
    close(status);
    __atomic_store_n(&n_to_wake, 1, __ATOMIC_RELEASE);
    return unused;
}

/* The last kind. Where main leaves its CPU for another reason one read does not wait: that is counted like a sleep. */
static int woken(long count) {
    uint64_t one;
    pthread_t waker;
    n_to_wake = count;
    wakes = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    check(wakes < 0, "eventfd");
    check(pthread_create(&waker, NULL, wake_who_left, NULL), "pthread_create");
    while (__atomic_load_n(&n_to_wake, __ATOMIC_ACQUIRE)) continue;
    long n_before = used().ru_nvcsw;
    for (long i = 0; i < count; i++) check(read(wakes, &one, sizeof one) != sizeof one || one != 1, "read");
    long n_slept = used().ru_nvcsw - n_before;
    while (!__atomic_load_n(&n_to_wake, __ATOMIC_ACQUIRE)) continue; /* joining it may be a wait */
    printf("{\"n_slept\": %ld, \"tid\": %d}\n", n_slept, getpid());
    return 0;
}

static void run_kind(int waits, long count, int64_t length_ns, const char *before) {
    int64_t most_ns = 0, beyond_ns = 0, end_ns = 1;
    long n_beyond = 0, n_awake = 0;
    while (end_ns <= length_ns) end_ns *= 2;
    for (long i = 0; i < count; i++) {
        long n_left = used().ru_nvcsw;
        int64_t took_ns = waits ? waited(length_ns) : slept(length_ns);
        most_ns = took_ns > most_ns ? took_ns : most_ns;
        beyond_ns += took_ns - length_ns;
        n_beyond += took_ns >= end_ns;
        n_awake += used().ru_nvcsw == n_left;
    }
    printf("%s[%ld, %ld, %ld, %ld, %ld]", before, length_ns, most_ns, n_beyond, beyond_ns, n_awake);
}

int main(int argc, char **argv) {
    int waits = argc > 1 && !strcmp(argv[1], "wait");
    pthread_t thread;
    Waiter waiter = {0};
    if (argc == 3 && !strcmp(argv[1], "woken")) return woken(atol(argv[2]));
    if (argc < 4 || argc % 2 || (!waits && strcmp(argv[1], "sleep"))) return 2;
    prctl(PR_SET_TIMERSLACK, 1);
    check(pipe(to_waiter) || pipe(to_main), "pipe");
    if (waits) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        check(sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
        waiter.told_ns = wall_ns();
        check(pthread_create(&thread, NULL, wait_and_tell, &waiter), "pthread_create");
    }
    long n_before = used().ru_nvcsw;
    int64_t delay_before_ns = delay_ns();
    printf("{\"kinds\": [");
    for (int at = 2; at < argc; at += 2) run_kind(waits, atol(argv[at]), atoll(argv[at + 1]), at > 2 ? ", " : "");
    printf("], \"n_slept\": %ld, \"delay_ns\": %ld, \"waits_ns\": [", used().ru_nvcsw - n_before,
           delay_ns() - delay_before_ns);
    for (int i = 0; i < n_waits; i++) printf("%s[%ld, %ld]", i ? ", " : "", measured[i].least_ns, measured[i].most_ns);
    close(to_waiter[1]);
    if (waits) pthread_join(thread, NULL);
    printf("], \"tid\": %d, \"waiter\": %d, \"n_preempted\": %ld}\n", getpid(), waiter.tid, waiter.n_preempted);
    return 0;
}
