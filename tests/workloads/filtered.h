/* Programs that run another one in which some system calls are refused. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

/* Becomes a command, whose system calls pass through a filter of n instructions. */
static void run_filtered(struct sock_filter *code, size_t n, char **command) {
    struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
    execvp(command[0], command);
    die(command[0]);
}
