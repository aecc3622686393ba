/* plugin: a library with one function, which is called WORK; two libraries built from this differ in that name alone.
 */
#include "truth.h"

#define JOINED(a, b) a##b
#define NAME(a, b) JOINED(a, b)

FRAME int64_t NAME(leaf_, WORK)(int64_t ns) { return burn_here(ns); }

FRAME int64_t WORK(int64_t ns) {
    int64_t spent = NAME(leaf_, WORK)(ns);
    KEEP_FRAME();
    return spent;
}
