/* pingpong ROUNDS: two threads pass one byte to and fro over two pipes, both on one CPU.
 *
 *   main   -> serve -> read, write
 *   thread -> reply -> read, write
 *
 * A round is two switches between the threads.
 */
#include "truth.h"
#include <sched.h>

static int to_thread[2], to_main[2];
static long n_rounds;
static int64_t reply_cpu_ns, reply_wall_ns;
static pid_t reply_tid;

static void move_byte(int in, int out) {
    char byte;
    check(read(in, &byte, 1) != 1, "read");
    check(write(out, &byte, 1) != 1, "write");
}

FRAME void *reply(void *unused) {
    (void)unused;
    int64_t start = wall_ns();
    reply_tid = thread_id();
    for (long i = 0; i < n_rounds; i++) move_byte(to_thread[0], to_main[1]);
    reply_cpu_ns = thread_cpu_ns();
    reply_wall_ns = wall_ns() - start;
    return NULL;
}

FRAME void serve(void) {
    char byte = 'x';
    check(write(to_thread[1], &byte, 1) != 1, "write");
    for (long i = 1; i < n_rounds; i++) move_byte(to_main[0], to_thread[1]);
    check(read(to_main[0], &byte, 1) != 1, "read");
}

static void stay_on_one_cpu(void) {
    cpu_set_t allowed, one;
    check(sched_getaffinity(0, sizeof allowed, &allowed), "sched_getaffinity");
    CPU_ZERO(&one);
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (CPU_ISSET(cpu, &allowed)) {
            CPU_SET(cpu, &one);
            break;
        }
    }
    check(sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
}

int main(int argc, char **argv) {
    pthread_t thread;
    n_rounds = argc > 1 ? atol(argv[1]) : 10007;
    stay_on_one_cpu();
    check(pipe(to_thread) || pipe(to_main), "pipe");
    int64_t start = wall_ns();
    check(pthread_create(&thread, NULL, reply, NULL), "pthread_create");
    serve();
    int64_t serve_cpu_ns = thread_cpu_ns();
    pthread_join(thread, NULL);
    double wall_s = (double)(wall_ns() - start) * 1e-9;
    printf("{\"rounds\": %ld, \"wall_s\": %.6f, \"switches_per_s\": %.0f, ", n_rounds, wall_s,
           2.0 * (double)n_rounds / wall_s);
    printf("\"serve_cpu_s\": %.6f, \"reply_cpu_s\": %.6f, \"reply_wall_s\": %.6f, \"reply_tid\": %d, ",
           (double)serve_cpu_ns * 1e-9, (double)reply_cpu_ns * 1e-9, (double)reply_wall_ns * 1e-9, (int)reply_tid);
    print_rusage();
    printf("}\n");
    return 0;
}
