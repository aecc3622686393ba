/* pool THREADS MS [AT_ONCE]: THREADS short threads one after the other, AT_ONCE at a time, with MS of CPU time each.
 *
 *   clone3 .. thread_main -> burst
 *
 * No thread lives as long as a usual clock interval; together they use THREADS * MS.
 */
#include "truth.h"

enum { MAX_AT_ONCE = 509 };

static int64_t burst_ns;

FRAME int64_t burst(int64_t ns) { return burn_here(ns); }

FRAME void *thread_main(void *spent_ns) {
    *(int64_t *)spent_ns += burst(burst_ns);
    KEEP_FRAME();
    return NULL;
}

int main(int argc, char **argv) {
    int n_threads = argc > 1 ? atoi(argv[1]) : 211, at_once = argc > 3 ? atoi(argv[3]) : 2;
    burst_ns = seconds_to_ns(argc > 2 ? argv[2] : "3") / 1000;
    pthread_t threads[MAX_AT_ONCE];
    int64_t spent_ns[MAX_AT_ONCE] = {0}, total_ns = 0;
    check(at_once < 1 || at_once > MAX_AT_ONCE, "at once");
    for (int done = 0; done < n_threads;) {
        int n = n_threads - done < at_once ? n_threads - done : at_once;
        for (int i = 0; i < n; i++) check(pthread_create(&threads[i], NULL, thread_main, &spent_ns[i]), "pthread_create");
        for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
        done += n;
    }
    for (int i = 0; i < MAX_AT_ONCE; i++) total_ns += spent_ns[i];
    printf("{\"threads\": %d, \"burst\": %.6f, ", n_threads, (double)total_ns * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
