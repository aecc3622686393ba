// The first things worth knowing of what is selected, a sentence each, by how much they matter.

import { html } from "page/ui";
import { FAULTS, N_STATES, ON_CPU, SLEEP, USER_LOCK, WAIT_CPU } from "page/states";
import { percent as percentOf, told } from "page/figures";

const N_SHOWN = 3;
const WITHOUT_FILE = "<DYNAMIC_FUNCTIONS>";
const ENTRY = "_start"; // by which the kernel enters a program: it says nothing of who called
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
    const found = [hottest, balance, waiting(USER_LOCK, "for locks", 0.03), waiting(WAIT_CPU, "for a CPU", 0.04), faults, system, crowding]
        .map((one) => one(facts)).filter((one) => one && one.weight > 0).sort((a, b) => b.weight - a.weight);
    if (!found.length) return [facts.all ? "Nothing stands out in what is selected." : recording.n ? "Nothing was recorded in what is selected." : NOTHING];
    return found.slice(0, N_SHOWN).map((one) => one.text);
}

const name = (text) => html`<code><bdi>${text}</bdi></code>`;

/** The function that has most of some states itself, and for which of the program's own. */
function leader({ recording, sums }, states) {
    const width = recording.n_columns;
    const own = new Float64Array(recording.functions.length);
    const weights = new Float64Array(recording.leaves.length);
    for (const state of states) for (let leaf = 0; leaf < weights.length; leaf++) weights[leaf] += sums.byLeaf[leaf * width + state];
    for (let leaf = 0; leaf < weights.length; leaf++) {
        const node = recording.leaves[leaf];
        if (node) own[functionAt(recording, node)] += weights[leaf];
    }
    const item = own.reduce((best, value, i) => (value > own[best] ? i : best), 0);
    if (!own[item]) return null;
    return { name: recording.functions[item], exclusive: own[item], by: callerOf(recording, item, weights) };
}

const functionAt = (recording, node) => recording.function_of[recording.instruction[node]];

/** The function of the program (or that has no file: an interpreter's) for which one of a library was called most; of those, none. */
function callerOf(recording, item, weights) {
    const programs = new Set([...recording.experiments.map((one) => one.executable), recording.objects.indexOf(WITHOUT_FILE)]);
    programs.delete(-1);
    if (programs.has(recording.object_of[item])) return "";
    const found = new Map();
    recording.leaves.forEach((node, leaf) => {
        if (!node || functionAt(recording, node) !== item) return;
        let above = recording.parent[node];
        while (above && !programs.has(recording.object_of[functionAt(recording, above)])) above = recording.parent[above];
        if (above) found.set(functionAt(recording, above), (found.get(functionAt(recording, above)) ?? 0) + weights[leaf]);
    });
    const [best] = [...found].sort((a, b) => b[1] - a[1]);
    const caller = best && best[1] ? recording.functions[best[0]] : "";
    return caller === ENTRY ? "" : caller;
}

function hottest(facts) {
    if (!facts.all) return null;
    if (!facts.cpu) return { weight: 0.4, text: "No time was spent on a CPU in what is selected." };
    const top = leader(facts, ON_CPU);
    if (!top) return null;
    const by = top.by ? html`, mostly for ${name(top.by)}` : "";
    return { weight: 1.2 * (0.3 + top.exclusive / facts.cpu), text: html`${name(top.name)} has ${percent(top.exclusive, facts.cpu)} of the CPU time itself (${time(top.exclusive)} of ${time(facts.cpu)})${by}.` };
}

/** Whether threads run or wait. */
function balance(facts) {
    if (!facts.all) return null;
    const part = facts.cpu / facts.all;
    if (part > 0.6) return { weight: 0.5, text: `The threads ran for ${percent(facts.cpu, facts.all)} of their time: what limits this program is the CPU time that it needs.` };
    const top = leader(facts, [SLEEP]);
    if (!top || top.exclusive < 0.2 * facts.all) return null;
    const by = top.by ? html`, called by ${name(top.by)}` : "";
    return { weight: 0.6, text: html`Threads slept for ${percent(facts.totals[SLEEP], facts.all)} of their time, longest in ${name(top.name)}${by} (${time(top.exclusive)}).` };
}

function waiting(state, what, least) {
    return (facts) => {
        const spent = facts.totals[state];
        if (spent < least * facts.all) return null;
        const top = leader(facts, [state]);
        const where = top ? html`, most of it in ${name(top.name)}${top.by ? html`, called by ${name(top.by)}` : ""}` : "";
        const why = state === WAIT_CPU ? ": more threads wanted to run than there were CPUs" : "";
        return { weight: 0.45 + 2 * spent / facts.all, text: html`Threads waited ${what} for ${time(spent)}, ${percent(spent, facts.all)} of their time${where}${why}.` };
    };
}

function faults(facts) {
    const spent = FAULTS.reduce((all, state) => all + facts.totals[state], 0);
    if (spent < 0.02 * facts.all) return null;
    const top = leader(facts, FAULTS);
    return { weight: 0.5 + 2 * spent / facts.all, text: html`Threads waited for pages of memory or files for ${time(spent)}, ${percent(spent, facts.all)} of their time, most of it in ${name(top?.name ?? "?")}.` };
}

function system(facts) {
    const spent = facts.totals[1] + facts.totals[2] + facts.totals[11];
    if (spent < 0.25 * facts.cpu || spent < 0.01 * facts.all) return null;
    const top = leader(facts, [1, 2, 11]);
    return { weight: 0.5 + 0.6 * spent / facts.cpu, text: html`${percent(spent, facts.cpu)} of the CPU time is the kernel's, most of it under ${name(top?.name ?? "?")}.` };
}

/** One thread with nearly all CPU time among many. */
function crowding({ recording, sums, cpu }) {
    const cpuOf = (thread) => ON_CPU.reduce((all, state) => all + sums.byThread[thread * recording.n_columns + state], 0);
    const each = recording.threads.map((_, thread) => ({ thread, cpu: cpuOf(thread) })).sort((a, b) => b.cpu - a.cpu);
    const running = each.filter((one) => one.cpu > 0.01 * cpu).length;
    if (each.length < 3 || !cpu || each[0].cpu < 0.8 * cpu) return null;
    return { weight: 0.7, text: html`One of ${each.length} threads, ${name(recording.threadNames[each[0].thread])}, has ${percent(each[0].cpu, cpu)} of the CPU time${running > 1 ? "" : "; the others hardly ran"}.` };
}
