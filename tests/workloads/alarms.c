/* alarms PERIOD_US PERCENT SECONDS: four functions divide their time while a timer signals without end.
 *
 *   main -> phase_a ... phase_d    50, 30, 15 and 5 parts of SECONDS of CPU time
 *        -> on_alarm               upon each SIGALRM, PERCENT of the period in CPU time; it belongs to the phase, too:
 *                                  to the next one, if the phase has seen that it is over; to none (rest_s) behind the
 *                                  last one. Where others have the CPU, many alarms come in a row there.
 *
 * PERIOD_US 0: there is no timer.
 */
#include "truth.h"

static volatile int64_t n_alarms, handled_ns;
static int64_t handle_ns, over_ns;  /* over: what the thread had used when it saw that the phase before is over */

FRAME void a_bit(void) {
    for (volatile int i = 0; i < 5003; i++) continue;
    KEEP_FRAME();
}

FRAME void on_alarm(int number) {
    (void)number;
    n_alarms++;
    int64_t start = thread_cpu_ns(), now = start;
    while (now - start < handle_ns) {
        a_bit();
        now = thread_cpu_ns();
    }
    handled_ns += now - start;
}

#define PHASE(name)                              \
    FRAME int64_t name(int64_t ns) {             \
        int64_t spent = burn_from(over_ns, ns);  \
        over_ns += spent;                        \
        KEEP_FRAME();                            \
        return spent;                            \
    }
PHASE(phase_a) PHASE(phase_b) PHASE(phase_c) PHASE(phase_d)

static void alarm_every(int64_t period_ns) {
    struct timeval period = {period_ns / NS_PER_S, period_ns % NS_PER_S / 1000};
    struct itimerval timer = {period, period};
    check(setitimer(ITIMER_REAL, &timer, NULL), "setitimer");
}

int main(int argc, char **argv) {
    int64_t period_ns = argc > 1 ? atol(argv[1]) * 1000 : 1000000;
    handle_ns = period_ns * (argc > 2 ? atol(argv[2]) : 0) / 100;
    int64_t all_ns = seconds_to_ns(argc > 3 ? argv[3] : "2");
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    check(sigaction(SIGALRM, &action, NULL), "sigaction");
    over_ns = thread_cpu_ns();
    alarm_every(period_ns);
    double a = phase_a(all_ns * 50 / 100), b = phase_b(all_ns * 30 / 100);
    double c = phase_c(all_ns * 15 / 100), d = phase_d(all_ns * 5 / 100);
    alarm_every(0);
    double rest = thread_cpu_ns() - over_ns;
    printf("{\"phases\": {\"phase_a\": %.6f, \"phase_b\": %.6f, \"phase_c\": %.6f, \"phase_d\": %.6f}, ",
           a * 1e-9, b * 1e-9, c * 1e-9, d * 1e-9);
    printf("\"alarms\": %ld, \"handled_s\": %.6f, \"rest_s\": %.6f, ",
           (long)n_alarms, (double)handled_ns * 1e-9, rest * 1e-9);
    print_rusage();
    printf("}\n");
}
