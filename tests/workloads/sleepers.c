/* sleepers THREADS SECONDS: THREADS threads wait on one condition variable while main sleeps SECONDS, or until SIGUSR1.
 *
 * Printed is the sum over the threads of the wall time that each was asleep, and of that for which each lived at most: it
 * also waits for its first CPU, and to end. Main looks every millisecond who has ended, in whatever order they do.
 */
#include "truth.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int awake_now, n_asleep;
static int64_t asleep_ns;

FRAME void *thread_main(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    n_asleep++;
    int64_t start = wall_ns();
    while (!awake_now) pthread_cond_wait(&changed, &lock);
    asleep_ns += wall_ns() - start;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int all_asleep(int n_threads) {
    pthread_mutex_lock(&lock);
    int all = n_asleep == n_threads;
    pthread_mutex_unlock(&lock);
    return all;
}

/* Sleep for so long, or until SIGUSR1, also one that came before: it is blocked, and taken as it is waited for. */
static void sleep_until_usr1(const sigset_t *usr1, int64_t ns) {
    for (int64_t end = wall_ns() + ns, left = ns; left > 0; left = end - wall_ns()) {
        struct timespec timeout = {left / NS_PER_S, left % NS_PER_S};
        if (sigtimedwait(usr1, NULL, &timeout) == SIGUSR1) return;
    }
}

int main(int argc, char **argv) {
    int n_threads = argc > 1 ? atoi(argv[1]) : 1009;
    int64_t sleep_for_ns = seconds_to_ns(argc > 2 ? argv[2] : "1");
    pthread_t *threads = calloc((size_t)n_threads, sizeof *threads);
    pthread_attr_t small;
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    check(threads == NULL, "calloc");
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    int64_t lived_ns = 0;
    for (int i = 0; i < n_threads; i++) {
        lived_ns -= wall_ns();
        check(pthread_create(&threads[i], &small, thread_main, NULL), "pthread_create");
    }
    while (!all_asleep(n_threads)) sleep_ns(NS_PER_MS);
    int64_t start = wall_ns();
    sleep_until_usr1(&usr1, sleep_for_ns);
    int64_t main_slept_ns = wall_ns() - start;
    pthread_mutex_lock(&lock);
    awake_now = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int n_left = n_threads; n_left > 0; sleep_ns(NS_PER_MS)) {
        for (int i = 0; i < n_threads; i++) {
            if (!threads[i] || pthread_tryjoin_np(threads[i], NULL)) continue;
            lived_ns += wall_ns();
            threads[i] = 0;
            n_left--;
        }
    }
    free(threads);
    printf("{\"threads\": %d, \"main_slept_s\": %.6f, \"asleep_s\": %.6f, \"lived_s\": %.6f, ", n_threads,
           (double)main_slept_ns * 1e-9, (double)asleep_ns * 1e-9, (double)lived_ns * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
