/* eintr SECONDS [PARTS]: counts what a stop or a signal from outside would leave in a program: EINTR and short writes.
 *
 * Each of five threads waits in a loop in a call that the kernel does not restart after a stop (signal(7)), with a
 * timeout of some milliseconds: epoll_pwait2, semtimedop, recv on a socket with a timeout, sigtimedwait; semop is woken
 * by main every few milliseconds. All of these times are divided by PARTS. Undisturbed, every count of EINTR is 0.
 */
#include "truth.h"
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/socket.h>

static volatile int stop_now;
static int semaphore;
static long n_parts = 1;

typedef struct {
    const char *name;
    int (*wait_once)(int64_t *state);
    long n_calls, n_eintr;
} Waiter;

static int wait_epoll(int64_t *fd) {
    struct epoll_event event;
    struct timespec timeout = {.tv_nsec = 7 * NS_PER_MS / n_parts};
    if (*fd == 0) *fd = epoll_create1(EPOLL_CLOEXEC);
    return epoll_pwait2((int)*fd, &event, 1, &timeout, NULL);
}

static int wait_semop(int64_t *unused) {
    struct sembuf take = {.sem_num = 0, .sem_op = -1};
    (void)unused;
    return semop(semaphore, &take, 1);
}

static int wait_semtimedop(int64_t *unused) {
    struct sembuf take = {.sem_num = 1, .sem_op = -1};
    struct timespec timeout = {.tv_nsec = 11 * NS_PER_MS / n_parts};
    (void)unused;
    return semtimedop(semaphore, &take, 1, &timeout);
}

static int wait_recv(int64_t *fd) {
    char byte;
    if (*fd == 0) {
        int pair[2];
        struct timeval timeout = {.tv_usec = 13000 / n_parts};
        check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), "socketpair");
        check(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout), "SO_RCVTIMEO");
        *fd = pair[0];
    }
    return (int)recv((int)*fd, &byte, 1, 0);
}

static int wait_signal(int64_t *unused) {
    sigset_t none_sent;
    struct timespec timeout = {.tv_nsec = 17 * NS_PER_MS / n_parts};
    (void)unused;
    sigemptyset(&none_sent);
    sigaddset(&none_sent, SIGUSR2);
    return sigtimedwait(&none_sent, NULL, &timeout);
}

static Waiter waiters[] = {
    {.name = "epoll_wait", .wait_once = wait_epoll}, {.name = "semop", .wait_once = wait_semop},
    {.name = "semtimedop", .wait_once = wait_semtimedop}, {.name = "recv", .wait_once = wait_recv},
    {.name = "sigtimedwait", .wait_once = wait_signal},
};
enum { N_WAITERS = sizeof waiters / sizeof waiters[0] };

FRAME void *thread_main(void *argument) {
    Waiter *mine = argument;
    int64_t state = 0;
    while (!stop_now) {
        errno = 0;
        int result = mine->wait_once(&state);
        mine->n_calls++;
        if (result == -1 && errno == EINTR) mine->n_eintr++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[N_WAITERS];
    int64_t until_ns = wall_ns() + seconds_to_ns(argc > 1 ? argv[1] : "1");
    if (argc > 2) n_parts = atol(argv[2]);
    struct sembuf give = {.sem_num = 0, .sem_op = 1};
    semaphore = semget(IPC_PRIVATE, 2, 0600);
    check(semaphore < 0, "semget");
    for (int i = 0; i < N_WAITERS; i++) {
        check(pthread_create(&threads[i], NULL, thread_main, &waiters[i]), "pthread_create");
    }
    while (wall_ns() < until_ns) {
        sleep_ns(5 * NS_PER_MS / n_parts);
        semop(semaphore, &give, 1);
    }
    stop_now = 1;
    semop(semaphore, &give, 1);
    for (int i = 0; i < N_WAITERS; i++) pthread_join(threads[i], NULL);
    semctl(semaphore, 0, IPC_RMID);
    printf("{\"calls\": {");
    for (int i = 0; i < N_WAITERS; i++) printf("%s\"%s\": %ld", i ? ", " : "", waiters[i].name, waiters[i].n_calls);
    printf("}, \"eintr\": {");
    for (int i = 0; i < N_WAITERS; i++) printf("%s\"%s\": %ld", i ? ", " : "", waiters[i].name, waiters[i].n_eintr);
    printf("}, ");
    print_rusage();
    printf("}\n");
    return 0;
}
