/* sigframe SECONDS [alt]: CPU time in a signal handler, above a stack that is known.
 *
 *   main -> outer -> inner -> (signal frame) -> on_signal -> handler_work
 *
 * inner sends the signal to itself with the bare system call, so that no frame of libc lies between. With "alt" the
 * handler runs on a stack of its own (sigaltstack).
 */
#include "truth.h"

static int64_t part_ns, handled_ns;
static volatile int n_handled;

FRAME void handler_work(void) {
    handled_ns += burn_here(part_ns);
    KEEP_FRAME();
}

FRAME void on_signal(int signal_number) {
    (void)signal_number;
    handler_work();
    n_handled++;
    KEEP_FRAME();
}

FRAME int64_t inner(void) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)SYS_tkill), "D"((long)thread_id()), "S"((long)SIGUSR1)
                     : "rcx", "r11", "memory");
#else
    result = syscall(SYS_tkill, thread_id(), SIGUSR1);
#endif
    check(result != 0, "tkill");
    return burn_here(part_ns);
}

FRAME int64_t outer(int n_turns) {
    int64_t spent = 0;
    for (int turn = 0; turn < n_turns; turn++) spent += inner();
    KEEP_FRAME();
    return spent;
}

int main(int argc, char **argv) {
    enum { N_TURNS = 11, ALT_BYTES = 1 << 16 };
    struct sigaction action = {.sa_handler = on_signal};
    part_ns = seconds_to_ns(argc > 1 ? argv[1] : "0.5") / (2 * N_TURNS);
    if (argc > 2 && strcmp(argv[2], "alt") == 0) {
        stack_t alternate = {.ss_sp = malloc(ALT_BYTES), .ss_size = ALT_BYTES};
        check(alternate.ss_sp == NULL || sigaltstack(&alternate, NULL), "sigaltstack");
        action.sa_flags = SA_ONSTACK;
    }
    check(sigaction(SIGUSR1, &action, NULL), "sigaction");
    int64_t inner_ns = outer(N_TURNS);
    printf("{\"signals\": %d, \"handler_work\": %.6f, \"inner\": %.6f, ", n_handled, (double)handled_ns * 1e-9,
           (double)inner_ns * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
