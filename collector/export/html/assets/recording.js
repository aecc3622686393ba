// What was recorded: pieces sorted by thread and time, the tree of stacks, and sums of them.
//
// A selection is { from, to, threads }: nanoseconds since the start, half open, or null for all of it; threads as a Set of
// their numbers, or null. It selects what er_print's filter selects: packets by their time stamps.

import { N_STATES, ON_CPU } from "page/states";

export const ALL = { from: null, to: null, threads: null };

export class Recording {
    constructor(about) {
        const { columns } = about;
        Object.assign(this, about, columns);
        this.n = this.leaf.length;
        this.nNodes = this.parents.length + 1; // node 0 is the root
        this.parent = new Int32Array(this.nNodes);
        this.parent.set(this.parents, 1);
        this.instruction = new Int32Array(this.nNodes).fill(-1);
        this.instruction.set(this.instructions, 1);
        this.start = startsOf(this.counts);
        this.time = timesOf(this);
        this.scale = Float64Array.from(this.experiments, (one) => one.interval_us);
        this.begin = this.experiments.reduce((first, one) => Math.min(first, one.begin_ns), 0);
        this.end = this.experiments.reduce((last, one) => Math.max(last, one.end_ns), Math.max(this.begin + 1, latest(this)));
        this.threadNames = this.threads.map(([experiment, number, tid, name]) => {
            const whose = this.experiments.length > 1 ? `${experiment + 1}.${number}` : `${number}`;
            return name ? `${whose} ${name}` : `${whose} (${tid})`;
        });
        this.counted = new Uint8Array(this.n_columns + 1);
        this.metrics.forEach((one) => one.states.forEach((state) => state < this.n_columns && (this.counted[state] = 1)));
        [this.leaves, this.leafNumber] = numbered(this.leaf, this.nNodes);
        this._known = new Map();
    }

    get nThreads() {
        return this.threads.length;
    }

    /** Something computed once, by a name. */
    once(key, make) {
        if (!this._known.has(key)) this._known.set(key, make());
        return this._known.get(key);
    }

    metric(command) {
        return this.metrics.find((one) => one.command === command);
    }

    /** Microseconds of each tick, or 1 where a column counts something else. */
    unitOf(thread, column) {
        return column < N_STATES ? this.scale[this.threads[thread][0]] : 1;
    }

    /** From where to where the pieces of a thread are selected. */
    range(thread, selection) {
        const first = this.start[thread];
        const end = this.start[thread + 1];
        if (selection.threads && !selection.threads.has(thread)) return [first, first];
        return [selection.from === null ? first : lowerBound(this.time, selection.from, first, end),
            selection.to === null ? end : lowerBound(this.time, selection.to, first, end)];
    }

    /** Sums over what is selected, in one pass: by thread and column, by leaf and column; and which leaves occur. */
    sums(selection) {
        const width = this.n_columns;
        const byThread = new Float64Array(this.nThreads * width);
        const byLeaf = new Float64Array(this.leaves.length * width);
        const { column, amount, latency, leafNumber, latency_column: late } = this;
        for (let thread = 0; thread < this.nThreads; thread++) {
            const [begin, end] = this.range(thread, selection);
            const scale = this.unitOf(thread, 0);
            const row = thread * width;
            for (let i = begin; i < end; i++) {
                const c = column[i];
                const value = c < N_STATES ? amount[i] * scale : amount[i];
                const leaf = leafNumber[i] * width;
                byThread[row + c] += value;
                byLeaf[leaf + c] += value;
                if (latency[i]) {
                    byThread[row + late] += latency[i];
                    byLeaf[leaf + late] += latency[i];
                }
            }
        }
        const totals = new Float64Array(width);
        for (let i = 0, c = 0; i < byThread.length; i++, c = c + 1 === width ? 0 : c + 1) totals[c] += byThread[i];
        return { byThread, byLeaf, totals };
    }

    /** The sums of everything. */
    get allSums() {
        return this.once("all", () => this.sums(ALL));
    }

    /** What some columns are for each node of the tree as a leaf, of sums. */
    weights(sums, columns) {
        const own = new Float64Array(this.nNodes);
        const width = this.n_columns;
        this.leaves.forEach((node, leaf) => {
            for (const column of columns) own[node] += sums.byLeaf[leaf * width + column];
        });
        return own;
    }

    /** Which nodes are leaves of stacks that anything counts. */
    occurs(sums) {
        const found = new Uint8Array(this.nNodes);
        const width = this.n_columns;
        this.leaves.forEach((node, leaf) => {
            for (let column = 0; column < width; column++) if (this.counted[column] && sums.byLeaf[leaf * width + column]) found[node] = 1;
        });
        return found;
    }

