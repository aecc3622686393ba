/* Waits for locks, takes, moves, maps and leaks memory, reads and writes files: each an odd number of times.
   The files are made in the current directory; a child does some of it again. */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, ROUNDS = 17, WRITES = 31, READS = 13, LINES = 21 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t done;
static void *kept[THREADS * ROUNDS];

__attribute__((noinline)) void *leaky(int n) { return malloc(100 + n); }

__attribute__((noinline)) void fine(int n) {
    char *bytes = calloc(3, 50 + n);
    bytes = realloc(bytes, 1000 + n);
    free(bytes);
}

__attribute__((noinline)) void held(int us) {
    pthread_mutex_lock(&lock);
    usleep(us);
    pthread_mutex_unlock(&lock);
}

static void *work(void *first) {
    for (int i = 0; i < ROUNDS; i++) {
        kept[(long)first * ROUNDS + i] = leaky(i);
        fine(i);
        held(1000);
    }
    sem_post(&done);
    return first;
}

static void check(int is_well) {
    if (!is_well)
        exit(1);
}

__attribute__((noinline)) void input_and_output(void) {
    char bytes[4096];
    memset(bytes, 1, sizeof bytes);
    int fd = open("kinds.out", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < WRITES; i++)
        check(write(fd, bytes, 100 * (i + 1)) > 0);
    check(lseek(fd, 0, SEEK_SET) == 0);
    for (int i = 0; i < READS; i++)
        check(read(fd, bytes, 77) == 77);
    int copy = dup(fd);
    check(write(copy, bytes, 5) == 5);
    close(copy);
    close(fd);
    check(read(99, bytes, 10) < 0);
    check(open("/nonexistent/file", O_RDONLY) < 0);
    FILE *stream = fopen("kinds.lines", "w");
    for (int i = 0; i < LINES; i++)
        fprintf(stream, "%d\n", i), fflush(stream);
    fclose(stream);
    check(write(1, "written\n", 8) == 8);
}

int main(void) {
    pthread_t thread[THREADS];
    sem_init(&done, 0, 0);
    for (long i = 0; i < THREADS; i++)
        pthread_create(thread + i, NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        sem_wait(&done);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    input_and_output();
    char *mapped = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(mapped + (1 << 16), 1 << 18);
    mapped = mmap(0, 1 << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(mapped, 1 << 21);
    if (fork() == 0) {
        fine(3);
        kept[0] = leaky(9);
        input_and_output();
        _exit(0);
    }
    wait(NULL);
    return 0;
}
