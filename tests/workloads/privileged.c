/* privileged ARGUMENTS: says as whom it runs, and what it was given.
 * privileged -x PROGRAM ARGUMENTS: executes that from a thread that is not the first.
 */
#include "truth.h"
#include <sys/auxv.h>

static void *execute(void *arguments) {
    char **argv = arguments;
    execv(argv[0], argv);
    die(argv[0]);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "-x") == 0) {
        pthread_t thread;
        check(pthread_create(&thread, NULL, execute, argv + 2), "pthread_create");
        pthread_join(thread, NULL);
    }
    printf("{\"uid\": %d, \"euid\": %d, \"gid\": %d, \"egid\": %d, \"secure\": %lu, \"mark\": \"%s\", \"arguments\": [",
           (int)getuid(), (int)geteuid(), (int)getgid(), (int)getegid(), getauxval(AT_SECURE), getenv("MARK"));
    for (int i = 0; i < argc; i++) printf("%s\"%s\"", i ? ", " : "", argv[i]);
    printf("], ");
    print_rusage();
    printf("}\n");
}
