// The columns of time: the ten microstates, and what collectors without microstates write.

/** By column: short name, what a thread does in it, and its colours on light and dark ground. */
export const STATES = [
    ["User CPU", "runs its own code", "#1f9d55", "#34c274"],
    ["System CPU", "runs in the kernel for a system call or page fault", "#8fbf1f", "#a9d944"],
    ["Trap CPU", "runs in the kernel for anything else", "#0e7c86", "#2fb3bf"],
    ["Text page fault", "waits for a page of its code", "#7c4dbe", "#a680e8"],
    ["Data page fault", "waits for any other page", "#b355c4", "#d98be8"],
    ["Kernel page fault", "waits for a page that a system call touches", "#d779b5", "#f0a6d3"],
    ["User lock", "waits for another thread: mutex, condition variable, barrier", "#d6293e", "#ff5d6c"],
    ["Sleep", "waits for anything else: time, input, a child", "#c3d0e0", "#44546b"],
    ["Wait CPU", "could run but has no CPU", "#f08a24", "#ffa64d"],
    ["Stopped", "is stopped by job control or a debugger", "#6b7380", "#98a1ae"],
    ["CPU", "runs", "#1f9d55", "#34c274"],
    ["Kernel CPU", "runs in the kernel", "#8fbf1f", "#a9d944"],
    ["Other", "is in a state of another kind", "#9a8f80", "#b5aa9a"],
];
export const N_STATES = STATES.length;
export const ON_CPU = [0, 1, 2, 10, 11];
export const USER_LOCK = 6;
export const SLEEP = 7;
export const WAIT_CPU = 8;
export const FAULTS = [3, 4, 5];
/** The order in which states are stacked: what uses a CPU first, idle ones last. */
export const ORDER = [0, 10, 1, 11, 2, 8, 6, 3, 4, 5, 9, 12, 7];

export const isDark = () => document.documentElement.dataset.theme === "dark";

export function colourOf(state) {
    return STATES[state][isDark() ? 3 : 2];
}
