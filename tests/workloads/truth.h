/* What the workloads share: clocks, pure work, and printing what was really spent.
 *
 * Theory: a workload is a judge, so it measures itself with the clocks of the kernel and never trusts its own
 * arguments. Work is done in short pieces of pure arithmetic; after each piece the thread's own CPU clock decides
 * whether there is more to do. A piece takes about a fifth of a millisecond and the question a fifth of a
 * microsecond, so that about one part in a thousand of a function's time belongs to the clock.
 */
#ifndef TRUTH_H
#define TRUTH_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A function that must keep a frame of its own: not inlined, not cloned, not turned into a jump. */
#define FRAME __attribute__((noinline, noclone, noipa))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

#define NS_PER_S 1000000000LL
#define NS_PER_MS 1000000LL

static inline int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static inline int64_t wall_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static inline int64_t thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
static inline int64_t process_cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }
static inline int64_t seconds_to_ns(const char *text) { return (int64_t)(atof(text) * 1e9); }
static inline pid_t thread_id(void) { return (pid_t)syscall(SYS_gettid); }

static inline void die(const char *what) {
    perror(what);
    exit(3);
}

static inline void check(int failed, const char *what) {
    if (failed) die(what);
}

/* One piece of pure arithmetic, in the caller's own frame. */
__attribute__((always_inline)) static inline void piece_of_work(void) {
    uint64_t state = 88172645463325252ULL;
    for (int i = 0; i < 100003; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        __asm__ volatile("" : "+r"(state));
    }
}

/* How long this thread has waited for a CPU, by the kernel's account. */
static inline int64_t delay_ns(void) {
    long long cpu, delay = 0;
    FILE *account = fopen("/proc/thread-self/schedstat", "r");
    check(!account || fscanf(account, "%lld %lld", &cpu, &delay) != 2, "schedstat");
    fclose(account);
    return delay;
}

/* Work in the caller's own frame until its thread has used `cpu_ns` more than at `start`; returns what was used. */
__attribute__((always_inline)) static inline int64_t burn_from(int64_t start, int64_t cpu_ns) {
    int64_t now = start;
    while (now - start < cpu_ns) {
        piece_of_work();
        now = thread_cpu_ns();
    }
    return now - start;
}

/* The same from now on. */
__attribute__((always_inline)) static inline int64_t burn_here(int64_t cpu_ns) {
    return burn_from(thread_cpu_ns(), cpu_ns);
}

/* How long a function takes, by the clock. */
FRAME __attribute__((unused)) static int64_t timed(void (*function)(void)) {
    int64_t begin = wall_ns();
    function();
    return wall_ns() - begin;
}

static inline void sleep_ns(int64_t ns) {
    struct timespec left = {ns / NS_PER_S, ns % NS_PER_S};
    while (nanosleep(&left, &left) == -1 && errno == EINTR) continue;
}

/* What the calling thread has used: among others how often it has left its CPU by itself, and how often not. */
static inline struct rusage used(void) {
    struct rusage usage;
    check(getrusage(RUSAGE_THREAD, &usage), "getrusage");
    return usage;
}

static inline double timeval_s(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec * 1e-6; }

/* The tail of every report: what getrusage says of the whole process. */
static inline void print_rusage(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("\"pid\": %d, \"user_s\": %.6f, \"system_s\": %.6f, ", (int)getpid(), timeval_s(usage.ru_utime),
           timeval_s(usage.ru_stime));
    printf("\"n_voluntary\": %ld, \"n_involuntary\": %ld", usage.ru_nvcsw, usage.ru_nivcsw);
}

#endif
