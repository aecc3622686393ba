/* usersys SECONDS USER_PERCENT: known shares of one thread's CPU time in user code and in system calls.
 *
 *   main -> run -> in_user                 arithmetic; it seldom looks at the clock, which is a system call, and
 *                                          a thread that is to stop does so at the end of its next call at the latest
 *   main -> run -> in_system -> read       /dev/zero, a mebibyte a call: the kernel clears memory; a few calls for each
 *                                          look at the clock, which is a system call, too
 *
 * The two alternate in 47 turns. "in_user" and "in_system" are the thread's CPU clock around each; "user_s" and
 * "system_s" are what getrusage says (on most kernels a split by the kernel's own tick: good for long runs only).
 */
#include "truth.h"
#include <fcntl.h>

enum { N_TURNS = 47, BLOCK_BYTES = 1 << 20, N_READS = 4, N_PIECES = 10 };

static char block[BLOCK_BYTES];

FRAME int64_t in_user(int64_t ns) {
    int64_t start = thread_cpu_ns(), now = start;
    while (now - start < ns) {
        for (int i = 0; i < N_PIECES; i++) piece_of_work();
        now = thread_cpu_ns();
    }
    return now - start;
}

FRAME int64_t in_system(int fd, int64_t ns) {
    int64_t start = thread_cpu_ns(), now = start;
    while (now - start < ns) {
        for (int i = 0; i < N_READS; i++) check(read(fd, block, sizeof block) != (ssize_t)sizeof block, "read /dev/zero");
        now = thread_cpu_ns();
    }
    return now - start;
}

FRAME void run(int fd, int64_t user_ns, int64_t system_ns, int64_t *in_user_ns, int64_t *in_system_ns) {
    /* What one turn took too long, since the clock is seldom looked at, the next one does not take. */
    for (int turn = 1; turn <= N_TURNS; turn++) {
        *in_user_ns += in_user(user_ns / N_TURNS * turn - *in_user_ns);
        *in_system_ns += in_system(fd, system_ns / N_TURNS * turn - *in_system_ns);
    }
    KEEP_FRAME();
}

int main(int argc, char **argv) {
    int64_t total_ns = seconds_to_ns(argc > 1 ? argv[1] : "1");
    int64_t user_ns = (int64_t)((double)total_ns * atof(argc > 2 ? argv[2] : "61") / 100);
    int64_t in_user_ns = 0, in_system_ns = 0;
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    check(fd < 0, "/dev/zero");
    memset(block, 1, sizeof block); /* the first touches are page faults: have them behind us */
    run(fd, user_ns, total_ns - user_ns, &in_user_ns, &in_system_ns);
    printf("{\"in_user\": %.6f, \"in_system\": %.6f, \"cpu_s\": %.6f, ", (double)in_user_ns * 1e-9,
           (double)in_system_ns * 1e-9, (double)process_cpu_ns() * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
