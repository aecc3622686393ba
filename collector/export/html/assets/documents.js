// What er_html took along as documents: code, aggregations, wake-ups, comparisons.

import { html, useLayoutEffect, useMemo, useRef, useState, Choice } from "page/ui";
import { Table } from "page/table";
import { Flame } from "page/flame";
import { withLinks, summedUp } from "page/tree";
import { amount, share, seconds, told, duration } from "page/figures";
import { isDark } from "page/states";

const number = (key, title, value, text, hint) => ({ key, title, value, text, isNumber: true, hint });

/** What figures are of that were summed up before there was a selection. `isByThread`: those of other threads are left out. */
function Whole({ selection, isByThread = false }) {
    const isTime = selection.from !== null || selection.to !== null;
    if (!isTime && !selection.threads) return null;
    const text = !isByThread || !selection.threads ? "Of the whole recording, not of what is selected."
        : isTime ? "Of the threads selected, over the whole recording: not of the time selected." : "Of the threads selected.";
    return html`<p class="whole">${text}</p>`;
}

// -- code

export function Code({ recording, chosen, selection }) {
    const names = recording.code.map((one) => one.name);
    const wanted = chosen === null ? -1 : names.indexOf(recording.functions[chosen]);
    const [own, setOwn] = useState(null);
    const at = own ?? Math.max(0, wanted);
    const one = recording.code[at];
    const [kind, setKind] = useState(null);
    if (!one) return html`<p class="empty">There is no code: neither copies in the experiment's archives nor the files that were recorded were found.</p>`;
    const shown = one[kind] ? kind : ["source", "disasm"].find((each) => hasTime(one[each])) ?? (one.source ? "source" : "disasm");
    const listing = one[shown];
    return html`<div class="code">
        <div class="controls"><${Choice} id="code-function" label="Function" value=${String(at)} options=${names.map((name, i) => [String(i), name])} onChange=${(to) => setOwn(Number(to))} />
        <${Choice} id="code-kind" label="Show" value=${shown} onChange=${setKind}
            options=${[...(one.source ? [["source", "Source"]] : []), ...(one.disasm ? [["disasm", "Instructions"]] : [])]} /></div>
        <${Whole} selection=${selection} />
        ${listing.notes.map((note) => html`<p class="note">${note}</p>`)}
        <p class="under">${listing.titles[0]}</p>
        <${Listing} listing=${listing} label=${`${shown === "source" ? "Source" : "Instructions"} of ${one.name}`} /></div>`;
}

/** Whether any of its lines has time of its own: what was inlined into a function has its lines elsewhere. */
const hasTime = (listing) => Boolean(listing?.columns.find((one) => one.values)?.values.some((value, i) => value && listing.has_code[i]));

function Listing({ listing, label }) {
    const own = useRef();
    useLayoutEffect(() => {
        const hot = own.current.querySelector("tr.hot");
        own.current.scrollTop = hot ? hot.offsetTop - own.current.clientHeight / 3 : 0;
    }, [listing]);
    const metrics = listing.columns.filter((one) => one.values);
    const sums = useMemo(() => metrics.map((one) => headingSums(listing, one.values)), [listing]);
    const [hasOrigins, hasLines] = [listing.origins.some(Boolean), listing.numbers.some(Boolean)];
    const { texts } = listing.columns.at(-1);
    const hasSource = texts.some((text, i) => listing.kinds[i] === "line" && text.trim()); // else lines between instructions are empty
    const isShown = (i) => hasSource || listing.kinds[i] !== "line" || listing.has_code[i];
    const figure = (i, one, place) => {
        const value = sums[place].get(i) ?? (listing.has_code[i] ? one.values[i] : null);
        const text = value === null ? "" : amount(value, one.unit);
        return html`<td class=${text === "0." ? "n zero" : value ? "n" : "n mute"}>${text}</td>`;
    };
    return html`<div class="listing" ref=${own} tabindex="0" role="group" aria-label=${label}><table aria-label=${label}>
        <thead><tr>${metrics.map((one) => html`<th scope="col" class="n">${one.title}</th>`)}
            ${hasLines ? html`<th scope="col" class="n number">Line</th>` : null}
            ${hasOrigins ? html`<th scope="col">Inlined from</th>` : null}<th scope="col">Code</th></tr></thead>
        <tbody>${texts.map((text, i) => isShown(i) && html`<tr class=${`${listing.kinds[i]} ${listing.roles[i] ?? ""}`}>
            ${metrics.map((one, place) => figure(i, one, place))}
            ${hasLines ? html`<td class="n mute">${listing.numbers[i] || ""}</td>` : null}
            ${hasOrigins ? html`<td class="origin mute" title=${listing.origins[i]}><bdi>${listing.origins[i]}</bdi></td>` : null}
            <td class="t"><bdi>${text}</bdi></td></tr>`)}</tbody></table></div>`;
}

