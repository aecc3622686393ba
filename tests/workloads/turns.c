/* turns SECONDS: three threads that divide their time among three functions as 1:3:7, and tell when each had it.
 *
 *   main, or clone3 .. thread_main -> run -> leaf_one, leaf_three, leaf_seven
 *
 * SECONDS is the CPU time of all threads together, in seven turns of each. A turn is told by the wall clock, which the
 * function itself looks at as it begins and as it ends: whoever meets a thread between the two meets it there.
 */
#include "truth.h"

enum { N_THREADS = 3, N_TURNS = 7, N_PARTS = 11, N_LEAVES = 3 };

typedef struct {
    int64_t begin_ns, end_ns;
} Turn;

typedef struct {
    pid_t tid;
    int64_t cpu_ns, leaf_ns[N_LEAVES];
    Turn turns[N_LEAVES][N_TURNS];
} Spent;

static int64_t part_ns;
static Spent spent[N_THREADS];
static const char *const NAMES[N_LEAVES] = {"leaf_one", "leaf_three", "leaf_seven"};

#define LEAF(name, number, parts)                               \
    FRAME void name(Spent *mine, int turn) {                    \
        mine->turns[number][turn].begin_ns = wall_ns();         \
        mine->leaf_ns[number] += burn_here((parts) * part_ns);  \
        mine->turns[number][turn].end_ns = wall_ns();           \
        KEEP_FRAME();                                           \
    }
LEAF(leaf_one, 0, 1) LEAF(leaf_three, 1, 3) LEAF(leaf_seven, 2, 7)

FRAME void run(Spent *mine) {
    mine->tid = thread_id();
    for (int turn = 0; turn < N_TURNS; turn++) {
        leaf_one(mine, turn);
        leaf_three(mine, turn);
        leaf_seven(mine, turn);
    }
    mine->cpu_ns = thread_cpu_ns();
    KEEP_FRAME();
}

FRAME void *thread_main(void *mine) {
    run(mine);
    KEEP_FRAME();
    return NULL;
}

static void report(const Spent *mine) {
    printf("{\"tid\": %d, \"cpu_s\": %.6f", (int)mine->tid, (double)mine->cpu_ns * 1e-9);
    for (int leaf = 0; leaf < N_LEAVES; leaf++) {
        printf(", \"%s\": {\"cpu_s\": %.6f, \"turns_ns\": [", NAMES[leaf], (double)mine->leaf_ns[leaf] * 1e-9);
        for (int turn = 0; turn < N_TURNS; turn++) {
            printf("%s[%lld, %lld]", turn ? ", " : "", (long long)mine->turns[leaf][turn].begin_ns,
                   (long long)mine->turns[leaf][turn].end_ns);
        }
        printf("]}");
    }
    printf("}");
}

int main(int argc, char **argv) {
    pthread_t threads[N_THREADS];
    part_ns = seconds_to_ns(argc > 1 ? argv[1] : "1") / (N_THREADS * N_TURNS * N_PARTS);
    for (int i = 1; i < N_THREADS; i++) {
        check(pthread_create(&threads[i], NULL, thread_main, &spent[i]), "pthread_create");
    }
    run(&spent[0]);
    for (int i = 1; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    printf("{\"threads\": [");
    for (int i = 0; i < N_THREADS; i++) {
        printf("%s", i ? ", " : "");
        report(&spent[i]);
    }
    printf("], ");
    print_rusage();
    printf("}\n");
    return 0;
}
