/* sites TURNS: ten functions that each sleep a different time, each through a call chain of its own.
 *
 *   main -> run -> site_N -> down (N levels of it) -> nap -> clock_nanosleep
 *
 * Site N sleeps its own prime number of milliseconds in every turn. Printed is the wall time that each really slept.
 */
#include "truth.h"

enum { N_SITES = 10 };

static const int64_t SLEEP_MS[N_SITES] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29};
static int64_t slept_ns[N_SITES];

FRAME void nap(int64_t ns) {
    sleep_ns(ns);
    KEEP_FRAME();
}

FRAME void down(int levels, int64_t ns) {
    if (levels > 1) {
        down(levels - 1, ns);
    } else {
        nap(ns);
    }
    KEEP_FRAME();
}

#define SITE(n)                                       \
    FRAME void site_##n(void) {                       \
        int64_t start = wall_ns();                    \
        down((n) + 1, SLEEP_MS[n] * NS_PER_MS);       \
        slept_ns[n] += wall_ns() - start;             \
        KEEP_FRAME();                                 \
    }
SITE(0) SITE(1) SITE(2) SITE(3) SITE(4) SITE(5) SITE(6) SITE(7) SITE(8) SITE(9)

static void (*const SITES[N_SITES])(void) = {site_0, site_1, site_2, site_3, site_4,
                                             site_5, site_6, site_7, site_8, site_9};

FRAME void run(int n_turns) {
    for (int turn = 0; turn < n_turns; turn++) {
        for (int site = 0; site < N_SITES; site++) SITES[(site * 7 + turn) % N_SITES]();
    }
    KEEP_FRAME();
}

int main(int argc, char **argv) {
    int64_t start = wall_ns();
    run(argc > 1 ? atoi(argv[1]) : 3);
    printf("{\"sites\": {");
    for (int i = 0; i < N_SITES; i++) {
        printf("%s\"site_%d\": %.6f", i ? ", " : "", i, (double)slept_ns[i] * 1e-9);
    }
    printf("}, \"wall_s\": %.6f, ", (double)(wall_ns() - start) * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
