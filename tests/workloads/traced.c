/* traced STOPS: traces a child of its own system call by system call, as strace does, until it has stopped so often, which
 * makes the kernel send SIGCHLD some ten thousand times a second.
 */
#include "truth.h"
#include <sys/ptrace.h>

int main(int argc, char **argv) {
    long most = argc > 1 ? atol(argv[1]) : 20011, stops = 0;
    int status;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        for (;;) getppid();
    }
    waitpid(child, &status, 0);
    while (stops < most && ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child)
        stops++;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    printf("{\"stops\": %ld, ", stops);
    print_rusage();
    printf("}\n");
    return 0;
}