/** By row of a heading what all rows below it have together; nothing where one heading has all. */
function headingSums({ kinds, has_code: hasCode }, values) {
    const found = new Map();
    let heading = -1;
    kinds.forEach((kind, i) => {
        if (kind === "function") found.set(heading = i, 0);
        if (heading >= 0 && hasCode[i]) found.set(heading, found.get(heading) + values[i]);
    });
    return found.size > 1 ? found : new Map();
}

// -- aggregations

/** Recorded by key alone, without times: a selection of threads chooses among keys with a `tid`, one of a time nothing. */
export function Aggregations({ recording, selection }) {
    const { threads } = selection;
    const tids = useMemo(() => threads && new Set([...threads].map((thread) => recording.threads[thread][2])), [recording, threads]);
    const ofThem = (entries, place) => (tids && place >= 0 ? entries.filter((entry) => tids.has(Number(entry.key[place]))) : entries);
    return html`<div class="aggregations">
        ${recording.wakers ? html`<${Wakers} wakers=${recording.wakers} tids=${tids} selection=${selection} />` : null}
        ${recording.aggregations.map((one) => {
            const place = one.keys.indexOf("tid");
            const synthetic = ofThem(one.synthetic, place);
            const [n, all] = [one.recorded.length + one.synthetic.length, one.n_recorded + one.n_synthetic];
            return html`<section key=${one.name}><h2>${one.name}</h2><p class="under"><code>${one.expression}</code></p>
                <${Whole} selection=${selection} isByThread=${place >= 0} />
                <${Entries} one=${one} entries=${ofThem(one.recorded, place)} />
                ${synthetic.length ? html`<h3>synthetic: sums up right, not seen one by one</h3><${Entries} one=${one} entries=${synthetic} />` : null}
                <${Largest} n=${n} all=${all} what="keys, those with the largest values" />
                ${one.dropped ? html`<p class="under">${count(one.dropped, "value is", "values are")} of keys for which the recording had no room.</p>` : null}</section>`;
        })}</div>`;
}

/** Says so where the page does not have all. */
function Largest({ n, all, what }) {
    return n < all ? html`<p class="under">The page has ${n.toLocaleString("en")} of ${all.toLocaleString("en")} ${what}.</p>` : null;
}

const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

const keyText = (key) => key.map((part) => (Array.isArray(part) ? part.join(" ← ") : String(part))).join(" · ") || "all";
const isTime = (one) => !["count", "variance"].includes(one.function) && !["1", "switches"].includes(String(one.value ?? ""));
const valueText = (one, n) => (isTime(one) ? duration(n * one.divisor) : Number(n).toLocaleString("en"));

function Entries({ one, entries }) {
    const value = (n) => valueText(one, n);
    if (!entries.length) return html`<p class="empty">nothing</p>`;
    if (entries[0].buckets) return html`<div class="histograms">${entries.map((entry) => html`<${Histogram} entry=${entry} one=${one} />`)}</div>`;
    const most = entries.reduce((all, entry) => Math.max(all, Number(entry.value)), 1);
    const rows = entries.map((entry) => ({ name: keyText(entry.key), value: Number(entry.value) }));
    const columns = [number("value", `${one.function}(${one.value ?? ""})`, (row) => row.value, (row) => value(row.value)),
        number("bar", "", (row) => row.value, (row) => value(row.value)), { key: "name", title: one.keys.join(", ") || "key", value: (row) => row.name }];
    columns[1].show = (row) => html`<div class="bar" aria-hidden="true"><i class="plain" style=${{ width: `${100 * row.value / most}%` }}></i></div>`;
    columns[1].title = "share";
    return html`<${Table} label=${one.name} columns=${columns} rows=${rows} height=${300} />`;
}

