/* nospare COMMAND...: runs COMMAND where shared memory that is mapped to a place of its choice is refused with ENOMEM, as
 * by a kernel that overcommits nothing and has less left than that.
 */
#include "truth.h"
#include "filtered.h"
#include <sys/mman.h>

int main(int argc, char **argv) {
    unsigned wanted = MAP_SHARED | MAP_ANONYMOUS;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, wanted),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wanted, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    check(argc < 2, "nospare COMMAND...");
    run_filtered(code, sizeof code / sizeof *code, argv + 1);
}
