/* states SCENARIO TURNS MILLISECONDS: puts threads into one microstate for a known time. TURNS may be endless.
 *
 * A scenario is one function `wait_in_SCENARIO`, called by main or by a thread through
 *
 *   run -> wait_in_SCENARIO -> ...
 *
 * and timed from outside by the wall clock, turn by turn. Where somebody else must end the wait (an unlock, a wake-up,
 * a byte in a pipe, the answer to a page fault, SIGCONT), a second thread or process does so MILLISECONDS later.
 * Printed: the thread, its turns, the wall time and the CPU time inside the turns ("wall_s" - "cpu_s" is the time off
 * CPU), of its whole life the wall time and the waits for a CPU by the kernel's account ("delay_s"), and in how many
 * turns it never left its CPU by itself ("n_awake").
 *
 *   scenario   what the thread does                                   state expected
 *   mutex      pthread_mutex_lock of a mutex that is held             user lock
 *   condvar    pthread_cond_wait                                      user lock
 *   futex      futex(FUTEX_WAIT) by a bare system call                user lock
 *   nanosleep, poll, epoll, pipe (read)                               sleep
 *   spin       five threads work on one CPU                           wait CPU, four fifths
 *   stop       works; a child process sends SIGSTOP, then SIGCONT     stopped
 *   data       touches a page of a userfaultfd region                 data page fault
 *   text       calls into a page of a userfaultfd region              text page fault
 *   kernel     passes a page of a userfaultfd region to read          kernel page fault
 *   ud2, int3  traps with a handler that returns (rt_sigreturn)       trap CPU and system CPU
 *   trap       traps with a handler that jumps out: no system call    trap CPU
 */
#include "truth.h"
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

enum { PAGE = 4096, MAX_TURNS = 1009, N_SPINNERS = 5 };

static int n_turns;
static int64_t turn_ns;

typedef struct {
    pid_t tid;
    int64_t wall_ns, cpu_ns, life_ns, delay_ns;
    int n_awake;
} Spent;

static Spent spent[N_SPINNERS];
static int n_spent = 1;

/* A meeting point: the waiter says that it is about to wait, its partner lets the time pass and then ends the wait. */
static int about_to_wait[2];

static void tell_partner(void) { check(write(about_to_wait[1], "x", 1) != 1, "write"); }

static void await_waiter(void) {
    char byte;
    check(read(about_to_wait[0], &byte, 1) != 1, "read");
}

/* As much of a file as there is room for in TEXT, which is all zeros. */
static void read_text(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY);
    check(fd < 0 || read(fd, text, size - 1) < 0, path);
    close(fd);
}

/* Who is about to sleep has that state before it leaves its CPU: where it is the kernel tells once it has left it. */
static int is_asleep(pid_t tid) {
    char path[64], text[4096] = "", place[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
    read_text(path, text, sizeof text);
    if (strchr("SD", strrchr(text, ')')[2]) == NULL) return 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)tid);
    read_text(path, place, sizeof place);
    return strcmp(place, "running\n") != 0;
}

/* Others may take the waiter's CPU before it waits: a turn is as long as it says only if it begins with the wait. */
static void let_wait(void) {
    while (!is_asleep(spent[0].tid)) sleep_ns(NS_PER_MS);
    sleep_ns(turn_ns);
}

/* How long a thread of ours has had a CPU. */
static int64_t ran_ns(pid_t tid) {
    char path[64], text[128] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)tid);
    read_text(path, text, sizeof text);
    return atoll(text);
}

/* The same where it waits in a fault. If it is to stop, for a signal or a tracer, and the kernel itself has made the
 * fault, it does not sleep, but tries again and again until that has been answered. */
static void let_fault_wait(void) {
    int64_t before_ns = ran_ns(spent[0].tid);
    while (!is_asleep(spent[0].tid) && ran_ns(spent[0].tid) - before_ns < NS_PER_MS) sleep_ns(NS_PER_MS);
    sleep_ns(turn_ns);
}

static void as_partner(void) {
    await_waiter();
    let_wait();
}

