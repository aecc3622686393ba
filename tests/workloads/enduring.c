/* enduring: one thread works, one naps, one waits for a lock, until standard input ends; exit status 7.
 *
 * The first line is printed when all three are at it, the last one at the end: what a thread that was stopped, or a call
 * that was broken off for good, would keep from being told.
 */
#include "truth.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>

static atomic_int over, n_at_it;
static atomic_long n_naps, n_broken;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

/* In epoll_wait, which no signal handler's flag makes the kernel restart. */
FRAME static void *nap(void *unused) {
    int nothing = epoll_create1(0);
    struct epoll_event event;
    check(nothing < 0, "epoll_create1");
    n_at_it++;
    while (!over) {
        int n = epoll_wait(nothing, &event, 1, 3);
        n_naps++;
        n_broken += n != 0;
    }
    return unused;
}

FRAME static void *want(void *unused) {
    n_at_it++;
    pthread_mutex_lock(&held);
    return unused;
}

/* Short pieces, and now and then a look at standard input. */
FRAME static void work(void) {
    struct pollfd input = {0, POLLIN, 0};
    do {
        for (int i = 0; i < 11; i++) piece_of_work();
    } while (poll(&input, 1, 0) == 0);
}

int main(void) {
    pthread_t napper, waiter;
    int64_t start = wall_ns(), before_ns = process_cpu_ns();
    pthread_mutex_lock(&held);
    check(pthread_create(&napper, NULL, nap, NULL), "pthread_create");
    check(pthread_create(&waiter, NULL, want, NULL), "pthread_create");
    while (n_at_it < 2) sleep_ns(NS_PER_MS);
    printf("{\"pid\": %d, \"start_ns\": %lld}\n", (int)getpid(), (long long)start);
    fflush(stdout);
    work();
    over = 1;
    pthread_mutex_unlock(&held);
    pthread_join(napper, NULL);
    pthread_join(waiter, NULL);
    printf("{\"end_ns\": %lld, \"naps\": %ld, \"broken\": %ld, \"before_main_s\": %.6f, ", (long long)wall_ns(), n_naps,
           n_broken, (double)before_ns / NS_PER_S);
    print_rusage();
    printf("}\n");
    return 7;
}
