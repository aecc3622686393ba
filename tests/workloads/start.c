/* start: the time of day of its own first instruction that may ask for it, and nothing else. */
#include "truth.h"

int main(void) {
    printf("{\"start_ns\": %lld}\n", (long long)wall_ns());
    return 0;
}