/* --- user locks --------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static volatile int signalled;
static volatile uint32_t futex_word;
static pthread_barrier_t both;

FRAME void wait_in_mutex(int turn) {
    (void)turn;
    tell_partner();
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    KEEP_FRAME();
}

FRAME void *hold_mutex(void *unused) {
    (void)unused;
    for (int turn = 0; turn < n_turns; turn++) {
        pthread_mutex_lock(&lock);
        pthread_barrier_wait(&both);
        as_partner();
        pthread_mutex_unlock(&lock);
        pthread_barrier_wait(&both);
    }
    return NULL;
}

FRAME void wait_in_condvar(int turn) {
    (void)turn;
    pthread_mutex_lock(&lock);
    tell_partner();
    while (!signalled) pthread_cond_wait(&changed, &lock);
    signalled = 0;
    pthread_mutex_unlock(&lock);
    KEEP_FRAME();
}

FRAME void *signal_condvar(void *unused) {
    (void)unused;
    for (int turn = 0; turn < n_turns; turn++) {
        as_partner();
        pthread_mutex_lock(&lock);
        signalled = 1;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

FRAME void wait_in_futex(int turn) {
    tell_partner();
    while (futex_word == (uint32_t)turn) {
        syscall(SYS_futex, &futex_word, FUTEX_WAIT_PRIVATE, (uint32_t)turn, NULL, NULL, 0);
    }
    KEEP_FRAME();
}

FRAME void *wake_futex(void *unused) {
    (void)unused;
    for (int turn = 0; turn < n_turns; turn++) {
        as_partner();
        futex_word = (uint32_t)turn + 1;
        syscall(SYS_futex, &futex_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    return NULL;
}

/* --- sleep -------------------------------------------------------------------------------------------------------- */

static int waited_fd[2], epoll_fd;

FRAME void wait_in_nanosleep(int turn) {
    (void)turn;
    sleep_ns(turn_ns);
    KEEP_FRAME();
}

FRAME void wait_in_poll(int turn) {
    struct pollfd quiet = {.fd = waited_fd[0], .events = POLLIN};
    (void)turn;
    poll(&quiet, 1, (int)(turn_ns / NS_PER_MS));
    KEEP_FRAME();
}

FRAME void wait_in_epoll(int turn) {
    struct epoll_event event;
    (void)turn;
    epoll_wait(epoll_fd, &event, 1, (int)(turn_ns / NS_PER_MS));
    KEEP_FRAME();
}

FRAME void wait_in_pipe(int turn) {
    char byte;
    (void)turn;
    tell_partner();
    check(read(waited_fd[0], &byte, 1) != 1, "read");
    KEEP_FRAME();
}

FRAME void *write_pipe(void *unused) {
    (void)unused;
    for (int turn = 0; turn < n_turns; turn++) {
        as_partner();
        check(write(waited_fd[1], "x", 1) != 1, "write");
    }
    return NULL;
}

/* --- CPU ---------------------------------------------------------------------------------------------------------- */

FRAME void wait_in_spin(int turn) {
    int64_t until_ns = wall_ns() + turn_ns;
    (void)turn;
    while (wall_ns() < until_ns) piece_of_work();
}

/* The stopped time is the partner's: from its SIGSTOP to its SIGCONT. The target works until it has been told. */
static int stopped_pipe[2];
static int64_t stopped_ns;

/* One that has no CPU is not stopped before it gets one, and never if SIGCONT comes first. */
static int is_stopped(pid_t pid) {
    char path[64], text[4096] = "";
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    read_text(path, text, sizeof text);
    char *state = strstr(text, "\nState:\t"), *pending = strstr(text, "\nShdPnd:\t");
    if (state == NULL || pending == NULL || strchr("tT", state[8]) == NULL) return 0;
    return !(strtoull(pending + 9, NULL, 16) >> (SIGSTOP - 1) & 1);  /* else it is its tracer that has stopped it */
}

static pid_t start_stopper(void) {
    pid_t target = getpid(), child = fork();
    check(child < 0, "fork");
    if (child) return child;
    close(about_to_wait[1]);  /* who has been killed tells nothing more */
    for (int turn = 0; turn < n_turns; turn++) {
        await_waiter();  /* or it might stop before its turn begins */
        sleep_ns(23 * NS_PER_MS);
        int64_t start = wall_ns();
        kill(target, SIGSTOP);
        while (!is_stopped(target)) sleep_ns(NS_PER_MS);
        sleep_ns(turn_ns);
        int64_t gone_ns = wall_ns() - start;
        kill(target, SIGCONT);
        check(write(stopped_pipe[1], &gone_ns, sizeof gone_ns) != sizeof gone_ns, "write");
    }
    _exit(0);
}

FRAME void wait_in_stop(int turn) {
    int64_t gone_ns;
    (void)turn;
    tell_partner();
    while (read(stopped_pipe[0], &gone_ns, sizeof gone_ns) != sizeof gone_ns) piece_of_work();
    stopped_ns += gone_ns;
}

static volatile long n_traps;

static void skip_ud2(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number;
    (void)info;
    n_traps++;
#if defined(__x86_64__)
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
#elif defined(__i386__)
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EIP] += 2;
#elif defined(__aarch64__)
    ((ucontext_t *)context)->uc_mcontext.pc += 4;
#endif
}

static void after_int3(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number;
    (void)info;
    n_traps++;
#if defined(__aarch64__)
    ((ucontext_t *)context)->uc_mcontext.pc += 4;
#else
    (void)context;
#endif
}

static void *resume[5];

