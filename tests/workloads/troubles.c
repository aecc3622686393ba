/* troubles KIND [N]: programs that whoever stops and looks at threads may get in the way of.
 *
 *   kind           what the program does                                             printed
 *   stops          stops itself N times; a child lets it go on 31 ms later           how long it was stopped for the
 *                                                                                    child; for itself: off its CPU, and
 *                                                                                    then asleep until the child ends
 *   handlers       SIGPROF of its own timer, every 3 ms of CPU time; N breakpoints   how often each handler ran
 *   forks          forks N children, one after another, while two threads work       how many ended as they should;
 *                                                                                    what its own beginning took
 *   exit, thread_exit   exits with status N: the main thread, or another one
 *   leader         the main thread ends first, the last one exits with status N
 *   signal         N as a signal to itself, at its default, while two threads work
 */
#include "truth.h"
#include <sys/mman.h>

enum { N_WORKERS = 2, OWN_STATUS = 11 };

static volatile int stop_now;
static long n_wanted;

FRAME void *work(void *cpu_ns) {
    while (!stop_now) piece_of_work();
    *(int64_t *)cpu_ns = thread_cpu_ns();
    return NULL;
}

static pthread_t workers[N_WORKERS];
static int64_t worked_ns[N_WORKERS];

static void start_workers(void) {
    for (int i = 0; i < N_WORKERS; i++) check(pthread_create(&workers[i], NULL, work, &worked_ns[i]), "pthread_create");
}

static double end_workers(void) {
    int64_t sum_ns = 0;
    stop_now = 1;
    for (int i = 0; i < N_WORKERS; i++) {
        pthread_join(workers[i], NULL);
        sum_ns += worked_ns[i];
    }
    return (double)sum_ns * 1e-9;
}

/* --- stops --------------------------------------------------------------------------------------------------------- */

static int is_stopped(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    check(file == NULL, path);
    check(fgets(text, sizeof text, file) == NULL, path);
    fclose(file);
    char state = strrchr(text, ')')[2];
    return state == 'T' || state == 't';
}

typedef struct {
    volatile int64_t waited_ns; /* the child's: how long it let the time pass, all in all */
    volatile long turn;         /* the target's: how often it has gone on */
} Shared;
static Shared *shared;
static int64_t off_cpu_ns;

/* Traced, the target may look stopped for a moment: it is when it still does a little later. */
static void let_go_on(pid_t target) {
    for (long turn = 0; turn < n_wanted; turn++) {
        int64_t start;
        do {
            while (!is_stopped(target)) sleep_ns(NS_PER_MS / 10);
            start = wall_ns();
            sleep_ns(2 * NS_PER_MS);
        } while (!is_stopped(target));
        sleep_ns(29 * NS_PER_MS);
        shared->waited_ns += wall_ns() - start;
        do {
            kill(target, SIGCONT);
            sleep_ns(3 * NS_PER_MS);
        } while (shared->turn == turn);
    }
    _exit(0);
}

FRAME void stop_self(void) {
    int64_t start = wall_ns(), ran = thread_cpu_ns();
    raise(SIGSTOP);
    off_cpu_ns += wall_ns() - start - (thread_cpu_ns() - ran);
    KEEP_FRAME();
}

static int stops(void) {
    pid_t target = getpid();
    int status;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(shared == MAP_FAILED, "mmap");
    pid_t child = fork();
    check(child < 0, "fork");
    if (child == 0) let_go_on(target);
    for (long turn = 0; turn < n_wanted; turn++) {
        int64_t until_ns = thread_cpu_ns() + 7 * NS_PER_MS;
        while (thread_cpu_ns() < until_ns) piece_of_work();
        stop_self();
        shared->turn = turn + 1;
    }
    int64_t ended_ns = wall_ns();
    check(waitpid(child, &status, 0) != child, "waitpid");
    printf("{\"stops\": %ld, \"stopped_s\": %.6f, \"off_cpu_s\": %.6f, \"asleep_s\": %.6f, ", n_wanted,
           (double)shared->waited_ns * 1e-9, (double)off_cpu_ns * 1e-9, (double)(wall_ns() - ended_ns) * 1e-9);
    return 0;
}

