/* Frames that the plain rules do not cover: realigned stacks, variable-size arrays, frames inside and under signal
   handlers (also on an alternate stack; whoever runs this sends SIGALRM), recursion, calls through the PLT. */
#include <immintrin.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

volatile double sink;
volatile int turns;
static void *memory[64];

__attribute__((noinline, target("avx2"))) double realigned(int n)
{
    __m256d rows[8];
    char *extra = __builtin_alloca(n + 16);
    memset(extra, n, n + 16);
    for (int i = 0; i < 8; i++)
        rows[i] = _mm256_set1_pd(i * extra[i]);
    __m256d sum = rows[0];
    for (int k = 0; k < n; k++)
        for (int i = 1; i < 8; i++)
            sum = _mm256_add_pd(sum, _mm256_mul_pd(rows[(i + k) & 7], rows[i]));
    double out[4];
    _mm256_storeu_pd(out, sum);
    return out[0] + out[3];
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

__attribute__((noinline)) int sorted(int n)
{
    int values[n];
    for (int i = 0; i < n; i++)
        values[i] = (i * 7919) % 1009;
    qsort(values, n, sizeof *values, compare);
    return values[n / 2];
}

__attribute__((noinline)) double recurse(int depth)
{
    if (depth == 0)
        return realigned(37) + sorted(23);
    double below = recurse(depth - 1);
    return below + depth;
}

static void handler(int number)
{
    turns += number;
    for (int i = 0; i < 40; i++)
        sink += recurse(turns % 5);
}

int main(void)
{
    static char alternate[1 << 16];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction action = {.sa_handler = handler};
    if (getenv("ALTERNATE")) {
        sigaltstack(&stack, 0);
        action.sa_flags = SA_ONSTACK;
    }
    sigaction(SIGALRM, &action, 0);
    for (;;) {
        sink += recurse(17);
        int slot = turns & 63;
        free(memory[slot]);
        memory[slot] = calloc(1, 100 * slot + 1);
    }
}
