// The tables: figures are er_print's, to the digit, of what is selected.

import { html, useEffect, useMemo, useState } from "page/ui";
import { Table } from "page/table";
import { treeOf, weigh, itemRows, occurring, neighbours } from "page/tree";
import { amount, share, percentOf, told } from "page/figures";
import { STATES, N_STATES, ORDER, colourOf } from "page/states";

const number = (key, title, value, text, hint) => ({ key, title, value, text, isNumber: true, hint });

function figures(metric, total) {
    return (key, title, hint) => [
        number(key, title, (row) => row[key], (row) => amount(row[key], metric.unit), hint),
        number(`${key}%`, "%", (row) => row[key], (row) => share(percentOf(row[key], total)), `${hint} in percent of all`)];
}

/** Functions, lines or objects; one that is opened is shown between its callers and callees. */
export function Items({ recording, group, title, metric, weights, sums, chosen, onChoose, height }) {
    const tree = useMemo(() => treeOf(recording, group, false), [recording, group]);
    const found = useMemo(() => {
        const weighed = weigh(tree, weights);
        const occurs = occurring(tree, recording.occurs(sums));
        return { weighed, occurs, rows: itemRows(tree, weighed, occurs), total: weighed.whole[0] };
    }, [tree, weights, sums]);
    const columns = useMemo(() => {
        const both = figures(metric, found.total);
        return [...both("exclusive", "Exclusive", `${metric.title} of the ${group} itself`),
            ...both("inclusive", "Inclusive", `${metric.title} of the ${group} and what it calls`),
            { key: "name", title: "Name", value: (row) => row.name },
            ...(group === "function" ? [{ key: "object", title: "Object", value: (row) => row.object ?? "" }] : [])];
    }, [metric, found.total, group]);
    const rows = useMemo(() => {
        const named = found.rows.map((row) => (group === "function" ? { ...row, object: recording.objects[recording.object_of[row.item]] } : row));
        return [{ item: -1, name: "<Total>", exclusive: found.total, inclusive: found.total, role: "total" }, ...named];
    }, [found, group]);
    const open = chosen !== null && found.rows.some((row) => row.item === chosen) ? chosen : null;
    return html`<div class="items">
        <${Table} label=${`${title} by ${metric.title}`} columns=${columns} rows=${rows} pinned=${1} height=${open === null ? height : Math.max(200, height * 0.5)}
            onOpen=${(row) => onChoose(row.item < 0 || row.item === open ? null : row.item)} isChosen=${(row) => row.item === open} />
        ${open === null ? html`<p class="under">${rows.length === 1 ? `No ${group} was met in what is selected.`
            : `${(rows.length - 1).toLocaleString("en")} ${group}${rows.length === 2 ? "" : "s"}. Enter or a click on one shows its callers and callees; a heading sorts.`}</p>`
            : html`<${Neighbours} tree=${tree} found=${found} item=${open} metric=${metric} onChoose=${onChoose} height=${height * 0.45} />`}
    </div>`;
}

function Neighbours({ tree, found, item, metric, onChoose, height }) {
    const { callers, callees, self } = useMemo(() => neighbours(tree, found.weighed, found.occurs, item), [tree, found, item]);
    const rowsOf = (pairs) => [...pairs].map(([one, value]) => ({ item: one, value, name: one < 0 ? "<Total>" : tree.names[one] }));
    const whole = [...callers.values()].reduce((a, b) => a + b, 0);
    const columns = [number("value", "Attributed", (row) => row.value, (row) => amount(row.value, metric.unit), `${metric.title} attributed`),
        number("value%", "%", (row) => row.value, (row) => share(percentOf(row.value, whole)), "in percent of the function's"),
        { key: "name", title: "Name", value: (row) => row.name }];
    const go = (row) => row.item >= 0 && onChoose(row.item);
    return html`<section class="neighbours" aria-label="Callers and callees">
        <h3><bdi class="name">${tree.names[item]}</bdi> <span>${amount(whole, metric.unit)}, itself ${amount(self, metric.unit)}</span>
            <button onClick=${() => onChoose(null)}>Close</button></h3>
        <div><div><h4>Called by</h4><${Table} label="Callers" columns=${columns} rows=${rowsOf(callers)} onOpen=${go} height=${height} /></div>
        <div><h4>Calls</h4>${callees.size ? html`<${Table} label="Callees" columns=${columns} rows=${rowsOf(callees)} onOpen=${go} height=${height} />`
            : html`<p class="empty">It calls nothing.</p>`}</div></div></section>`;
}