static void jump_out(int signal_number) {
    (void)signal_number;
    n_traps++;
    __builtin_longjmp(resume, 1);
}

static void catch_with(int signal_number, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    check(sigaction(signal_number, &action, NULL), "sigaction");
}

/* An instruction that traps: undefined, or a breakpoint. */
#if defined(__x86_64__) || defined(__i386__)
#define UNDEFINED() __asm__ volatile("ud2")
#define BREAKPOINT() __asm__ volatile("int3")
#else
#define UNDEFINED() __asm__ volatile("udf #0")
#define BREAKPOINT() __asm__ volatile("brk #0")
#endif

FRAME void wait_in_ud2(int turn) {
    int64_t until_ns = thread_cpu_ns() + turn_ns;
    (void)turn;
    while (thread_cpu_ns() < until_ns) {
        for (int i = 0; i < 101; i++) UNDEFINED();
    }
}

FRAME void wait_in_int3(int turn) {
    int64_t until_ns = thread_cpu_ns() + turn_ns;
    (void)turn;
    while (thread_cpu_ns() < until_ns) {
        for (int i = 0; i < 101; i++) BREAKPOINT();
    }
}

FRAME void wait_in_trap(int turn) {
    volatile int64_t until_ns = thread_cpu_ns() + turn_ns;
    volatile int i = 0;
    (void)turn;
    if (__builtin_setjmp(resume)) {
        if (++i % 101 == 0 && thread_cpu_ns() >= until_ns) return;
    }
    UNDEFINED();
}

/* --- page faults that are answered late ---------------------------------------------------------------------------- */

static char *late_pages;
static int fault_fd, source_fd;

static void make_late_pages(void) {
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING};
    fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fault_fd < 0) {
        perror("userfaultfd (needs root or vm.unprivileged_userfaultfd=1)");
        exit(77);
    }
    check(ioctl(fault_fd, UFFDIO_API, &api), "UFFDIO_API");
    late_pages = mmap(NULL, (size_t)n_turns * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(late_pages == MAP_FAILED, "mmap");
    range.range.start = (uintptr_t)late_pages;
    range.range.len = (uint64_t)n_turns * PAGE;
    check(ioctl(fault_fd, UFFDIO_REGISTER, &range), "UFFDIO_REGISTER");
    source_fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    check(source_fd < 0, "/dev/zero");
}

/* Answers each fault MILLISECONDS late with a page that begins with a return instruction. */
FRAME void *answer_faults(void *unused) {
    static uint32_t page[PAGE / 4];
    struct uffd_msg message;
    (void)unused;
#if defined(__aarch64__)
    page[0] = 0xd65f03c0;
#else
    page[0] = 0xc3;
#endif
    uint64_t answered = 0;
    for (int turn = 0; turn < n_turns;) {
        check(read(fault_fd, &message, sizeof message) != (ssize_t)sizeof message, "read userfaultfd");
        uint64_t page_address = message.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        if (page_address == answered) continue; /* who tries again may ask once more for what has just come */
        let_fault_wait();
        struct uffdio_copy answer = {.dst = page_address, .src = (uintptr_t)page, .len = PAGE};
        check(ioctl(fault_fd, UFFDIO_COPY, &answer), "UFFDIO_COPY");
        answered = page_address;
        turn++;
    }
    return NULL;
}

FRAME void wait_in_data(int turn) { *(volatile char *)(late_pages + (size_t)turn * PAGE) = 1; }

FRAME void wait_in_text(int turn) {
    void (*code)(void) = (void (*)(void))(uintptr_t)(late_pages + (size_t)turn * PAGE);
    code();
    KEEP_FRAME();
}

FRAME void wait_in_kernel(int turn) {
    check(read(source_fd, late_pages + (size_t)turn * PAGE, 16) != 16, "read");
    KEEP_FRAME();
}

