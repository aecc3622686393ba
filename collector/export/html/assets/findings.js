// The first things worth knowing of what is selected, a sentence each, by how much they matter.

import { html } from "page/ui";
import { FAULTS, N_STATES, ON_CPU, SLEEP, USER_LOCK, WAIT_CPU } from "page/states";
import { percent as percentOf, told } from "page/figures";

const N_SHOWN = 3;
const NAME_MAX = 100; // letters: a template's name may be a page of them
const WITHOUT_FILE = "<DYNAMIC_FUNCTIONS>";
const KERNEL = /^<?(kernel|\[.*\])>?$/;
const NAMELESS = /^(_start$|<static>@)/; // the kernel's entry into a program, code without a symbol: they say nothing of who called
const NOTHING = "Nothing was sampled: what ran was shorter than the clock interval, or asleep all along. A finer one (collect -p hi) sees more.";
const unbroken = (text) => text.replace(/ /g, "\u00a0");
const time = (us) => unbroken(told(us, "us"));
const percent = (part, whole) => unbroken(percentOf(part, whole));

export function findings(recording, selection, sums) {
    const totals = sums.totals;
    const facts = {
        recording, selection, sums, totals,
        all: totals.subarray(0, N_STATES).reduce((a, b) => a + b, 0),
        cpu: ON_CPU.reduce((all, state) => all + totals[state], 0),
    };
    const found = [hottest, balance, locks, waitCpu, faults, system, crowding]
        .map((one) => one(facts)).filter((one) => one && one.weight > 0).sort((a, b) => b.weight - a.weight);
    if (!found.length) return [facts.all ? "Nothing stands out in what is selected." : recording.n ? "Nothing was recorded in what is selected." : NOTHING];
    return found.slice(0, N_SHOWN).map((one) => one.text);
}

const name = (text) => {
    const whole = text.replace(/ -- +no functions found$/, "");
    const isLong = whole.length > NAME_MAX;
    return html`<code title=${isLong ? whole : undefined}><bdi>${isLong ? `${whole.slice(0, NAME_MAX - 1)}…` : whole}</bdi></code>`;
};

const functionAt = (recording, node) => recording.function_of[recording.instruction[node]];

/**
 * Objects of the program's own functions: its file, and what has no file; where most stacks have functions of that kind,
 * an interpreter's or a virtual machine's, they alone are the program, and its file is the machine.
 */
function programsOf(recording) {
    return recording.once("programs", () => {
        const runtime = recording.objects.indexOf(WITHOUT_FILE);
        const isInRuntime = new Uint8Array(recording.nNodes);
        for (let node = 1; node < recording.nNodes; node++) {
            isInRuntime[node] = isInRuntime[recording.parent[node]] || recording.object_of[functionAt(recording, node)] === runtime ? 1 : 0;
        }
        const share = recording.leaves.filter((node) => isInRuntime[node]).length / Math.max(recording.leaves.length, 1);
        const files = share > 0.5 ? [] : recording.experiments.map((one) => one.executable);
        return new Set([...files, runtime].filter((one) => one >= 0));
    });
}

/** The parts of the kernel, whose functions say nothing of why a program called. */
const kernelsOf = (recording) => new Set(recording.objects.flatMap((object, i) => (KERNEL.test(object) ? [i] : [])));

/** The function of the program nearest to the leaf in a node's stack; -1 for none with a name that says something. */
function nearest(recording, programs, node) {
    while (node && !programs.has(recording.object_of[functionAt(recording, node)])) node = recording.parent[node];
    const found = node ? functionAt(recording, node) : -1;
    return found < 0 || NAMELESS.test(recording.functions[found]) ? -1 : found;
}

/** The function of the program that has most of some states with what it calls in libraries and the kernel. */
function responsible({ recording, sums }, states) {
    const programs = programsOf(recording);
    const spent = new Map();
    recording.leaves.forEach((leaf, number) => {
        const weight = states.reduce((all, state) => all + sums.byLeaf[number * recording.n_columns + state], 0);
        const item = weight ? nearest(recording, programs, leaf) : -1;
        if (item >= 0) spent.set(item, (spent.get(item) ?? 0) + weight);
    });
    const [top] = [...spent].sort((a, b) => b[1] - a[1]);
    return top && { name: recording.functions[top[0]], time: top[1] };
}

/**
 * Where most of some states was: { name, exclusive, by, time }, null for nowhere. `name`: the function that has most of
 * it itself (`exclusive`); `by`: the function of the program for which it was called most, empty where it is of the
 * program; `time`: the part of `exclusive` under that one. With `isWait` kernel functions do not count: all waits end in
 * its scheduler.
 */
function leader({ recording, sums }, states, isWait = false) {
    const width = recording.n_columns;
    const [programs, kernels] = [programsOf(recording), kernelsOf(recording)];
    const objectAt = (node) => recording.object_of[functionAt(recording, node)];
    const found = new Map(); // function -> its weight, and that by function of the program above
    recording.leaves.forEach((leaf, number) => {
        const weight = states.reduce((all, state) => all + sums.byLeaf[number * width + state], 0);
        let node = leaf;
        while (isWait && recording.parent[node] && kernels.has(objectAt(node))) node = recording.parent[node];
        if (!node || !weight) return;
        const item = functionAt(recording, node);
        const above = programs.has(objectAt(node)) ? item : nearest(recording, programs, node);
        const by = above === item ? -1 : above;
        if (!found.has(item)) found.set(item, { exclusive: 0, each: new Map() });
        const one = found.get(item);
        one.exclusive += weight;
        one.each.set(by, (one.each.get(by) ?? 0) + weight);
    });
    const [top] = [...found].sort((a, b) => b[1].exclusive - a[1].exclusive);
    if (!top) return null;
    const [item, { exclusive, each }] = top;
    const [by, spent] = [...each].sort((a, b) => b[1] - a[1])[0];
    return { name: recording.functions[item], exclusive, by: by < 0 ? "" : recording.functions[by], time: spent };
}

