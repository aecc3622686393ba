/* crowd THREADS PIECES MILLISECONDS [FILE]: threads that work and sleep until they are killed, for those who attach.
 *
 *   _start .. main        -> run -> stage_one   -> leaf_one        1 part: PIECES pieces of work
 *   clone3 .. thread_main -> run -> stage_three -> leaf_three      3 parts
 *                            run -> stage_seven -> leaf_seven      7 parts
 *                            run -> rest        -> nanosleep       about MILLISECONDS, 0: never
 *
 * Parts are counted in pieces of equal work, so that their CPU times are as 1:3:7 whenever one looks. The threads do not
 * march in step, nor with any clock: each begins at a time of its own, with another part than the one before it, and
 * rests for ever other times, half to one and a half of what was asked for. The program handles SIGUSR1, ignores SIGUSR2
 * and blocks SIGWINCH, so that it can be seen whether somebody changed that. It says "ready" when all threads work or
 * have rested once.
 * The first 8 bytes of FILE count the rounds that threads have made.
 */
#include "truth.h"
#include <fcntl.h>
#include <sys/mman.h>

enum { MAX_THREADS = 1009 };

static long n_threads, n_pieces, n_begun;
static int64_t rest_ns;
static pthread_barrier_t all_there;
static uint64_t *n_rounds, unseen;
static __thread uint64_t chance;

static uint64_t *shared_counter(const char *path) {
    int file = open(path, O_RDWR | O_CREAT, 0600);
    check(file < 0 || ftruncate(file, sizeof *n_rounds), path);
    void *there = mmap(NULL, sizeof *n_rounds, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(there == MAP_FAILED, "mmap");
    close(file);
    return there;
}

FRAME void leaf_one(void) {
    for (long i = 0; i < n_pieces; i++) piece_of_work();
}

FRAME void leaf_three(void) {
    for (long i = 0; i < 3 * n_pieces; i++) piece_of_work();
}

FRAME void leaf_seven(void) {
    for (long i = 0; i < 7 * n_pieces; i++) piece_of_work();
}

FRAME void stage_one(void) {
    leaf_one();
    KEEP_FRAME();
}

FRAME void stage_three(void) {
    leaf_three();
    KEEP_FRAME();
}

FRAME void stage_seven(void) {
    leaf_seven();
    KEEP_FRAME();
}

FRAME void rest(void) {
    chance = chance * 6364136223846793005 + 1442695040888963407;
    sleep_ns(rest_ns / 2 + (int64_t)(chance >> 32) % rest_ns);
    KEEP_FRAME();
}

FRAME void run(long number) {
    static void (*const stages[])(void) = {stage_one, stage_three, stage_seven};
    chance = (uint64_t)number;
    if (rest_ns) sleep_ns(number * rest_ns / n_threads);
    __atomic_fetch_add(&n_begun, 1, __ATOMIC_RELAXED);
    for (;;) {
        for (int i = 0; i < 3; i++) stages[(number + i) % 3]();
        __atomic_fetch_add(n_rounds, 1, __ATOMIC_RELAXED);
        if (rest_ns) rest();
    }
}

FRAME void *thread_main(void *number) {
    pthread_barrier_wait(&all_there);
    run((long)number);
    KEEP_FRAME();
    return number;
}

static void on_signal(int number) { (void)number; }

int main(int argc, char **argv) {
    pthread_t thread;
    sigset_t blocked;
    n_threads = argc > 1 ? atol(argv[1]) : 3;
    n_pieces = argc > 2 ? atol(argv[2]) : 1;
    rest_ns = argc > 3 ? atol(argv[3]) * NS_PER_MS : 0;
    n_rounds = argc > 4 ? shared_counter(argv[4]) : &unseen;
    if (n_threads < 1 || n_threads > MAX_THREADS) return 2;
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, SIG_IGN);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGWINCH);
    check(pthread_sigmask(SIG_BLOCK, &blocked, NULL), "pthread_sigmask");
    check(pthread_barrier_init(&all_there, NULL, (unsigned)n_threads), "pthread_barrier_init");
    for (long i = 1; i < n_threads; i++) check(pthread_create(&thread, NULL, thread_main, (void *)i), "pthread_create");
    pthread_barrier_wait(&all_there);
    while (__atomic_load_n(&n_begun, __ATOMIC_RELAXED) < n_threads - 1) sleep_ns(NS_PER_MS);
    printf("ready\n");
    fflush(stdout);
    run(0);
    return 0;
}
