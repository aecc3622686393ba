/* recurse DEPTH SECONDS [stay|told]: SECONDS of CPU time at the bottom of DEPTH calls of one function. Whoever stays
 * tells so, and lives until its input ends. Whoever is told begins behind a line of its input.
 *
 *   main -> run -> recurse (DEPTH times) -> bottom
 */
#include "truth.h"

static char *top_of_stack;
static long stack_bytes;

FRAME int64_t bottom(int64_t ns) {
    char here;
    stack_bytes = top_of_stack - &here;
    return burn_here(ns);
}

FRAME int64_t recurse(long depth, int64_t ns) {
    int64_t spent = depth > 1 ? recurse(depth - 1, ns) : bottom(ns);
    KEEP_FRAME();
    return spent;
}

FRAME int64_t run(long depth, int64_t ns) {
    int64_t spent = recurse(depth, ns);
    KEEP_FRAME();
    return spent;
}

int main(int argc, char **argv) {
    char here;
    long depth = argc > 1 ? atol(argv[1]) : 101;
    int stays = argc > 3 && !strcmp(argv[3], "stay"), is_told = argc > 3 && !strcmp(argv[3], "told");
    while (is_told && getchar() != '\n') continue;
    top_of_stack = &here;
    int64_t spent = run(depth, seconds_to_ns(argc > 2 ? argv[2] : "0.5"));
    printf("{\"depth\": %ld, \"stack_bytes\": %ld, \"bottom\": %.6f, ", depth, stack_bytes, (double)spent * 1e-9);
    print_rusage();
    printf("}\n");
    fflush(stdout);
    while (stays && getchar() != EOF) continue;
    return 0;
}
