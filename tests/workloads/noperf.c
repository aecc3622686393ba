/* noperf ERRNO[+ptrace] COMMAND...: runs COMMAND where perf_event_open fails with ERRNO, as in most containers; ptrace
 * too if asked for.
 */
#include "truth.h"
#include "filtered.h"

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
    check(argc < 3, "noperf ERRNO[+ptrace] COMMAND...");
    run_filtered(code, sizeof code / sizeof *code, argv + 2);
}
