/* traced MS: traces a child of its own for so long, or until SIGTERM, system call by system call, as strace does, which
 * makes the kernel send SIGCHLD some ten thousand times a second.
 */
#include "truth.h"
#include <sys/ptrace.h>

static volatile sig_atomic_t is_over;

static void on_term(int number) { is_over = number; }

int main(int argc, char **argv) {
    int64_t until_ns = wall_ns() + (argc > 1 ? atol(argv[1]) : 1009) * NS_PER_MS;
    long stops = 0;
    int status;
    pid_t child = fork();
    if (child != 0) signal(SIGTERM, on_term);
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        for (;;) getppid();
    }
    waitpid(child, &status, 0);
    while (!is_over && wall_ns() < until_ns && ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0 &&
           waitpid(child, &status, 0) == child)
        stops++;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    printf("{\"stops\": %ld, ", stops);
    print_rusage();
    printf("}\n");
    return 0;
}
