/* A signal trampoline without call frame information, as small C libraries have it. */
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

volatile long sink;
extern char __restore_rt[];
#ifdef __x86_64__
__asm__(".text\n.p2align 4\nnop\n__restore_rt: mov $15, %rax\nsyscall\n");
#else
__asm__(".text\n.p2align 4\nnop\n__restore_rt: mov $173, %eax\nint $0x80\n");
#endif
struct { void (*handler)(int); unsigned long flags; void *restorer; unsigned long mask[2]; } action;

__attribute__((noinline)) long realigned(long n)
{
    for (long i = 0; i < 1000; i++)
        sink += i * n;
    return sink;
}

static void handler(int number) { sink += realigned(number); }

__attribute__((noinline)) long recurse(int depth) { return depth ? recurse(depth - 1) + 1 : realigned(depth); }

int main(void)
{
    action.handler = handler;
    action.flags = 0x04000000 | SA_SIGINFO; /* SA_RESTORER */
    action.restorer = __restore_rt;
    syscall(SYS_rt_sigaction, SIGALRM, &action, 0, 8);
    for (;;)
        sink += recurse(5);
}
