/* traced MS: traces a child of its own, system call by system call, as strace does, which makes the kernel send SIGCHLD
 * some ten thousand times a second: for so long, or until a SIGTERM.
 */
#include "truth.h"
#include <sys/ptrace.h>

static volatile sig_atomic_t told;

static void end(int number) { told = number; }

int main(int argc, char **argv) {
    int64_t until_ns = wall_ns() + (argc > 1 ? atol(argv[1]) : 1009) * NS_PER_MS;
    struct sigaction on_term = {.sa_handler = end};
    long stops = 0;
    int status;
    sigaction(SIGTERM, &on_term, NULL);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        for (;;) getppid();
    }
    waitpid(child, &status, 0);
    while (!told && wall_ns() < until_ns && ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child)
        stops++;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    printf("{\"stops\": %ld, ", stops);
    print_rusage();
    printf("}\n");
    return 0;
}
