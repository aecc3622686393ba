/* manymaps COUNT SECONDS: makes so many executable mappings, then works.
 *
 *   main -> map_many, busy
 */
#include "truth.h"
#include <sys/mman.h>

FRAME void map_many(long count) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 2 * (size_t)count * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(memory == MAP_FAILED, "mmap");
    for (long i = 0; i < count; i++)  // every other page, so that no two are one mapping
        check(mprotect(memory + 2 * (size_t)i * page, page, PROT_READ | PROT_EXEC), "mprotect");
}

FRAME int64_t busy(int64_t ns) {
    int64_t spent = burn_here(ns);
    KEEP_FRAME();
    return spent;
}

int main(int argc, char **argv) {
    int64_t start = wall_ns();
    map_many(argc > 1 ? atol(argv[1]) : 32000);
    int64_t mapped = wall_ns();
    int64_t spent = busy(seconds_to_ns(argc > 2 ? argv[2] : "1"));
    int64_t end = wall_ns();
    printf("{\"mapping_s\": %.6f, \"busy_s\": %.6f, \"busy_wall_s\": %.6f, ", (double)(mapped - start) * 1e-9,
           (double)spent * 1e-9, (double)(end - mapped) * 1e-9);
    print_rusage();
    printf("}\n");
}
