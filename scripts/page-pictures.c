/* What scripts/page-pictures records: a reader hands pages to workers, which parse and compress them, and keep an index
 * of all words under one lock.
 *
 *   main -> read_pages -> fetch_page
 *   worker -> handle_page -> parse_page -> hash_word
 *                         -> compress_page -> find_match
 *                         -> update_index -> rebalance       with the lock held
 *   flusher -> write_index
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define FRAME __attribute__((noinline)) static
#define NOT_LAST __asm__ volatile("")

enum { N_WORKERS = 6, N_PAGES = 420, ROUNDS = 40000 };

static pthread_mutex_t index_lock = PTHREAD_MUTEX_INITIALIZER, queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static int n_waiting, is_over;
static atomic_ulong sink;

static inline __attribute__((always_inline)) unsigned long churn(long n, unsigned long seed) {
    for (long i = 0; i < n; i++) seed = seed * 6364136223846793005u + 1442695040888963407u + (seed >> 33);
    return seed;
}

static void pause_ms(long ms) {
    struct timespec rest = {0, ms * 1000000};
    nanosleep(&rest, NULL);
}

FRAME void hash_word(long n) { sink += churn(n, 3); NOT_LAST; }
FRAME void find_match(long n) { sink += churn(n, 5); NOT_LAST; }
FRAME void rebalance(long n) { sink += churn(n, 7); NOT_LAST; }

FRAME void parse_page(void) {
    for (int i = 0; i < 40; i++) hash_word(ROUNDS);
    sink += churn(12 * ROUNDS, 9);
}

FRAME void compress_page(int page) {
    for (int i = 0; i < 30 + page % 40; i++) find_match(ROUNDS);
    sink += churn(9 * ROUNDS, 11);
}

FRAME void update_index(void) {
    pthread_mutex_lock(&index_lock);
    for (int i = 0; i < 24; i++) rebalance(ROUNDS);
    pthread_mutex_unlock(&index_lock);
}

FRAME void handle_page(int page) {
    parse_page();
    compress_page(page);
    update_index();
    NOT_LAST;
}

FRAME int next_page(void) {
    pthread_mutex_lock(&queue_lock);
    while (!n_waiting && !is_over) pthread_cond_wait(&more, &queue_lock);
    int page = n_waiting ? n_waiting-- : -1;
    pthread_mutex_unlock(&queue_lock);
    return page;
}

static void *worker(void *unused) {
    for (int page; (page = next_page()) >= 0;) handle_page(page);
    return unused;
}

FRAME void write_index(void) {
    pthread_mutex_lock(&index_lock);
    pause_ms(120);
    pthread_mutex_unlock(&index_lock);
}

static void *flusher(void *unused) {
    for (int turn = 0; turn < 4; turn++) {
        pause_ms(700);
        write_index();
    }
    return unused;
}

FRAME void fetch_page(int page) {
    if (page % 60 == 0) pause_ms(150);
    sink += churn(ROUNDS, 13);
}

FRAME void read_pages(void) {
    for (int page = 0; page < N_PAGES; page++) {
        fetch_page(page);
        pthread_mutex_lock(&queue_lock);
        n_waiting++;
        pthread_cond_signal(&more);
        pthread_mutex_unlock(&queue_lock);
    }
    pthread_mutex_lock(&queue_lock);
    is_over = 1;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&queue_lock);
}

int main(void) {
    pthread_t threads[N_WORKERS + 1];
    for (int i = 0; i < N_WORKERS; i++) {
        if (pthread_create(&threads[i], NULL, worker, NULL)) return 1;
        char name[16];
        snprintf(name, sizeof name, "worker-%d", i + 1);
        pthread_setname_np(threads[i], name);
    }
    if (pthread_create(&threads[N_WORKERS], NULL, flusher, NULL)) return 1;
    pthread_setname_np(threads[N_WORKERS], "flusher");
    read_pages();
    for (int i = 0; i <= N_WORKERS; i++) pthread_join(threads[i], NULL);
    printf("%lu\n", (unsigned long)sink);
    return 0;
}
