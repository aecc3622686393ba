/* What scripts/demo records: counts the words of a text and finds prime numbers, in two threads at once.
 *
 *   main          -> count_words -> next_word, find_slot -> hash_word, same_word
 *                 -> sort_words -> qsort -> by_count
 *   prime_thread  -> find_primes -> is_prime
 *
 * usage: demo TEXT ROUNDS
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SLOTS = 1 << 15, MAX_WORD = 64 };

typedef struct {
    char word[MAX_WORD];
    long count;
} Slot;

static Slot slots[N_SLOTS];
static long n_primes, last_number;

__attribute__((noinline)) static unsigned hash_word(const char *word) {
    unsigned hash = 2166136261u;
    for (; *word; word++) hash = (hash ^ (unsigned char)*word) * 16777619u;
    return hash;
}

__attribute__((noinline)) static int same_word(const char *one, const char *other) {
    while (*one && *one == *other) one++, other++;
    return *one == *other;
}

__attribute__((noinline)) static Slot *find_slot(const char *word) {
    unsigned place = hash_word(word) % N_SLOTS;
    while (slots[place].count && !same_word(slots[place].word, word)) place = (place + 1) % N_SLOTS;
    return &slots[place];
}

static int is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

__attribute__((noinline)) static const char *next_word(const char *text, char *word) {
    size_t length = 0;
    while (*text && !is_letter(*text)) text++;
    while (length < MAX_WORD - 1 && is_letter(*text)) word[length++] = *text++ | 32;
    word[length] = '\0';
    return length ? text : NULL;
}

__attribute__((noinline)) static void count_words(const char *text) {
    char word[MAX_WORD];
    while ((text = next_word(text, word)) != NULL) {
        Slot *slot = find_slot(word);
        if (slot->count++ == 0) memcpy(slot->word, word, MAX_WORD);
    }
}

static int by_count(const void *a, const void *b) {
    long one = ((const Slot *)a)->count, other = ((const Slot *)b)->count;
    return (one < other) - (one > other);
}

__attribute__((noinline)) static void sort_words(void) { qsort(slots, N_SLOTS, sizeof slots[0], by_count); }

__attribute__((noinline)) static int is_prime(long number) {
    for (long divisor = 2; divisor * divisor <= number; divisor++) {
        if (number % divisor == 0) return 0;
    }
    return 1;
}

__attribute__((noinline)) static void find_primes(void) {
    for (long number = 2; number < last_number; number++) n_primes += is_prime(number);
}

static void *prime_thread(void *unused) {
    find_primes();
    return unused;
}

static char *read_text(const char *path) {
    enum { MAX_TEXT = 1 << 20 };
    char *text = calloc(1, MAX_TEXT + 1);
    FILE *file = fopen(path, "r");
    if (text == NULL || file == NULL || fread(text, 1, MAX_TEXT, file) == 0) {
        perror(path);
        exit(1);
    }
    fclose(file);
    return text;
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: demo TEXT ROUNDS\n"), 2;
    pthread_t thread;
    char *text = read_text(argv[1]);
    last_number = 1000 * atol(argv[2]);
    if (pthread_create(&thread, NULL, prime_thread, NULL) != 0) return 1;
    for (long round = 0; round < 10 * atol(argv[2]); round++) count_words(text);
    sort_words();
    pthread_join(thread, NULL);
    printf("%ld primes below %ld; the most frequent word: \"%s\", %ld times\n", n_primes, last_number, slots[0].word,
           slots[0].count);
    free(text);
    return 0;
}