function hottest(facts) {
    if (!facts.all) return null;
    if (!facts.cpu) return { weight: 0.4, text: "No time was spent on a CPU in what is selected." };
    const top = leader(facts, ON_CPU);
    if (!top) return null;
    const own = responsible(facts, ON_CPU);
    if (own && own.name !== top.name && own.time > 1.5 * top.exclusive) {
        return { weight: 1.2 * (0.3 + own.time / facts.cpu), text: html`${name(own.name)}, with what it calls in libraries, has ${percent(own.time, facts.cpu)} of the CPU time (${time(own.time)} of ${time(facts.cpu)}).` };
    }
    const by = top.by ? html`, mostly for ${name(top.by)}` : "";
    return { weight: 1.2 * (0.3 + top.exclusive / facts.cpu), text: html`${name(top.name)} has ${percent(top.exclusive, facts.cpu)} of the CPU time itself (${time(top.exclusive)} of ${time(facts.cpu)})${by}.` };
}

/** Whether threads run or wait. */
function balance(facts) {
    if (!facts.all) return null;
    const part = facts.cpu / facts.all;
    if (part > 0.6) return { weight: 0.5, text: `The threads ran for ${percent(facts.cpu, facts.all)} of their time: what limits this program is the CPU time that it needs.` };
    const slept = facts.totals[SLEEP];
    const top = leader(facts, [SLEEP], true);
    if (!top || slept < 0.2 * facts.all) return null;
    return { weight: 0.6, text: html`Threads slept for ${time(slept)}, ${percent(slept, facts.all)} of their time${longest(top)}.` };
}

const longest = (top) => (top ? html`, longest in ${name(top.name)}${top.by ? html` called by ${name(top.by)}` : ""} (${time(top.time)})` : "");

function locks(facts) {
    const spent = facts.totals[USER_LOCK];
    if (spent < 0.03 * facts.all) return null;
    return { weight: 0.45 + 2 * spent / facts.all, text: html`Threads waited for each other (locks, conditions, joins) for ${time(spent)}, ${percent(spent, facts.all)} of their time${longest(leader(facts, [USER_LOCK], true))}.` };
}

/** Nanoseconds that are selected, of all recordings together: they did not run side by side. */
function lengthOf({ experiments, begin, end }, { from, to }) {
    const bounds = new Map();
    for (const one of experiments) {
        const [first, last] = bounds.get(one.group) ?? [Infinity, -Infinity];
        bounds.set(one.group, [Math.min(first, one.begin_ns), Math.max(last, one.end_ns)]);
    }
    if (bounds.size < 2) return (to ?? end) - (from ?? begin);
    return [...bounds.values()].reduce((all, [first, last]) => all + Math.max(0, Math.min(to ?? last, last) - Math.max(from ?? first, first)), 0);
}

/** Threads that could run but did not: too many for the CPUs that there are, or others had those. */
function waitCpu(facts) {
    const { recording, selection } = facts;
    const spent = facts.totals[WAIT_CPU];
    if (spent < 0.04 * facts.all) return null;
    const span = lengthOf(recording, selection) / 1000;
    const ready = (facts.cpu + spent) / Math.max(span, 1);
    const { n_cpus: n } = recording.experiments[0];
    const why = ready > n ? `on average ${ready.toFixed(1)} threads wanted to run, on ${n} ${n === 1 ? "CPU" : "CPUs"}`
        : `no more than ${ready.toFixed(1)} threads on average wanted to run, on ${n} ${n === 1 ? "CPU" : "CPUs"}, so other programs had them, a limit kept threads off them, or threads came in bursts`;
    return { weight: 0.45 + 2 * spent / facts.all, text: `Threads waited for a CPU for ${time(spent)}, ${percent(spent, facts.all)} of their time: ${why}.` };
}

function faults(facts) {
    const spent = FAULTS.reduce((all, state) => all + facts.totals[state], 0);
    if (spent < 0.02 * facts.all) return null;
    return { weight: 0.5 + 2 * spent / facts.all, text: html`Threads waited for pages of memory or files for ${time(spent)}, ${percent(spent, facts.all)} of their time${longest(leader(facts, FAULTS, true))}.` };
}

function system(facts) {
    const states = [1, 2, 11];
    const spent = states.reduce((all, state) => all + facts.totals[state], 0);
    if (spent < 0.25 * facts.cpu || spent < 0.01 * facts.all) return null;
    const top = leader(facts, states);
    return { weight: 0.5 + 0.6 * spent / facts.cpu, text: html`${percent(spent, facts.cpu)} of the CPU time is the kernel's${longest(top)}.` };
}

/** One thread with nearly all CPU time among many. */
function crowding({ recording, sums, cpu }) {
    const cpuOf = (thread) => ON_CPU.reduce((all, state) => all + sums.byThread[thread * recording.n_columns + state], 0);
    const each = recording.threads.map((_, thread) => ({ thread, cpu: cpuOf(thread) })).sort((a, b) => b.cpu - a.cpu);
    const running = each.filter((one) => one.cpu > 0.01 * cpu).length;
    if (each.length < 3 || !cpu || each[0].cpu < 0.8 * cpu) return null;
    return { weight: 0.7, text: html`One of ${each.length} threads, ${name(recording.threadNames[each[0].thread])}, has ${percent(each[0].cpu, cpu)} of the CPU time${running > 1 ? "" : "; the others hardly ran"}.` };
}
