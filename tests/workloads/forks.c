/* forks MILLISECONDS: a family tree of every kind of descendant, each with CPU time of its own.
 *
 * The founder forks 23 times, one after another. The third child execs this program again ("third"), and there come,
 * one after another: posix_spawn, system, popen, vfork + exec, clone(2) with SIGCHLD, clone(2) with no signal, a daemon
 * by a double fork, and at last an exec from a second thread ("last"), which ends "third" and goes on under its PID.
 *
 *   founder
 *     +- fork-1, fork-2
 *     +- fork-3 = third (exec)
 *     |    +- spawned                  posix_spawn
 *     |    +- sh -> in_system          system: the shell, and the program unless the shell execs it
 *     |    +- sh -> in_popen           popen
 *     |    +- vforked                  vfork, then exec
 *     |    +- clone_sigchld            clone(2), signal SIGCHLD
 *     |    +- clone_silent             clone(2), no signal
 *     |    +- daemon_parent -> daemon  fork, setsid, fork
 *     |    = last (exec from a second thread)
 *     +- fork-4 ... fork-23
 *
 * Every one of them works MILLISECONDS of CPU time in a function `work_ROLE` and then writes one line of JSON by one
 * write call: its role, PID, parent and CPU time. Nobody outlives the founder: it waits for the daemon through a pipe.
 */
#include "truth.h"
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>

extern char **environ;

enum { N_FORKS = 23, THIRD = 3, STACK_BYTES = 1 << 16 };

static const char *milliseconds;
static char self_path[4096];

/* A role is a function of its own name, so that a profile shows whose work it was. */
#define WORK(role) \
    FRAME int64_t work_##role(int64_t ns) { return burn_here(ns); }
WORK(founder) WORK(fork) WORK(third) WORK(spawned) WORK(in_system) WORK(in_popen) WORK(vforked)
WORK(clone_sigchld) WORK(clone_silent) WORK(daemon_parent) WORK(daemon) WORK(last)

typedef struct {
    const char *role;
    int64_t (*work)(int64_t ns);
} Role;

#define ROLE(role) {#role, work_##role}
static const Role ROLES[] = {
    ROLE(founder),  ROLE(fork),    ROLE(third),         ROLE(spawned),      ROLE(in_system),     ROLE(in_popen),
    ROLE(vforked),  ROLE(clone_sigchld), ROLE(clone_silent), ROLE(daemon_parent), ROLE(daemon), ROLE(last),
};

static const Role *role_named(const char *name) {
    for (size_t i = 0; i < sizeof ROLES / sizeof ROLES[0]; i++) {
        if (strcmp(ROLES[i].role, name) == 0) return &ROLES[i];
    }
    fprintf(stderr, "forks: no role %s\n", name);
    exit(2);
}

FRAME void act(const char *name, int number) {
    char line[256];
    int64_t spent = role_named(name)->work((int64_t)(atof(milliseconds) * 1e6));
    int length = snprintf(
        line, sizeof line,
        "{\"role\": \"%s\", \"number\": %d, \"pid\": %d, \"parent\": %d, \"work_s\": %.6f, \"cpu_s\": %.6f}\n",
        name, number, (int)getpid(), (int)getppid(), (double)spent * 1e-9, (double)process_cpu_ns() * 1e-9);
    check(write(STDOUT_FILENO, line, (size_t)length) != length, "write");
}

static void wait_for(pid_t pid, int options) {
    int status;
    check(pid < 0, "new process");
    check(waitpid(pid, &status, options) != pid, "waitpid");
    check(status != 0, "a descendant failed");
}

static void become(const char *role) {
    execl(self_path, self_path, role, milliseconds, (char *)NULL);
    die("exec");
}

/* --- what "third" does -------------------------------------------------------------------------------------------- */

static void do_spawn(void) {
    char *arguments[] = {self_path, "spawned", (char *)milliseconds, NULL};
    pid_t pid;
    errno = posix_spawn(&pid, self_path, NULL, NULL, arguments, environ);
    check(errno != 0, "posix_spawn");
    wait_for(pid, 0);
}

/* The command ends with "; true", so that no shell replaces itself by its last command. */
static void shell_command(char *buffer, size_t size, const char *role) {
    snprintf(buffer, size, "'%s' %s %s; true", self_path, role, milliseconds);
}

static void do_system(void) {
    char command[5000];
    shell_command(command, sizeof command, "in_system");
    check(system(command) != 0, "system");
}

static void do_popen(void) {
    char command[5000], buffer[512];
    shell_command(command, sizeof command, "in_popen");
    FILE *output = popen(command, "r");
    check(output == NULL, "popen");
    while (fgets(buffer, sizeof buffer, output)) check(write(STDOUT_FILENO, buffer, strlen(buffer)) < 0, "write");
    check(pclose(output) != 0, "pclose");
}

static void do_vfork(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        execl(self_path, self_path, "vforked", milliseconds, (char *)NULL);
        _exit(127);
    }
    wait_for(pid, 0);
}

static void do_clone(const char *role, long end_signal) {
    pid_t pid = (pid_t)syscall(SYS_clone, end_signal, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        act(role, 0);
        _exit(0);
    }
    wait_for(pid, __WALL);
}

static void do_daemon(void) {
    int alive[2];
    char byte;
    check(pipe(alive), "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        close(alive[0]);
        check(setsid() < 0, "setsid");
        act("daemon_parent", 0);
        if (fork() == 0) act("daemon", 0);
        _exit(0);
    }
    close(alive[1]);
    wait_for(pid, 0);
    check(read(alive[0], &byte, 1) != 0, "the daemon's end"); /* end of file: nobody holds the other end */
    close(alive[0]);
}

static void *exec_in_thread(void *unused) {
    (void)unused;
    become("last");
    return NULL;
}

static void third(void) {
    pthread_t thread;
    act("third", 0);
    do_spawn();
    do_system();
    do_popen();
    do_vfork();
    do_clone("clone_sigchld", SIGCHLD);
    do_clone("clone_silent", 0);
    do_daemon();
    check(pthread_create(&thread, NULL, exec_in_thread, NULL), "pthread_create");
    pthread_join(thread, NULL);
}

/* --- the founder -------------------------------------------------------------------------------------------------- */

static void founder(void) {
    act("founder", 0);
    for (int number = 1; number <= N_FORKS; number++) {
        pid_t pid = fork();
        if (pid == 0) {
            act("fork", number);
            if (number == THIRD) become("third");
            _exit(0);
        }
        wait_for(pid, 0);
    }
}

int main(int argc, char **argv) {
    ssize_t length = readlink("/proc/self/exe", self_path, sizeof self_path - 1);
    check(length < 0, "/proc/self/exe");
    if (argc < 3) {
        milliseconds = argc > 1 ? argv[1] : "41";
        founder();
    } else {
        milliseconds = argv[2];
        if (strcmp(argv[1], "third") == 0) {
            third();
        } else {
            act(argv[1], 0);
        }
    }
    return 0;
}
