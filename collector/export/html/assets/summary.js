// What ran, where its time went, the first things worth knowing, and how good the data is.

import { html, useMemo } from "page/ui";
import { findings } from "page/findings";
import { Bar } from "page/tables";
import { Timeline } from "page/timeline";
import { STATES, N_STATES, ORDER, ON_CPU, colourOf } from "page/states";
import { duration, percent, seconds, told } from "page/figures";

const many = (n, one, more) => `${n.toLocaleString("en")} ${n === 1 ? one : more}`;
const unbroken = (text) => text.replace(/ /g, "\u00a0");
const UNKNOWN = 1; // the function of code that is in no load object

export function Summary(props) {
    const { recording, sums, counted } = props;
    const totals = sums.totals;
    const all = ORDER.reduce((found, state) => found + totals[state], 0);
    const found = useMemo(() => findings(recording, counted, sums), [recording, counted, sums]);
    return html`<div class="summary">
        <section aria-labelledby="where"><h2 id="where">Where the time went</h2>
            ${all ? html`<${Bar} totals=${totals} of=${all} tall />` : html`<p class="empty">No time was recorded${counted.from !== null || counted.threads ? " in what is selected" : ""}.</p>`}
            <ul class="legend" hidden=${!all}>${ORDER.filter((state) => state < 10 ? all || totals[state] : totals[state]).map((state) => html`<li class=${totals[state] ? "" : "faint"} title=${STATES[state][1]}>
                <i class="chip" style=${{ background: colourOf(state) }}></i><span>${STATES[state][0]}</span>
                <b class=${totals[state] ? "" : "zero"}>${seconds(totals[state])}</b><em>${percent(totals[state], all)}</em></li>`)}</ul></section>
        <div class="two">
            <section aria-labelledby="first"><h2 id="first">Worth knowing</h2>
                <ol class="findings">${found.map((one) => html`<li>${one}</li>`)}</ol></section>
            <${About} ...${props} />
        </div>
        <section aria-labelledby="threads"><h2 id="threads">Threads</h2><${Timeline} ...${props} height=${420} /></section>
        <${Quality} ...${props} />
    </div>`;
}

function About({ recording, sums }) {
    const founders = recording.experiments.filter((one, i, every) => i === 0 || every[i - 1].group !== one.group);
    const first = recording.experiments[0];
    const span = recording.end - recording.begin;
    const cpu = ON_CPU.reduce((all, state) => all + sums.totals[state], 0);
    const line = (name, value) => html`<dt>${name}</dt><dd><bdi>${value}</bdi></dd>`;
    return html`<section aria-labelledby="about"><h2 id="about">What ran</h2><dl class="about">
        ${founders.slice(0, 4).map((one) => line("command", one.command || "(attached)"))}
        ${line("when", `${first.started} UTC, for ${unbroken(duration(span))}`)}
        ${line("where", `${first.host}, ${many(first.n_cpus, "CPU", "CPUs")}, ${first.os}`)}
        ${line("what", `${many(recording.experiments.length, "process", "processes")}, ${many(recording.nThreads, "thread", "threads")}, ${cpu ? unbroken(told(cpu, "us")) : "no time"} on CPU`)}
        ${line("how", `${first.collector}, a tick is ${(first.interval_us / 1000).toFixed(3)} ms`)}
        ${founders.slice(0, 4).map((one) => line("experiment", one.path))}</dl></section>`;
}

/** Parts of the time whose stacks are not whole, what recorders remarked, and what is synthetic. */
function Quality({ recording, sums }) {
    const parts = useMemo(() => cut(recording, sums), [recording, sums]);
    const unseen = recording.aggregations.filter((one) => one.synthetic.length).map((one) => one.name);
    const remarks = recording.remarks;
    const words = { error: "Error", warning: "Warning", remark: "Note" };
    const line = (level, text) => html`<li class=${level}><b>${words[level]}</b> <span>${text}</span></li>`;
    const isFine = !remarks.some((one) => one.level !== "remark") && parts.cut + parts.none < parts.all / 100;
    return html`<section aria-labelledby="quality"><h2 id="quality">How good the data is</h2>
        <ul class="quality">
            <li class=${isFine ? "fine" : "warning"}><b>${isFine ? "Good" : "Mind"}</b> <span>${many(recording.n, "packet", "packets")}${parts.all
                ? `; stacks are whole for ${wholeness(parts)}` : ""}</span></li>
            ${unseen.length ? line("remark", `synthetic parts, which sum up right but were not seen one by one, are in the aggregations ${unseen.join(", ")}`) : null}
            ${remarks.map((one) => line(one.level, one.text))}
        </ul></section>`;
}

function wholeness({ all, cut: short, none }) {
    const part = (time) => (time < all / 2000 ? "less than 0.1 %" : `${(100 * time / all).toFixed(1)} %`);
    const rest = [[short, "cut"], [none, "missing or unknown"]].filter(([time]) => time).map(([time, what]) => `, ${what} for ${part(time)}`);
    return `${short + none > all / 2000 ? part(all - short - none) : "all"} of the time${rest.join("")}`;
}

function cut(recording, sums) {
    const marks = new Set(recording.marks);
    const { parent, instruction, function_of: functions, n_columns: width } = recording;
    const found = { all: 0, cut: 0, none: 0 };
    recording.leaves.forEach((node, leaf) => {
        let time = 0;
        for (let state = 0; state < N_STATES; state++) time += sums.byLeaf[leaf * width + state];
        found.all += time;
        let top = node;
        while (top && parent[top]) top = parent[top];
        if (!node || (top === node && functions[instruction[node]] === UNKNOWN)) found.none += time;
        else if (marks.has(functions[instruction[top]])) found.cut += time;
    });
    return found;
}
