/* noperf ERRNO[+ptrace] COMMAND...: runs COMMAND where perf_event_open fails with ERRNO, as in most containers; ptrace
 * too if asked for.
 */
#include "truth.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

int main(int argc, char **argv) {
    char *more = "";
    unsigned refusal = SECCOMP_RET_ERRNO | (unsigned)strtol(argc > 2 ? argv[1] : "1", &more, 10);
    unsigned other = strcmp(more, "+ptrace") ? SYS_perf_event_open : SYS_ptrace;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, refusal),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    check(argc < 3, "noperf ERRNO[+ptrace] COMMAND...");
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
    execvp(argv[2], argv + 2);
    die(argv[2]);
}