/* --- handlers ------------------------------------------------------------------------------------------------------ */

static volatile long n_prof, n_trap;

static void count_prof(int signal_number) {
    (void)signal_number;
    n_prof++;
}

static void count_trap(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number;
    (void)info;
    n_trap++;
#if defined(__aarch64__)
    ((ucontext_t *)context)->uc_mcontext.pc += 4;
#else
    (void)context;
#endif
}

static int handlers(void) {
    struct sigaction prof = {.sa_handler = count_prof, .sa_flags = SA_RESTART};
    struct sigaction trap = {.sa_sigaction = count_trap, .sa_flags = SA_SIGINFO};
    struct itimerval every = {.it_interval = {.tv_usec = 3000}, .it_value = {.tv_usec = 3000}}, never = {0};
    check(sigaction(SIGPROF, &prof, NULL) || sigaction(SIGTRAP, &trap, NULL), "sigaction");
    check(setitimer(ITIMER_PROF, &every, NULL), "setitimer");
    for (long turn = 0; turn < n_wanted; turn++) {
#if defined(__aarch64__)
        __asm__ volatile("brk #0");
#else
        __asm__ volatile("int3");
#endif
        raise(SIGTRAP);
        piece_of_work();
    }
    check(setitimer(ITIMER_PROF, &never, NULL), "setitimer");
    printf("{\"traps\": %ld, \"profs\": %ld, \"cpu_s\": %.6f, ", n_trap, n_prof, (double)process_cpu_ns() * 1e-9);
    return 0;
}

/* --- forks, and ends ----------------------------------------------------------------------------------------------- */

static int forks(void) {
    long n_well = 0;
    double before_s = (double)thread_cpu_ns() * 1e-9; /* before this program began, most of it */
    start_workers();
    for (long turn = 0; turn < n_wanted; turn++) {
        int status;
        pid_t child = fork();
        check(child < 0, "fork");
        if (child == 0) {
            for (int i = 0; i < 7; i++) piece_of_work();
            _exit(OWN_STATUS);
        }
        check(waitpid(child, &status, 0) != child, "waitpid");
        n_well += WIFEXITED(status) && WEXITSTATUS(status) == OWN_STATUS;
    }
    double work_s = end_workers();
    printf("{\"forks\": %ld, \"well\": %ld, \"work\": %.6f, \"before_s\": %.6f, ", n_wanted, n_well, work_s, before_s);
    return 0;
}

static void *exit_here(void *after_ms) {
    sleep_ns((int64_t)(intptr_t)after_ms * NS_PER_MS);
    exit((int)n_wanted);
}

static int thread_exit(void) {
    pthread_t thread;
    start_workers();
    check(pthread_create(&thread, NULL, exit_here, (void *)(intptr_t)73), "pthread_create");
    pause();
    return 1;
}

static int leader(void) {
    pthread_t thread;
    check(pthread_create(&thread, NULL, exit_here, (void *)(intptr_t)73), "pthread_create");
    pthread_exit(NULL);
}

static int by_signal(void) {
    volatile int *volatile nowhere = NULL;
    start_workers();
    sleep_ns(73 * NS_PER_MS);
    if (n_wanted == SIGSEGV) {
        *nowhere = 1;
    } else {
        kill(getpid(), (int)n_wanted);
    }
    pause();
    return 1;
}

static int plain_exit(void) { exit((int)n_wanted); }

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*make)(void);
    } KINDS[] = {{"stops", stops},   {"handlers", handlers},       {"forks", forks},   {"exit", plain_exit},
                 {"leader", leader}, {"thread_exit", thread_exit}, {"signal", by_signal}};
    n_wanted = argc > 2 ? atol(argv[2]) : 5;
    for (size_t i = 0; argc > 1 && i < sizeof KINDS / sizeof *KINDS; i++) {
        if (strcmp(argv[1], KINDS[i].name) != 0) continue;
        int status = KINDS[i].make();
        print_rusage();
        printf("}\n");
        return status;
    }
    fprintf(stderr, "troubles: no kind %s\n", argc > 1 ? argv[1] : "");
    return 2;
}
