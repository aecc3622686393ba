/* jit SECONDS: code that is written at run time, made executable by mprotect, and run; with a frame pointer.
 *
 *   main -> run -> (code without a name)
 */
#include "truth.h"
#include <sys/mman.h>

static const unsigned char code[] = {
    0x55,                          /* push %rbp          */
    0x48, 0x89, 0xe5,              /* mov  %rsp,%rbp     */
    0xb8, 0xa3, 0x86, 0x01, 0x00,  /* mov  $100003,%eax  */
    0xff, 0xc8,                    /* dec  %eax          */
    0x75, 0xfc,                    /* jnz  -4            */
    0x5d,                          /* pop  %rbp          */
    0xc3,                          /* ret                */
};

FRAME int64_t run(void (*work)(void), int64_t ns) {
    int64_t start = thread_cpu_ns(), now = start;
    while (now - start < ns) {
        work();
        now = thread_cpu_ns();
    }
    return now - start;
}

int main(int argc, char **argv) {
    size_t size = 3 * 4096;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory == MAP_FAILED, "mmap");
    memcpy(memory + 4096 + 7, code, sizeof code);
    check(mprotect(memory, size, PROT_READ | PROT_EXEC), "mprotect");
    int64_t spent = run((void (*)(void))(uintptr_t)(memory + 4096 + 7), seconds_to_ns(argc > 1 ? argv[1] : "0.5"));
    printf("{\"jit\": %.6f, ", (double)spent * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
