/* streams MEGABYTES: sends as much in one call each, to a reader that is slow, and says what that call came to.
 *
 * By write to a pipe, by send to a stream socket, and by recv with MSG_WAITALL from one whose writer is slow. Both ends
 * are threads. Undisturbed, each call does all that was asked for; "wrong" counts pieces that came other than sent.
 * (glibc's own send and recv are socketcall(2) in a 32-bit program, whose arguments are in memory.)
 */
#include "truth.h"
#include <sys/socket.h>
#include <sys/syscall.h>

enum { PIECE = 1 << 16, PIECES_PER_NAP = 16 };

typedef struct {
    int fd, gives;
    char *data;
    size_t size;
    long n_wrong;
    char piece[PIECE];
} Slow;

FRAME void *thread_main(void *argument) {
    Slow *mine = argument;
    size_t at = 0;
    for (int n = 1; at < mine->size; n++) {
        ssize_t got = mine->gives ? write(mine->fd, mine->data + at, PIECE) : read(mine->fd, mine->piece, PIECE);
        if (got <= 0) break;
        if (!mine->gives && memcmp(mine->piece, mine->data + at, (size_t)got)) mine->n_wrong++;
        at += (size_t)got;
        if (n % PIECES_PER_NAP == 0) sleep_ns(NS_PER_MS / 2);
    }
    close(mine->fd);
    return NULL;
}

static Slow *like(Slow *other, int fd, int gives, char *data, size_t size) {
    other->fd = fd, other->gives = gives, other->data = data, other->size = size, other->n_wrong = 0;
    return other;
}

/* In one call from or to the end ``fd``, of which a thread has the other end. */
static void transfer(const char *name, int fd, Slow *other, char *into) {
    pthread_t thread;
    ssize_t done;
    check(pthread_create(&thread, NULL, thread_main, other), "pthread_create");
    if (!strcmp(name, "write")) done = write(fd, other->data, other->size);
    else if (!strcmp(name, "send")) done = syscall(SYS_sendto, fd, other->data, other->size, 0, NULL, 0);
    else done = syscall(SYS_recvfrom, fd, into, other->size, MSG_WAITALL, NULL, NULL);
    if (other->gives && done > 0 && memcmp(into, other->data, (size_t)done)) other->n_wrong++;
    close(fd);
    pthread_join(thread, NULL);
    printf("\"%s\": {\"done\": %zd, \"wrong\": %ld}, ", name, done, other->n_wrong);
}

int main(int argc, char **argv) {
    size_t size = (size_t)(argc > 1 ? atol(argv[1]) : 16) << 20;
    char *data = malloc(size), *into = malloc(size);
    static Slow other;
    int ends[2];
    for (size_t i = 0; i < size; i++) data[i] = (char)(i / 509 + i);
    printf("{");
    check(pipe(ends), "pipe");
    transfer("write", ends[1], like(&other, ends[0], 0, data, size), into);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    transfer("send", ends[1], like(&other, ends[0], 0, data, size), into);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
    transfer("recv", ends[1], like(&other, ends[0], 1, data, size), into);
    print_rusage();
    printf("}\n");
    return 0;
}
