/* busy THREADS PIECES: a fixed amount of pure work, the same in every run; the wall time is what varies.
 *
 *   thread_main -> run -> work       PIECES pieces of arithmetic in each of THREADS threads
 */
#include "truth.h"

enum { MAX_THREADS = 127 };

static long n_pieces;

FRAME void work(long n) {
    for (long i = 0; i < n; i++) piece_of_work();
}

FRAME void run(void) {
    work(n_pieces);
    KEEP_FRAME();
}

FRAME void *thread_main(void *cpu_ns) {
    run();
    *(int64_t *)cpu_ns = thread_cpu_ns();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MAX_THREADS];
    int64_t cpu_ns[MAX_THREADS] = {0}, start = wall_ns();
    int n_threads = argc > 1 ? atoi(argv[1]) : 2;
    n_pieces = argc > 2 ? atol(argv[2]) : 1009;
    if (n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr, "busy: 1 to %d threads\n", MAX_THREADS);
        return 2;
    }
    for (int i = 1; i < n_threads; i++) {
        check(pthread_create(&threads[i], NULL, thread_main, &cpu_ns[i]), "pthread_create");
    }
    thread_main(&cpu_ns[0]);
    for (int i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
    printf("{\"start_ns\": %lld, \"wall_s\": %.6f, \"threads_cpu_s\": [", (long long)start,
           (double)(wall_ns() - start) * 1e-9);
    for (int i = 0; i < n_threads; i++) printf("%s%.6f", i ? ", " : "", (double)cpu_ns[i] * 1e-9);
    printf("], \"cpu_s\": %.6f, ", (double)process_cpu_ns() * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
