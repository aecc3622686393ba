/* calls SECONDS STEPS: one thread that makes short system calls all the time, between pieces of STEPS steps of work.
 *
 *   main -> pairs -> piece, in_call    both in turn
 *   main -> alone -> piece             as many pieces without the calls, for comparison
 *
 * The two alternate in 47 turns of equal numbers of pieces; what the first takes more than the second are the calls.
 * No call takes longer than a fraction of a microsecond: whoever stops threads late finds them in calls too often.
 */
#include "truth.h"

enum { N_TURNS = 47, BATCH = 101 };

static long n_steps;

FRAME void piece(void) {
    uint64_t state = 88172645463325252ULL;
    for (long i = 0; i < n_steps; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        __asm__ volatile("" : "+r"(state));
    }
}

FRAME void in_call(void) {
    syscall(SYS_getppid);
    KEEP_FRAME();
}

FRAME long pairs(int64_t ns, int64_t *spent_ns) {
    int64_t start = thread_cpu_ns(), now = start;
    long n = 0;
    for (; now - start < ns; now = thread_cpu_ns()) {
        for (int i = 0; i < BATCH; i++, n++) {
            piece();
            in_call();
        }
    }
    *spent_ns += now - start;
    return n;
}

FRAME void alone(long n, int64_t *spent_ns) {
    int64_t start = thread_cpu_ns();
    while (n-- > 0) piece();
    *spent_ns += thread_cpu_ns() - start;
}

int main(int argc, char **argv) {
    int64_t pairs_ns = 0, alone_ns = 0, turn_ns = seconds_to_ns(argc > 1 ? argv[1] : "1") / (2 * N_TURNS);
    long n_calls = 0;
    n_steps = argc > 2 ? atol(argv[2]) : 1009;
    for (int turn = 0; turn < N_TURNS; turn++) {
        long n = pairs(turn_ns, &pairs_ns);
        alone(n, &alone_ns);
        n_calls += n;
    }
    printf("{\"calls\": %ld, \"pairs\": %.6f, \"alone\": %.6f, ", n_calls, (double)pairs_ns * 1e-9, (double)alone_ns * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
