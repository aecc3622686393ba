/* ways THREADS TURNS: threads that sleep at one place, where they come from two callers, thousands of times a second.
 *
 *   thread_main -> shorter  -> nap     100 us asleep
 *               -> longer   -> nap     300 us
 *
 * Both callers have frames of one size: neither the instruction nor the stack pointer tells them apart. Printed is how
 * long the threads were in each of them, by the clock.
 */
#include "truth.h"

enum { MAX_THREADS = 7, NS_PER_US = 1000 };

typedef struct {
    int64_t shorter_ns, longer_ns;
} Spent;

static Spent spent[MAX_THREADS];
static long n_turns;

FRAME void nap(int64_t ns) {
    sleep_ns(ns);
    KEEP_FRAME();
}

FRAME void shorter(void) {
    nap(100 * NS_PER_US);
    KEEP_FRAME();
}

FRAME void longer(void) {
    nap(300 * NS_PER_US);
    KEEP_FRAME();
}

FRAME void *thread_main(void *argument) {
    Spent *mine = argument;
    for (long i = 0; i < n_turns; i++) {
        mine->shorter_ns += timed(shorter);
        mine->longer_ns += timed(longer);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MAX_THREADS];
    int n_threads = argc > 1 ? atoi(argv[1]) : 4;
    n_turns = argc > 2 ? atol(argv[2]) : 6007;
    if (n_threads < 1 || n_threads > MAX_THREADS) {
        fprintf(stderr, "ways: 1 to %d threads\n", MAX_THREADS);
        return 2;
    }
    for (int i = 0; i < n_threads; i++) check(pthread_create(&threads[i], NULL, thread_main, &spent[i]), "pthread_create");
    for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    Spent all = {0, 0};
    for (int i = 0; i < n_threads; i++) {
        all.shorter_ns += spent[i].shorter_ns;
        all.longer_ns += spent[i].longer_ns;
    }
    printf("{\"shorter\": %.6f, \"longer\": %.6f, ", (double)all.shorter_ns * 1e-9, (double)all.longer_ns * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
