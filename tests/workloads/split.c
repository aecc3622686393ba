/* split SECONDS: three threads, each with three functions whose CPU times are as 1:3:7.
 *
 *   _start .. main        -> run -> stage_one   -> leaf_one        1 part
 *   clone3 .. thread_main -> run -> stage_three -> leaf_three      3 parts
 *                            run -> stage_seven -> leaf_seven      7 parts
 *
 * SECONDS is the CPU time of all threads together. Every thread takes seven turns through its functions, so that
 * no function has a stretch of time for itself.
 */
#include "truth.h"

enum { N_THREADS = 3, N_TURNS = 7, N_PARTS = 11 };

typedef struct {
    pid_t tid;
    int64_t one_ns, three_ns, seven_ns, cpu_ns;
} Spent;

static int64_t part_ns;
static Spent spent[N_THREADS];

FRAME int64_t leaf_one(int64_t ns) { return burn_here(ns); }
FRAME int64_t leaf_three(int64_t ns) { return burn_here(ns); }
FRAME int64_t leaf_seven(int64_t ns) { return burn_here(ns); }

FRAME void stage_one(Spent *mine) {
    mine->one_ns += leaf_one(part_ns);
    KEEP_FRAME();
}

FRAME void stage_three(Spent *mine) {
    mine->three_ns += leaf_three(3 * part_ns);
    KEEP_FRAME();
}

FRAME void stage_seven(Spent *mine) {
    mine->seven_ns += leaf_seven(7 * part_ns);
    KEEP_FRAME();
}

FRAME void run(Spent *mine) {
    mine->tid = thread_id();
    for (int turn = 0; turn < N_TURNS; turn++) {
        stage_one(mine);
        stage_three(mine);
        stage_seven(mine);
    }
    mine->cpu_ns = thread_cpu_ns();
    KEEP_FRAME();
}

FRAME void *thread_main(void *mine) {
    run(mine);
    KEEP_FRAME();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[N_THREADS];
    int64_t total_ns = seconds_to_ns(argc > 1 ? argv[1] : "1");
    part_ns = total_ns / (N_THREADS * N_TURNS * N_PARTS);
    for (int i = 1; i < N_THREADS; i++) {
        check(pthread_create(&threads[i], NULL, thread_main, &spent[i]), "pthread_create");
    }
    run(&spent[0]);
    for (int i = 1; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    printf("{\"threads\": [");
    for (int i = 0; i < N_THREADS; i++) {
        printf("%s{\"tid\": %d, \"leaf_one\": %.6f, \"leaf_three\": %.6f, \"leaf_seven\": %.6f, \"cpu_s\": %.6f}",
               i ? ", " : "", (int)spent[i].tid, (double)spent[i].one_ns * 1e-9, (double)spent[i].three_ns * 1e-9,
               (double)spent[i].seven_ns * 1e-9, (double)spent[i].cpu_ns * 1e-9);
    }
    printf("], ");
    print_rusage();
    printf("}\n");
    return 0;
}
