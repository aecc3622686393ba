/* plugins SECONDS TURNS (LIBRARY FUNCTION PARTS)...: loads each library in turn, runs its function, unloads it.
 *
 *   main -> turn -> FUNCTION (in LIBRARY) -> leaf_FUNCTION
 *
 * The kernel puts the next library where the last one was: "addresses" is how many different ones a function had.
 */
#include "truth.h"
#include <dlfcn.h>

enum { MAX_SEEN = 64 };

static void *seen[MAX_SEEN];
static int n_seen;

static void see(void *address) {
    for (int i = 0; i < n_seen; i++)
        if (seen[i] == address) return;
    check(n_seen == MAX_SEEN, "too many addresses");
    seen[n_seen++] = address;
}

FRAME int64_t turn(const char *library, const char *function, int64_t ns) {
    void *handle = dlopen(library, RTLD_NOW);
    check(handle == NULL, library);
    int64_t (*work)(int64_t) = (int64_t (*)(int64_t))(uintptr_t)dlsym(handle, function);
    check(work == NULL, function);
    see((void *)(uintptr_t)work);
    int64_t spent = work(ns);
    check(dlclose(handle), "dlclose");
    return spent;
}

int main(int argc, char **argv) {
    int64_t total_ns = seconds_to_ns(argv[1]), spent_ns[8] = {0}, parts = 0;
    int n_turns = atoi(argv[2]), n_libraries = (argc - 3) / 3;
    check(n_libraries < 1 || n_libraries > 8, "plugins SECONDS TURNS (LIBRARY FUNCTION PARTS)...");
    for (int i = 0; i < n_libraries; i++) parts += atoi(argv[5 + 3 * i]);
    for (int t = 0; t < n_turns; t++) {
        for (int i = 0; i < n_libraries; i++) {
            int64_t ns = total_ns * atoi(argv[5 + 3 * i]) / (parts * n_turns);
            spent_ns[i] += turn(argv[3 + 3 * i], argv[4 + 3 * i], ns);
        }
    }
    printf("{\"addresses\": %d, ", n_seen);
    for (int i = 0; i < n_libraries; i++) printf("\"%s\": %.6f, ", argv[4 + 3 * i], (double)spent_ns[i] * 1e-9);
    print_rusage();
    printf("}\n");
    return 0;
}
