/* rested THREADS MILLISECONDS: threads on one CPU, each of which sleeps once and then wants that CPU all the time.
 *
 *   thread_main -> rests               100 ms asleep
 *               -> first, second       so much CPU time each, and the waits for the CPU among it
 *
 * Printed is how long the threads were in each function, by the clock.
 */
#include "truth.h"
#include <sched.h>

enum { MAX_THREADS = 7 };

typedef struct {
    int64_t rests_ns, first_ns, second_ns;
} Spent;

static Spent spent[MAX_THREADS];
static int64_t burn_ns;

FRAME void rests(void) {
    struct timespec nap = {0, 100 * NS_PER_MS};
    nanosleep(&nap, NULL);
    KEEP_FRAME();
}

FRAME void first(void) {
    burn_here(burn_ns);
    KEEP_FRAME();
}

FRAME void second(void) {
    burn_here(burn_ns);
    KEEP_FRAME();
}

FRAME void *thread_main(void *argument) {
    Spent *mine = argument;
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
    Spent all = {0, 0, 0};
    for (int i = 0; i < n_threads; i++) {
        all.rests_ns += spent[i].rests_ns;
        all.first_ns += spent[i].first_ns;
        all.second_ns += spent[i].second_ns;
    }
    printf("{\"rests\": %.6f, \"first\": %.6f, \"second\": %.6f, ", (double)all.rests_ns * 1e-9,
           (double)all.first_ns * 1e-9, (double)all.second_ns * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