/* --- the table and main ------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    void (*wait)(int turn);
    void *(*partner)(void *);
} Scenario;

static const Scenario SCENARIOS[] = {
    {"mutex", wait_in_mutex, hold_mutex}, {"condvar", wait_in_condvar, signal_condvar},
    {"futex", wait_in_futex, wake_futex}, {"nanosleep", wait_in_nanosleep, NULL},
    {"poll", wait_in_poll, NULL},         {"epoll", wait_in_epoll, NULL},
    {"pipe", wait_in_pipe, write_pipe},   {"spin", wait_in_spin, NULL},
    {"stop", wait_in_stop, NULL},         {"data", wait_in_data, answer_faults},
    {"text", wait_in_text, answer_faults}, {"kernel", wait_in_kernel, answer_faults},
    {"ud2", wait_in_ud2, NULL},           {"int3", wait_in_int3, NULL},
    {"trap", wait_in_trap, NULL},
};
static const Scenario *scenario;

static int is(const char *name) { return strcmp(scenario->name, name) == 0; }

FRAME void run(Spent *mine) {
    int64_t born_ns = wall_ns(), delay_before_ns = delay_ns();
    mine->tid = thread_id();
    for (int turn = 0; turn < n_turns; turn++) {
        if (is("mutex")) pthread_barrier_wait(&both);
        long n_before = used().ru_nvcsw;
        int64_t wall_start = wall_ns(), cpu_start = thread_cpu_ns();
        scenario->wait(turn);
        mine->cpu_ns += thread_cpu_ns() - cpu_start;
        mine->wall_ns += wall_ns() - wall_start;
        mine->n_awake += used().ru_nvcsw == n_before;
        if (is("mutex")) pthread_barrier_wait(&both);
    }
    mine->life_ns = wall_ns() - born_ns;
    mine->delay_ns = delay_ns() - delay_before_ns;
    KEEP_FRAME();
}

static void *run_in_thread(void *mine) {
    run(mine);
    return NULL;
}

static void stay_on_one_cpu(void) {
    cpu_set_t allowed, one;
    check(sched_getaffinity(0, sizeof allowed, &allowed), "sched_getaffinity");
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &one);
    }
    check(sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
}

static void spin_together(void) {
    pthread_t threads[N_SPINNERS];
    stay_on_one_cpu();
    n_spent = N_SPINNERS;
    for (int i = 1; i < N_SPINNERS; i++) {
        check(pthread_create(&threads[i], NULL, run_in_thread, &spent[i]), "pthread_create");
    }
    run(&spent[0]);
    for (int i = 1; i < N_SPINNERS; i++) pthread_join(threads[i], NULL);
}

static void prepare(void) {
    struct sigaction jump = {.sa_handler = jump_out, .sa_flags = SA_NODEFER};
    check(pipe(about_to_wait) || pipe(waited_fd) || pipe2(stopped_pipe, O_NONBLOCK), "pipe");
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    pthread_barrier_init(&both, NULL, 2);
    if (is("data") || is("text") || is("kernel")) make_late_pages();
    if (is("ud2")) catch_with(SIGILL, skip_ud2);
    if (is("int3")) catch_with(SIGTRAP, after_int3);
    if (is("trap")) check(sigaction(SIGILL, &jump, NULL), "sigaction");
}

static int64_t joined_ns; /* for how long main has waited for the partner's end, which is a lock, too */

static void perform(void) {
    pthread_t partner;
    pid_t stopper = is("stop") ? start_stopper() : 0;
    if (scenario->partner) check(pthread_create(&partner, NULL, scenario->partner, NULL), "pthread_create");
    if (is("spin")) {
        spin_together();
    } else {
        run(&spent[0]);
    }
    joined_ns = -wall_ns();
    if (scenario->partner) pthread_join(partner, NULL);
    joined_ns += wall_ns();
    if (stopper) waitpid(stopper, NULL, 0);
}

static void report(int64_t begun_ns) {
    printf("{\"scenario\": \"%s\", \"turns\": %d, \"begun_ns\": %lld, \"threads\": [", scenario->name, n_turns,
           (long long)begun_ns);
    for (int i = 0; i < n_spent; i++) {
        printf("%s{\"tid\": %d, \"wall_s\": %.6f, \"cpu_s\": %.6f, \"life_s\": %.6f, \"delay_s\": %.6f, "
               "\"n_awake\": %d}", i ? ", " : "",
               (int)spent[i].tid, (double)spent[i].wall_ns * 1e-9, (double)spent[i].cpu_ns * 1e-9,
               (double)spent[i].life_ns * 1e-9, (double)spent[i].delay_ns * 1e-9, spent[i].n_awake);
    }
    printf("], \"stopped_s\": %.6f, \"joined_s\": %.6f, \"traps\": %ld, ", (double)stopped_ns * 1e-9,
           (double)joined_ns * 1e-9, n_traps);
    print_rusage();
    printf("}\n");
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "nanosleep";
    int64_t begun_ns = wall_ns();
    n_turns = argc <= 2 ? 7 : strcmp(argv[2], "endless") ? atoi(argv[2]) : INT_MAX;
    turn_ns = (int64_t)(atof(argc > 3 ? argv[3] : "31") * 1e6);
    for (size_t i = 0; i < sizeof SCENARIOS / sizeof SCENARIOS[0]; i++) {
        if (strcmp(SCENARIOS[i].name, name) == 0) scenario = &SCENARIOS[i];
    }
    if (scenario == NULL || n_turns < 1 || (n_turns > MAX_TURNS && n_turns != INT_MAX)) {
        fprintf(stderr, "states: no scenario %s, or not 1 to %d turns\n", name, MAX_TURNS);
        return 2;
    }
    prepare();
    perform();
    report(begun_ns);
    return 0;
}