/** Threads, with what they did as a bar; a click selects one. */
export function Threads({ recording, metric, sums, selection, onSelect, height }) {
    const width = recording.n_columns;
    const rows = useMemo(() => {
        const found = recording.threads.map(([experiment, thread, tid], i) => {
            const mine = sums.byThread.subarray(i * width, (i + 1) * width);
            return { thread: i, value: valueOf(metric, mine), name: `Process ${experiment + 1}, Thread ${thread}`, tid, mine,
                shown: recording.threadNames[i], process: recording.experiments[experiment].program,
                isThere: recording.metrics.some((one) => one.states.some((state) => mine[state])) };
        }).filter((row) => row.isThere);
        const total = { thread: -1, value: valueOf(metric, sums.totals), name: "<Total>", tid: "", mine: sums.totals, shown: "", process: "", role: "total" };
        return [total, ...found];
    }, [recording, metric, sums]);
    const most = rows.slice(1).reduce((all, row) => Math.max(all, timeOf(row.mine)), 1);
    const columns = useMemo(() => [
        number("value", metric.title, (row) => row.value, (row) => amount(row.value, metric.unit), metric.title),
        number("value%", "%", (row) => row.value, (row) => share(percentOf(row.value, rows[0].value)), "in percent of all"),
        { key: "name", title: "Thread", value: (row) => row.name, isShort: true },
        { key: "shown", title: "Name", value: (row) => row.shown },
        { key: "process", title: "Program", value: (row) => row.process },
        { key: "tid", title: "TID", value: (row) => row.tid, isNumber: true, text: (row) => String(row.tid) },
        { key: "states", title: "Time by state", value: (row) => timeOf(row.mine), text: (row) => statesText(row.mine), isNumber: true,
            show: (row) => html`<${Bar} totals=${row.mine} of=${row.thread < 0 ? timeOf(row.mine) : most} />`,
            hint: "all time of the thread, by microstate" }], [metric, rows, most]);
    const toggle = (row) => {
        if (row.thread < 0) return onSelect({ ...selection, threads: null });
        const isIt = selection.threads?.size === 1 && selection.threads.has(row.thread);
        return onSelect({ ...selection, threads: isIt ? null : new Set([row.thread]) });
    };
    return html`<div class="items"><${Table} label=${`Threads by ${metric.title}`} columns=${columns} rows=${rows} pinned=${1} height=${height}
        onOpen=${toggle} isChosen=${(row) => Boolean(selection.threads?.has(row.thread))} />
        <p class="under">${rows.length > 1 ? "Enter or a click selects a thread: everything is of it alone then." : "No thread has any time in what is selected."}</p></div>`;
}

const valueOf = (metric, totals) => metric.states.reduce((all, state) => all + totals[state], 0);
const timeOf = (totals) => { let all = 0; for (let state = 0; state < N_STATES; state++) all += totals[state]; return all; };
const statesText = (totals) => ORDER.filter((state) => totals[state]).map((state) => `${STATES[state][0]} ${told(totals[state], "us")}`).join(", ");

/** A bar of time by state, as long as its part of `of`. */
export function Bar({ totals, of, tall = false }) {
    const parts = ORDER.filter((state) => totals[state] > 0);
    return html`<div class=${tall ? "bar tall" : "bar"} role="img" aria-label=${statesText(totals) || "nothing"}>
        ${parts.map((state) => html`<i title=${`${STATES[state][0]}: ${told(totals[state], "us")}`}
            style=${{ width: `${100 * totals[state] / (of || 1)}%`, background: colourOf(state) }}></i>`)}</div>`;
}
