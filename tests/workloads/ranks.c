/* ranks: an MPI program whose rank r works 0.1 s times (r + 1) in a function of its own kind. */
#include <mpi.h>
#include <stdio.h>
#include <time.h>

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

__attribute__((noinline)) double work(double seconds) {
    volatile double sum = 0;
    double end = cpu_s() + seconds;
    while (cpu_s() < end)
        for (int i = 0; i < 10007; i++) sum += i;
    return sum;
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double sum = work(0.1 * (rank + 1)), total = 0;
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return total < 0;
}
