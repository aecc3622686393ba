/* rested THREADS MILLISECONDS: threads on one CPU, each of which sleeps once and then wants that CPU all the time.
 *
 *   thread_main -> rests               100 ms asleep
 *               -> first, second       so much CPU time each, and the waits for the CPU among it
 *
 * Printed is how long the threads were in each function, by the clock; the longest time that one had no CPU in a row;
 * and the CPU time of the last two functions.
 */
#include "truth.h"
#include <sched.h>

enum { MAX_THREADS = 7 };

typedef struct {
    int64_t rests_ns, first_ns, second_ns, longest_ns, cpu_ns;
} Spent;

static Spent spent[MAX_THREADS];
static int64_t burn_ns;

FRAME void rests(void) {
    struct timespec nap = {0, 100 * NS_PER_MS};
    nanosleep(&nap, NULL);
    KEEP_FRAME();
}

static __thread Spent *own;

/* So much CPU time. */
__attribute__((always_inline)) static inline void burn_and_look(void) {
    int64_t cpu = 0, seen_ns = wall_ns();
    while (cpu < burn_ns) {
        cpu += burn_here(NS_PER_MS / 10);
        int64_t now_ns = wall_ns();
        if (now_ns - seen_ns > own->longest_ns) own->longest_ns = now_ns - seen_ns;
        seen_ns = now_ns;
    }
    own->cpu_ns += cpu;
}

FRAME void first(void) {
    burn_and_look();
    KEEP_FRAME();
}

FRAME void second(void) {
    burn_and_look();
    KEEP_FRAME();
}

FRAME void *thread_main(void *argument) {
    Spent *mine = own = argument;
    mine->rests_ns = timed(rests);
    mine->first_ns = timed(first);
    mine->second_ns = timed(second);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MAX_THREADS];
    int n_threads = argc > 1 ? atoi(argv[1]) : 3;
    burn_ns = (argc > 2 ? atol(argv[2]) : 211) * NS_PER_MS;
    if (n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr, "rested: 1 to %d threads\n", MAX_THREADS);
        return 2;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    check(sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
    for (int i = 1; i < n_threads; i++) check(pthread_create(&threads[i], NULL, thread_main, &spent[i]), "pthread_create");
    thread_main(&spent[0]);
    for (int i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
    Spent all = {0, 0, 0, 0, 0};
    for (int i = 0; i < n_threads; i++) {
        all.rests_ns += spent[i].rests_ns;
        all.first_ns += spent[i].first_ns;
        all.second_ns += spent[i].second_ns;
        all.cpu_ns += spent[i].cpu_ns;
        if (spent[i].longest_ns > all.longest_ns) all.longest_ns = spent[i].longest_ns;
    }
    printf("{\"rests\": %.6f, \"first\": %.6f, \"second\": %.6f, ", (double)all.rests_ns * 1e-9,
           (double)all.first_ns * 1e-9, (double)all.second_ns * 1e-9);
    printf("\"longest_wait_s\": %.6f, \"cpu_s\": %.6f, ", (double)all.longest_ns * 1e-9, (double)all.cpu_ns * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
