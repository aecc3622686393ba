/* brief PROCESSES: one after the other, each of which does the same three things for 5.3 ms of its CPU time, and
 * ends. (They must not keep step with the clock that watches them.)
 *
 *   main -> fork -> first, second, third
 */
#include "truth.h"

#define EACH_NS (53 * NS_PER_MS / 10)

static int64_t spent_ns[3];

FRAME void first(void) { spent_ns[0] = burn_here(EACH_NS); }

FRAME void second(void) { spent_ns[1] = burn_here(EACH_NS); }

FRAME void third(void) { spent_ns[2] = burn_here(EACH_NS); }

int main(int argc, char **argv) {
    int n_processes = argc > 1 ? atoi(argv[1]) : 307, channel[2];
    int64_t total_ns[3] = {0, 0, 0};
    check(pipe(channel), "pipe");
    for (int i = 0; i < n_processes; i++) {
        pid_t child = fork();
        check(child < 0, "fork");
        if (!child) {
            first();
            second();
            third();
            _exit(write(channel[1], spent_ns, sizeof spent_ns) != sizeof spent_ns);
        }
        check(waitpid(child, NULL, 0) != child, "waitpid");
        check(read(channel[0], spent_ns, sizeof spent_ns) != sizeof spent_ns, "read");
        for (int k = 0; k < 3; k++) total_ns[k] += spent_ns[k];
    }
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    printf("{\"first\": %.6f, \"second\": %.6f, \"third\": %.6f, ", (double)total_ns[0] * 1e-9,
           (double)total_ns[1] * 1e-9, (double)total_ns[2] * 1e-9);
    printf("\"children_user_s\": %.6f, \"children_system_s\": %.6f, ", timeval_s(used.ru_utime),
           timeval_s(used.ru_stime));
    print_rusage();
    printf("}\n");
    return 0;
}
