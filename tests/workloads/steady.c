/* steady THREADS SECONDS: threads that work without a pause, and tell when they could not.
 *
 *   thread_main -> run -> work        SECONDS of CPU time, divided among THREADS threads, or until SIGUSR1
 *
 * A thread looks at the wall clock after each piece of work. Where that has gone on by more than HOLE_NS since the last
 * look, the thread was off its CPU, or its CPU was with an interrupt or a hypervisor: a hole, from one look to the next.
 * Outside of holes it was at work on a CPU, in user mode. Printed: of each thread when it began and ended, its CPU time
 * when it began, its switches between the two, and its holes.
 */
#include "truth.h"

enum { MAX_THREADS = 7, MAX_HOLES = 10007, HOLE_NS = 500000 };

typedef struct {
    pid_t tid;
    int64_t before_ns, began_ns, ended_ns;
    long n_switches, n_holes;
    int64_t holes[MAX_HOLES][2];
} Told;

static Told told[MAX_THREADS];
static int64_t share_ns;
static volatile sig_atomic_t is_over;

static void end(int number) { is_over = number; }

static long switches_so_far(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* The moment and the count belong together: no switch between the two. */
static int64_t moment(long *n_switches) {
    int64_t now_ns;
    do {
        *n_switches = switches_so_far();
        now_ns = wall_ns();
    } while (switches_so_far() != *n_switches);
    return now_ns;
}

static void look(Told *mine, int64_t last_ns, int64_t now_ns) {
    if (now_ns - last_ns <= HOLE_NS || mine->n_holes == MAX_HOLES) return;
    mine->holes[mine->n_holes][0] = last_ns;
    mine->holes[mine->n_holes++][1] = now_ns;
}

FRAME int64_t work(Told *mine) {
    int64_t last_ns = mine->began_ns;
    while (!is_over && thread_cpu_ns() - mine->before_ns < share_ns) {
        piece_of_work();
        int64_t now_ns = wall_ns();
        look(mine, last_ns, now_ns);
        last_ns = now_ns;
    }
    return last_ns;
}

FRAME void run(Told *mine) {
    long before, after;
    mine->tid = thread_id();
    mine->began_ns = moment(&before);
    mine->before_ns = thread_cpu_ns();
    int64_t last_ns = work(mine);
    mine->ended_ns = moment(&after);
    look(mine, last_ns, mine->ended_ns);
    mine->n_switches = after - before;
    KEEP_FRAME();
}

FRAME void *thread_main(void *mine) {
    run(mine);
    KEEP_FRAME();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MAX_THREADS];
    int n_threads = argc > 1 ? atoi(argv[1]) : 3;
    if (n_threads < 1 || n_threads > MAX_THREADS) return 2;
    check(signal(SIGUSR1, end) == SIG_ERR, "signal");
    share_ns = seconds_to_ns(argc > 2 ? argv[2] : "1") / n_threads;
    for (int i = 1; i < n_threads; i++) {
        check(pthread_create(&threads[i], NULL, thread_main, &told[i]), "pthread_create");
    }
    run(&told[0]);
    for (int i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
    printf("{\"threads\": [");
    for (int i = 0; i < n_threads; i++) {
        printf("%s{\"tid\": %d, \"began_ns\": %lld, \"ended_ns\": %lld, \"before_ns\": %lld, \"n_switches\": %ld, "
               "\"holes\": [", i ? ", " : "", (int)told[i].tid, (long long)told[i].began_ns,
               (long long)told[i].ended_ns, (long long)told[i].before_ns, told[i].n_switches);
        for (long k = 0; k < told[i].n_holes; k++) {
            printf("%s[%lld, %lld]", k ? ", " : "", (long long)told[i].holes[k][0], (long long)told[i].holes[k][1]);
        }
        printf("]}");
    }
    printf("], ");
    print_rusage();
    printf("}\n");
    return 0;
}
