/* leaks [BYTES]: loses so many bytes of memory, which a leak checker tells at the end. */
#include "truth.h"

int main(int argc, char **argv) {
    void *volatile block = argc > 1 ? malloc((size_t)atol(argv[1])) : NULL;
    block = NULL;
    piece_of_work();
    printf("done\n");
    return block != NULL;
}