/** With a row for each run of empty buckets between others, which are left out of what was recorded. */
const withGaps = (buckets) => buckets.flatMap((bucket, i) => {
    const end = i ? buckets[i - 1].max : null;
    return end !== null && bucket.min !== null && bucket.min > end + 1 ? [{ min: end + 1, count: 0 }, bucket] : [bucket];
});

function Histogram({ entry, one }) {
    const value = (n) => valueText(one, n);
    const most = entry.buckets.reduce((all, bucket) => Math.max(all, bucket.count), 1);
    return html`<table class="histogram"><caption><bdi>${keyText(entry.key)}</bdi></caption>
        <thead><tr><th scope="col" class="n">from</th><th scope="col"><span class="voice">distribution</span></th><th scope="col" class="n">count</th></tr></thead>
        <tbody>${withGaps(entry.buckets).map((bucket) => html`<tr><td class="n">${bucket.min === null ? `< ${value(bucket.max + 1)}` : value(bucket.min)}</td>
            <td><div class="bar" aria-hidden="true"><i class="plain" style=${{ width: `${100 * bucket.count / most}%` }}></i></div></td>
            <td class="n">${bucket.count.toLocaleString("en")}</td></tr>`)}</tbody></table>`;
}

function Wakers({ wakers, tids, selection }) {
    const rows = useMemo(() => wakers.rows.filter((row) => !tids || tids.has(row[5]) || tids.has(row[6]))
        .map(([times, blocked, state, waker, woken]) => ({ times, blocked, state, waker, name: woken })), [wakers, tids]);
    const columns = [number("blocked", "Blocked, s", (row) => row.blocked, (row) => (row.blocked / 1e9).toFixed(3)),
        number("times", "Wake-ups", (row) => row.times, (row) => row.times.toLocaleString("en")),
        number("mean", "Average", (row) => row.blocked / Math.max(row.times, 1), (row) => duration(row.blocked / Math.max(row.times, 1))),
        { key: "state", title: "State", value: (row) => row.state }, { key: "waker", title: "Waker", value: (row) => row.waker },
        { key: "name", title: "Woken", value: (row) => row.name }];
    return html`<section><h2>Who ended whose waits</h2><${Whole} selection=${selection} isByThread />
        <${Table} label="Wake-ups" columns=${columns} rows=${rows} height=${320} />
        <${Largest} n=${wakers.rows.length} all=${wakers.n} what="rows, those with the longest waits" />
        ${wakers.unseen_s ? html`<p class="under">${wakers.unseen_s.toFixed(3)} s of waits were not seen one by one: who ended them is not known.</p>` : null}</section>`;
}

// -- comparison

export function Comparison(props) {
    const { functions, tree } = props.recording.compared;
    const hasTimes = [[functions, "i"], [functions, "e"], [tree, "a"]].every(([document, flavor]) => parts(document, flavor, 2).b);
    return hasTimes ? html`<${Sides} ...${props} />` : html`<p class="empty">There is nothing to compare: no times were recorded.</p>`;
}

function Sides({ recording, selection, height }) {
    const { compared } = recording;
    const [side, setSide] = useState("2");
    const [kind, setKind] = useState("i");
    const other = Number(side);
    const sides = compared.groups.slice(1).map((name, i) => [String(i + 2), name]);
    const table = useMemo(() => sideBySide(compared.functions, kind, other), [compared, kind, other]);
    const graph = useMemo(() => differential(compared.tree, other), [compared, other]);
    const colour = useMemo(() => (node) => shade(graph, node), [graph]);
    const unit = table.unit;
    const difference = (row) => (unit === "us" ? signed(row.b - row.a) : `${row.b >= row.a ? "+" : ""}${row.b - row.a}`);
    const columns = [number("a", compared.groups[0], (row) => row.a, (row) => amount(row.a, unit)),
        number("b", compared.groups[other - 1], (row) => row.b, (row) => amount(row.b, unit)),
        number("d", "Difference", (row) => Math.abs(row.b - row.a), difference, "sorted by its size"),
        ...(table.hasIntervals ? [{ ...number("interval%", "95 % interval", (row) => row.low, (row) => `${signed(row.low)} .. ${signed(row.high)}${row.isFaint ? " ~" : ""}`, "~: differs significantly neither in its time nor in its share of all") }] : []),
        { key: "name", title: "Name", value: (row) => row.name }];
    return html`<div class="comparison">
        <div class="controls">${sides.length > 1 ? html`<${Choice} id="cmp-side" label=${`${compared.groups[0]} and`} value=${side} options=${sides} onChange=${setSide} />` : null}
            <${Choice} id="cmp-kind" label="Table of" value=${kind} options=${[["i", "inclusive"], ["e", "exclusive"]]} onChange=${setKind} />
            <p class="scale"><i class="less"></i> less in ${compared.groups[other - 1]} <i class="more"></i> more <i class="same"></i> not significant</p></div>
        <${Whole} selection=${selection} />
        <p class="under">As wide as the time of both together. Figures, intervals and marks are those of er_print -compare delta: what has no ~ differs in its time, or in its share of all.</p>
        <${Flame} tree=${graph} buckets=${graph.buckets} unit=${graph.unit} title="Comparison" pattern="" colour=${colour}
            about=${(node) => aboutNode(graph, node, compared.groups, other)} />
        <${Table} label="Functions compared" columns=${columns} rows=${table.rows} pinned=${1} initial="d" height=${Math.max(220, height * 0.5)} /></div>`;
}

