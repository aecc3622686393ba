/* mapstorm MAPPINGS SECONDS: maps and unmaps executable memory MAPPINGS times, and then runs code that was mapped last.
 *
 *   main -> storm
 *        -> run -> (machine code in anonymous memory)       SECONDS of CPU time
 *
 * Behind that, below "child", the same program as a process of its own with no storm before its code.
 */
#include "truth.h"
#include <sys/mman.h>

/* push %rbp; mov %rsp,%rbp; 1: dec %rdi; jnz 1b; pop %rbp; ret */
static const unsigned char counts_down[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3};

static void *executable(void) {
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(at == MAP_FAILED, "mmap");
    return at;
}

FRAME void storm(long n) {
    for (long i = 0; i < n; i++) check(munmap(executable(), 4096), "munmap");
}

FRAME int64_t run(int64_t cpu_ns) {
    void *code = executable();
    memcpy(code, counts_down, sizeof counts_down);
    int64_t start = thread_cpu_ns(), now = start;
    while (now - start < cpu_ns) {
        ((void (*)(long))code)(1000003);
        now = thread_cpu_ns();
    }
    KEEP_FRAME();
    return now - start;
}

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 100003;
    const char *seconds = argc > 2 ? argv[2] : "0.5";
    int64_t start = wall_ns();
    storm(n);
    double storm_s = (double)(wall_ns() - start) * 1e-9;
    int64_t ran = run(seconds_to_ns(seconds));
    if (n) {
        pid_t child = fork();
        check(child == -1, "fork");
        if (child == 0) {
            execl(argv[0], argv[0], "0", seconds, (char *)NULL);
            die("execl");
        }
        check(waitpid(child, NULL, 0) != child, "waitpid");
        printf("{\"storm_s\": %.6f, \"ran_s\": %.6f, ", storm_s, (double)ran * 1e-9);
        print_rusage();
        printf("}\n");
    }
    return 0;
}
