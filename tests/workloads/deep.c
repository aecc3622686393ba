/* deep FRAMES LONG_S TURNS SHORT_MS: sleeps below FRAMES calls whose frames hold a KiB each, in two threads.
 *
 *   main (start) -> run -> descend (FRAMES times) -> bottom -> clock_nanosleep
 *
 * Once for LONG_S seconds, then TURNS times for SHORT_MS milliseconds. Printed is the wall time slept by both threads.
 */
#include "truth.h"

static long n_frames, n_turns;
static int64_t long_ns, short_ns;

FRAME int64_t bottom(void) {
    int64_t start = wall_ns();
    for (long turn = 0; turn <= n_turns; turn++) sleep_ns(turn ? short_ns : long_ns);
    KEEP_FRAME();
    return wall_ns() - start;
}

FRAME int64_t descend(long levels) {
    char filling[1024];
    __asm__ volatile("" : : "r"(filling) : "memory");
    int64_t slept = levels > 1 ? descend(levels - 1) : bottom();
    __asm__ volatile("" : : "r"(filling) : "memory");
    return slept;
}

FRAME int64_t run(void) {
    int64_t slept = descend(n_frames);
    KEEP_FRAME();
    return slept;
}

static void *start(void *slept) {
    *(int64_t *)slept = run();
    return NULL;
}

int main(int argc, char **argv) {
    n_frames = argc > 1 ? atol(argv[1]) : 61;
    long_ns = seconds_to_ns(argc > 2 ? argv[2] : "1.3");
    n_turns = argc > 3 ? atol(argv[3]) : 17;
    short_ns = (argc > 4 ? atol(argv[4]) : 29) * NS_PER_MS;
    pthread_t other;
    int64_t others = 0;
    check(pthread_create(&other, NULL, start, &others), "pthread_create");
    int64_t mine = run();
    pthread_join(other, NULL);
    printf("{\"slept_s\": %.6f, ", (double)(mine + others) * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