const signed = (us) => (us ? `${us > 0 ? "+" : "−"}${seconds(Math.abs(us))}` : "+0.");

/** The columns of a document of which keys end in @1, @2 and so on. */
function parts(document, flavor, other) {
    const pick = (suffix) => document.columns.find((one) => one.values && one.key.startsWith(flavor) && one.key.endsWith(suffix));
    return { a: pick("@1"), b: pick(`@${other}`), interval: pick(`@${other}.difference`), names: document.columns.at(-1).texts };
}

function sideBySide(document, flavor, other) {
    const { a, b, interval, names } = parts(document, flavor, other);
    const rows = names.map((name, i) => ({ name, a: a.values[i], b: b.values[i], low: interval?.values[i] ?? 0, high: interval?.high[i] ?? 0,
        isFaint: Boolean(interval) && !interval.is_significant[i], role: i ? "" : "total" }));
    return { rows, unit: a.unit, hasIntervals: Boolean(interval) };
}

/** The tree of calls of both, as the flame graph wants trees: rows come depth first, so parents come before children. */
function differential(document, other) {
    const { a, b, interval, names } = parts(document, "a", other);
    const n = names.length;
    const parent = new Int32Array(n);
    const path = [];
    document.depths.forEach((depth, i) => { parent[i] = depth ? path[depth - 1] : 0; path[depth] = i; });
    const known = new Map();
    const item = Int32Array.from(names, (name) => known.get(name) ?? (known.set(name, known.size), known.size - 1));
    const whole = Float64Array.from(names, (_, i) => a.values[i] + b.values[i]);
    const own = whole.slice();
    for (let node = n - 1; node > 0; node--) own[parent[node]] -= whole[node];
    const tree = withLinks({ n, parent, item, nodeOf: null });
    return { ...tree, names: [...known.keys()], group: "function", a, b, interval, unit: a.unit, buckets: [{ name: "", own, whole }] };
}

function shade({ a, b, interval }, node) {
    const [one, two] = [a.values[node] / (a.values[0] || 1), b.values[node] / (b.values[0] || 1)];
    const isSame = interval && !interval.is_significant[node];
    const dark = isDark();
    if (isSame || one === two && a.values[node] === b.values[node]) return dark ? "#8b939e" : "#c9ced6";
    const change = (b.values[node] - a.values[node]) / Math.max(a.values[node], b.values[node], 1);
    const light = (dark ? 78 : 88) - (dark ? 16 : 22) * Math.min(1, Math.abs(change));
    return change > 0 ? `hsl(8 ${dark ? 75 : 85}% ${light}%)` : `hsl(212 ${dark ? 70 : 80}% ${light}%)`;
}

function aboutNode({ a, b, interval }, node, groups, other) {
    return html`<dt>${groups[0]}</dt><dd>${told(a.values[node], a.unit)}</dd><dt>${groups[other - 1]}</dt><dd>${told(b.values[node], b.unit)}</dd>
        ${interval ? html`<dt>difference</dt><dd>${signed(interval.values[node])} .. ${signed(interval.high[node])} s${interval.is_significant[node] ? "" : ", not significant"}</dd>` : null}`;
}
