/* swarm COUNT AT_ONCE MICROSECONDS: COUNT processes, as fast as they can be made, at most AT_ONCE at a time.
 *
 * Each of them works MICROSECONDS of CPU time in `short_life`. Half of the founder's own time goes into `founders_work`,
 * 23 ms at the beginning and 23 ms at the end, so that a founder that was lost on the way would be missed.
 */
#include "truth.h"

FRAME static int64_t founders_work(void) { return burn_here(23 * NS_PER_MS); }

FRAME static void short_life(int64_t cpu_ns) {
    int64_t start = thread_cpu_ns();
    while (thread_cpu_ns() - start < cpu_ns) continue;
    KEEP_FRAME();
}

static int reap(void) {
    int status;
    check(wait(&status) < 0, "wait");
    return WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int count = atoi(argv[1]), at_once = atoi(argv[2]), well = 0;
    int64_t life_ns = atoll(argv[3]) * 1000, start = wall_ns(), work_ns = founders_work();
    for (int made = 0; made < count; made++) {
        if (made >= at_once) well += reap();
        pid_t child = fork();
        check(child < 0, "fork");
        if (!child) {
            short_life(life_ns);
            _exit(7);
        }
    }
    for (int left = count < at_once ? count : at_once; left; left--) well += reap();
    work_ns += founders_work();
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    printf("{\"count\": %d, \"well\": %d, \"wall_s\": %.6f, \"founders_work_s\": %.6f, ", count, well,
           (double)(wall_ns() - start) / NS_PER_S, (double)work_ns / NS_PER_S);
    printf("\"children_user_s\": %.6f, \"children_system_s\": %.6f, ", timeval_s(used.ru_utime),
           timeval_s(used.ru_stime));
    print_rusage();
    printf("}\n");
    return well == count ? 0 : 1;
}
