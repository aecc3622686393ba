/* nappers THREADS SECONDS: THREADS threads that work some 20 us and sleep up to 5 ms, for SECONDS.
 *
 *   clone3 .. thread_main -> work
 *                         -> nap -> nanosleep
 *
 * Together they may want far more than there are CPUs. At its end each thread reads the kernel's own account of it
 * (/proc/thread-self/schedstat); what it does afterwards is not in it. Its life is from just before it was made to just
 * behind its being waited for: it waits for its first CPU, and for one to end on. Printed, in order of creation: [tid,
 * seconds on CPU, seconds ready for a CPU, seconds lived at most]; and how often they napped.
 */
#include "truth.h"
#include <fcntl.h>

enum { PIECES_OF_WORK = 40009, LONGEST_NAP_NS = 5 * NS_PER_MS };

typedef struct {
    pid_t tid;
    int64_t ran_ns, waited_ns, born_ns, lived_ns;
    uint64_t chance;
    long n_naps;
} Napper;

static int64_t ends_ns;

FRAME static void work(void) {
    for (int i = 0; i < PIECES_OF_WORK; i++) __asm__ volatile("");
}

FRAME static void nap(Napper *mine) {
    mine->chance = mine->chance * 6364136223846793005 + 1442695040888963407;
    sleep_ns((int64_t)(mine->chance >> 32) % LONGEST_NAP_NS);
    mine->n_naps++;
    KEEP_FRAME();
}

static void read_account(Napper *mine) {
    char text[128] = "";
    int file = open("/proc/thread-self/schedstat", O_RDONLY);
    long long ran_ns, waited_ns;
    check(file < 0 || read(file, text, sizeof text - 1) < 0, "schedstat");
    check(sscanf(text, "%lld %lld", &ran_ns, &waited_ns) != 2, "schedstat");
    close(file);
    mine->ran_ns = ran_ns;
    mine->waited_ns = waited_ns;
}

FRAME static void *thread_main(void *napper) {
    Napper *mine = napper;
    mine->tid = thread_id();
    while (wall_ns() < ends_ns) {
        work();
        nap(mine);
    }
    read_account(mine);
    return NULL;
}

int main(int argc, char **argv) {
    long n_threads = argc > 1 ? atol(argv[1]) : 101;
    int64_t for_ns = seconds_to_ns(argc > 2 ? argv[2] : "1");
    pthread_t *threads = calloc((size_t)n_threads, sizeof *threads);
    Napper *nappers = calloc((size_t)n_threads, sizeof *nappers);
    pthread_attr_t small;
    check(threads == NULL || nappers == NULL, "calloc");
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    ends_ns = wall_ns() + for_ns;
    for (long i = 0; i < n_threads; i++) {
        nappers[i].chance = (uint64_t)i;
        nappers[i].born_ns = wall_ns();
        check(pthread_create(&threads[i], &small, thread_main, &nappers[i]), "pthread_create");
    }
    for (long i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
        nappers[i].lived_ns = wall_ns() - nappers[i].born_ns;
    }
    long n_naps = 0;
    printf("{\"threads\": [");
    for (long i = 0; i < n_threads; i++) {
        printf("%s[%d, %.6f, %.6f, %.6f]", i ? ", " : "", (int)nappers[i].tid, (double)nappers[i].ran_ns * 1e-9,
               (double)nappers[i].waited_ns * 1e-9, (double)nappers[i].lived_ns * 1e-9);
        n_naps += nappers[i].n_naps;
    }
    printf("], \"naps\": %ld, ", n_naps);
    print_rusage();
    printf("}\n");
    free(threads);
    free(nappers);
    return 0;
}