    /** When each piece of time began and ended (ns); no two of a thread at once. As `report/latency` lays them. */
    get spans() {
        return this.once("spans", () => {
            const begins = new Float64Array(this.n);
            const ends = new Float64Array(this.n);
            for (let thread = 0; thread < this.nThreads; thread++) {
                const tick = this.unitOf(thread, 0) * 1000;
                let limit = Infinity;
                for (let i = this.start[thread + 1] - 1; i >= this.start[thread]; i--) {
                    const length = this.column[i] < N_STATES ? this.amount[i] * tick : 0;
                    ends[i] = Math.min(this.time[i], limit);
                    begins[i] = ends[i] - length;
                    if (length) limit = begins[i];
                }
            }
            return { begins, ends };
        });
    }

    /** The threads, those with the most CPU time first. */
    get busiest() {
        return this.once("busiest", () => {
            const { byThread } = this.allSums;
            const cpu = (thread) => sum(ON_CPU.map((state) => byThread[thread * this.n_columns + state]));
            const all = (thread) => sum([...byThread.subarray(thread * this.n_columns, (thread + 1) * this.n_columns)]);
            const known = this.threads.map((_, thread) => ({ thread, cpu: cpu(thread), all: all(thread) }));
            return known.sort((a, b) => b.cpu - a.cpu || b.all - a.all || a.thread - b.thread)
                .filter((one) => this.counts[one.thread] > 0).map((one) => one.thread);
        });
    }

    /** The piece of a thread that a time lies in; -1 for none. */
    pieceAt(thread, time) {
        const { begins, ends } = this.spans;
        let at = lowerBound(ends, time, this.start[thread], this.start[thread + 1]);
        while (at < this.start[thread + 1] && (ends[at] <= time || ends[at] === begins[at])) at++;
        return at < this.start[thread + 1] && begins[at] <= time ? at : -1;
    }

    /** The functions of a piece's stack, leaf first. */
    stackOf(piece) {
        const found = [];
        for (let node = this.leaf[piece]; node; node = this.parent[node]) {
            found.push(this.functions[this.function_of[this.instruction[node]]]);
        }
        return found;
    }
}

function startsOf(counts) {
    const start = new Int32Array(counts.length + 1);
    for (let i = 0; i < counts.length; i++) start[i + 1] = start[i] + counts[i];
    return start;
}

function timesOf({ between, start, firsts, counts, leaf }) {
    const time = new Float64Array(leaf.length);
    for (let thread = 0; thread < counts.length; thread++) {
        let now = firsts[thread];
        for (let i = start[thread]; i < start[thread + 1]; i++) time[i] = now += between[i];
    }
    return time;
}

/** The nodes that are leaves of pieces, and for each piece the number of its own among them. */
function numbered(leaf, nNodes) {
    const numberOf = new Int32Array(nNodes).fill(-1);
    const leaves = [];
    const numbers = new Int32Array(leaf.length);
    for (let i = 0; i < leaf.length; i++) {
        if (numberOf[leaf[i]] < 0) numberOf[leaf[i]] = leaves.push(leaf[i]) - 1;
        numbers[i] = numberOf[leaf[i]];
    }
    return [Int32Array.from(leaves), numbers];
}

function latest({ start, time }) {
    let found = 0;
    for (let thread = 0; thread + 1 < start.length; thread++) {
        if (start[thread + 1] > start[thread]) found = Math.max(found, time[start[thread + 1] - 1] + 1);
    }
    return found;
}

/** The first place between two of a sorted column whose value is not below `value`. */
export function lowerBound(values, value, begin, end) {
    while (begin < end) {
        const middle = (begin + end) >> 1;
        if (values[middle] < value) begin = middle + 1;
        else end = middle;
    }
    return begin;
}

export const sum = (values) => values.reduce((a, b) => a + b, 0);

/** What er_print is asked for the same selection. */
export function filterOf(recording, selection) {
    const parts = [];
    if (selection.from !== null) parts.push(`(TSTAMP >= ${Math.max(0, selection.from)})`);
    if (selection.to !== null) parts.push(`(TSTAMP < ${Math.max(0, selection.to)})`);
    if (selection.threads) {
        const each = [...selection.threads].sort((a, b) => a - b).map((thread) => {
            const [experiment, number] = recording.threads[thread];
            const one = `(THRID == ${number})`;
            return recording.experiments.length > 1 ? `(${one} && (EXPID == ${experiment + 1}))` : one;
        });
        parts.push(each.length > 1 ? `(${each.join(" || ")})` : each[0] ?? "(THRID == 0)");
    }
    return parts.join(" && ");
}
