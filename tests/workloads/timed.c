/* timed PROGRAM [ARGUMENT ...]: runs a program and tells what it and all that it waited for have used.
 *
 * What the program prints goes to stderr, so that stdout holds nothing but the truth.
 */
#include "truth.h"

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    int64_t start = wall_ns();
    pid_t child = fork();
    check(child < 0, "fork");
    if (!child) {
        dup2(2, 1);
        execvp(argv[1], argv + 1);
        die(argv[1]);
    }
    int status;
    check(waitpid(child, &status, 0) < 0, "waitpid");
    double wall_s = (double)(wall_ns() - start) / NS_PER_S;
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    printf("{\"wall_s\": %.6f, \"children_user_s\": %.6f, \"children_system_s\": %.6f, ", wall_s,
           timeval_s(used.ru_utime), timeval_s(used.ru_stime));
    print_rusage();
    printf("}\n");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
