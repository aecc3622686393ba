/* reexec SECONDS: works in "before", then becomes another image of itself that works in "after" twice as long.
 *
 *   main -> before        SECONDS        main -> after        2 * SECONDS
 *
 * A second thread is alive at the exec, which ends it. getrusage counts the whole process: both images.
 */
#include "truth.h"

FRAME int64_t before(int64_t ns) { return burn_here(ns); }
FRAME int64_t after(int64_t ns) { return burn_here(ns); }

static void *asleep(void *unused) {
    for (;;) pause();
    return unused;
}

int main(int argc, char **argv) {
    int64_t ns = seconds_to_ns(argc > 1 ? argv[1] : "0.3");
    if (argc < 3) {
        pthread_t thread;
        char spent[32];
        check(pthread_create(&thread, NULL, asleep, NULL), "pthread_create");
        snprintf(spent, sizeof spent, "%.6f", (double)before(ns) * 1e-9);
        execl("/proc/self/exe", argv[0], argv[1], spent, NULL);
        die("execl");
    }
    int64_t spent = after(2 * ns);
    printf("{\"before\": %s, \"after\": %.6f, ", argv[2], (double)spent * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
