// The page: what is selected rules everything that is shown.

import { html, render, afterFrame, useEffect, useLayoutEffect, useMemo, useRef, useState, onPrint, Choice, Check } from "page/ui";
import { unpack } from "page/columns";
import { Recording, ALL, filterOf } from "page/recording";
import { treeOf, weigh } from "page/tree";
import { Summary } from "page/summary";
import { Flame } from "page/flame";
import { Key, Timeline, Strip } from "page/timeline";
import { Heat } from "page/heat";
import { Items, Threads } from "page/tables";
import { Aggregations, Code, Comparison } from "page/documents";
import { ON_CPU } from "page/states";
import { moment } from "page/figures";

const GROUPS = [["function", "functions"], ["line", "lines"], ["object", "load objects"]];
const FEW = 15;
const REST_MS = 150;

function viewsOf(recording) {
    return [["summary", "Summary"], ["flame", "Flame graph"], ["timeline", "Timeline"], ["functions", "Functions"], ["lines", "Lines"],
        ["objects", "Objects"], ["threads", "Threads"],
        ...(recording.code.length ? [["code", "Code"]] : []),
        ...(recording.aggregations.length || recording.wakers ? [["aggregations", "Aggregations"]] : []),
        ...(recording.compared ? [["comparison", "Comparison"]] : [])];
}

function App({ recording }) {
    const views = useMemo(() => viewsOf(recording), [recording]);
    const [start] = useState(() => remembered(recording, views));
    const [view, setView] = useState(start.view);
    const [selection, setSelection] = useState(start.selection);
    const [counted, setCounted] = useState(start.selection); // what figures are of: the selection, a frame later
    const [range, setRange] = useState({ from: recording.begin, to: recording.end });
    const [command, setCommand] = useState(start.metric);
    const [isFew, setFew] = useState(true);
    const [chosen, setChosen] = useState(null);
    const [theme, setTheme] = useState(document.documentElement.dataset.theme);
    const metric = recording.metric(command) ?? recording.metrics[0] ?? { command: "none", title: "Nothing", states: [], unit: "us" };
    const sums = useMemo(() => (same(counted, ALL) ? recording.allSums : recording.sums(counted)), [recording, counted]);
    const weights = useMemo(() => recording.weights(sums, metric.states), [recording, sums, metric]);
    const height = Math.max(320, window.innerHeight - 262);
    useLayoutEffect(() => afterFrame(() => setCounted(selection)), [selection]);
    useEffect(() => { // changing the address is dear: once the selecting rests
        const keep = setTimeout(() => remember(view, metric.command, selection), REST_MS);
        return () => clearTimeout(keep);
    }, [view, metric, selection]);
    const select = (next) => setSelection((before) => (same(before, next) ? before : next));
    useEffect(() => { // the address may be changed by hand
        const follow = () => {
            const next = remembered(recording, views);
            setView(next.view);
            setCommand(next.metric);
            select(next.selection);
        };
        window.addEventListener("hashchange", follow);
        return () => window.removeEventListener("hashchange", follow);
    }, [recording, views]);
    const shared = { recording, metric, sums, weights, selection, counted, onSelect: select, range, onRange: setRange,
        isFew, onMore: () => setFew((before) => !before) };
    const open = (to) => { setView(to); };
    const before = useRef(theme);
    useEffect(() => onPrint((is) => { // on paper, dark letters on light ground
        const { dataset } = document.documentElement;
        if (is) before.current = dataset.theme;
        dataset.theme = is ? "light" : before.current;
        setTheme(dataset.theme);
    }), []);
    const switchTheme = () => {
        const next = theme === "dark" ? "light" : "dark";
        document.documentElement.dataset.theme = next;
        setTheme(next);
    };
    return html`<div class="app">
        <header><h1><bdi>${recording.title}</bdi></h1>
            <${Choice} id="metric" label="Time" value=${metric.command} onChange=${setCommand}
                options=${recording.metrics.map((one) => [one.command, `${" ".repeat(2 * (one.level ?? 0))}${one.title}`])} />
            <button onClick=${switchTheme} aria-label=${`Use ${theme === "dark" ? "light" : "dark"} colours`}>${theme === "dark" ? "Light" : "Dark"}</button></header>
        <main><${Strip} ...${shared} />
        <${Chosen} ...${shared} />
        <${Tabs} views=${views} view=${view} onView=${open} />
        <div id="panel" role="tabpanel" aria-labelledby=${`tab-${view}`} aria-busy=${selection !== counted} tabindex="-1" key=${view}>
            ${view === "summary" ? html`<${Summary} ...${shared} />` : null}
            ${view === "flame" ? html`<${FlameView} ...${shared} onPick=${(item) => { setChosen(item); open("functions"); }} />` : null}
            ${view === "timeline" ? html`<${Timeline} ...${shared} height=${Math.max(260, height - 250)} />
                <${Key} recording=${recording} /><h2>Heat map</h2><${Heat} ...${shared} />` : null}
            ${view === "functions" ? html`<${Items} ...${shared} group="function" title="Functions" chosen=${chosen} onChoose=${setChosen} height=${height} />` : null}
            ${view === "lines" ? html`<${ItemsOf} ...${shared} group="line" title="Lines" height=${height} />` : null}
            ${view === "objects" ? html`<${ItemsOf} ...${shared} group="object" title="Load objects" height=${height} />` : null}
            ${view === "threads" ? html`<${Threads} ...${shared} height=${height} />` : null}
            ${view === "code" ? html`<${Code} recording=${recording} chosen=${chosen} selection=${counted} />` : null}
            ${view === "aggregations" ? html`<${Aggregations} recording=${recording} selection=${counted} />` : null}
            ${view === "comparison" ? html`<${Comparison} recording=${recording} selection=${counted} height=${height} />` : null}
        </div></main></div>`;
}

function ItemsOf(props) {
    const [chosen, setChosen] = useState(null);
    return html`<${Items} ...${props} chosen=${chosen} onChoose=${setChosen} />`;
}

function Tabs({ views, view, onView }) {
    const own = useRef();
    const keys = (event) => {
        const at = views.findIndex(([key]) => key === view);
        const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: views.length - 1 }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        const [key] = views[(next + views.length) % views.length];
        onView(key);
        requestAnimationFrame(() => own.current.querySelector(`#tab-${key}`).focus());
    };
    useEffect(() => { // by hand: scrollIntoView would have the Tab key go on from there, past all that stands above
        const tab = own.current.querySelector('[aria-selected="true"]')?.getBoundingClientRect();
        const list = own.current.getBoundingClientRect();
        if (tab) own.current.scrollLeft += Math.min(0, tab.left - list.left) || Math.max(0, tab.right - list.right);
    }, [view]);
    return html`<div class="tabs" role="tablist" aria-label="Views" ref=${own} onKeyDown=${keys}>${views.map(([key, text]) => html`
        <button role="tab" id=${`tab-${key}`} aria-selected=${key === view ? "true" : "false"} aria-controls=${key === view ? "panel" : undefined}
            tabindex=${key === view ? 0 : -1} onClick=${() => onView(key)}>${text}</button>`)}</div>`;
}

/** What is selected, and the same for er_print. */
function Chosen({ recording, selection, onSelect }) {
    const isAll = same(selection, ALL);
    const bound = (key, label) => html`<label class="bound" for=${`bound-${key}`}><span>${label}</span>
        <input id=${`bound-${key}`} inputmode="decimal" size="13" value=${selection[key] === null ? "" : (selection[key] / 1e9).toFixed(9)}
            placeholder=${key === "from" ? "start" : "end"} onChange=${(event) => {
                const text = event.target.value.trim().replace(/\s*s$/, "");
                const value = text === "" ? null : Math.round(Number(text) * 1e9);
                if (value === null || Number.isFinite(value)) onSelect({ ...selection, [key]: value });
            }} /></label>`;
    const filter = filterOf(recording, selection);
    return html`<div class="chosen" role="group" aria-label="Selection">
        <span class="bounds">${bound("from", "From")} ${bound("to", "to")} <span>s</span></span>
        ${selection.threads ? html`<span class="threads">${selection.threads.size === 1 ? `thread ${recording.threadNames[[...selection.threads][0]]}` : `${selection.threads.size} threads`}</span>` : null}
        ${isAll ? html`<span class="mute">Everything is shown. Drag in the strip or the timeline to select a time.</span>`
            : html`<button onClick=${() => onSelect(ALL)}>Clear</button><code title="the same in er_print">-filters '${filter}'</code>`}</div>`;
}

function FlameView(props) {
    const { recording, metric, weights, counted, onPick } = props;
    const [group, setGroup] = useState("function");
    const [isFolded, setFolded] = useState(false);
    const [isByThread, setByThread] = useState(false);
    const [pattern, setPattern] = useState("");
    const tree = useMemo(() => treeOf(recording, group, isFolded || group === "object"), [recording, group, isFolded]);
    const buckets = useMemo(() => {
        if (!isByThread) return [{ name: "", ...weigh(tree, weights) }];
        const first = recording.busiest.filter((thread) => !counted.threads || counted.threads.has(thread)).slice(0, FEW);
        const each = first.map((thread) => ({ name: recording.threadNames[thread], is: new Set([thread]) }));
        const others = recording.busiest.filter((thread) => !first.includes(thread) && (!counted.threads || counted.threads.has(thread)));
        const rest = { name: "other threads", is: new Set(others) };
        return [...each, rest].map(({ name, is }) => ({ name, ...weigh(tree, recording.weights(recording.sums({ ...counted, threads: is }), metric.states)) }))
            .filter((one) => one.whole[0] > 0);
    }, [tree, weights, isByThread, counted, metric]);
    return html`<div class="controls">
            <${Choice} id="flame-group" label="By" value=${group} options=${GROUPS} onChange=${setGroup} />
            <${Check} id="flame-fold" label="Fold recursion" value=${isFolded} onChange=${setFolded} />
            <${Check} id="flame-threads" label="By thread" value=${isByThread} onChange=${setByThread} />
            <label class="search" for="flame-search"><span>Search</span><input id="flame-search" type="search" placeholder="regular expression"
                value=${pattern} onInput=${(event) => setPattern(event.target.value)} /></label></div>
        <${Flame} tree=${tree} buckets=${buckets} unit=${metric.unit} title=${metric.title} pattern=${pattern}
            onPick=${group === "function" ? onPick : undefined} />`;
}

const same = (a, b) => a.from === b.from && a.to === b.to && (a.threads === b.threads
    || (a.threads && b.threads && a.threads.size === b.threads.size && [...a.threads].every((one) => b.threads.has(one))));

// -- what the address remembers: a link shows what was seen

function remember(view, metric, selection) {
    const parts = new URLSearchParams({ view, metric });
    if (selection.from !== null) parts.set("from", selection.from);
    if (selection.to !== null) parts.set("to", selection.to);
    if (selection.threads) parts.set("threads", [...selection.threads].join("."));
    try {
        history.replaceState(null, "", `#${parts}`);
    } catch {
        // a place whose address may not change
    }
}

function remembered(recording, views) {
    const parts = new URLSearchParams(location.hash.slice(1));
    const number = (key) => (parts.has(key) && Number.isFinite(Number(parts.get(key))) ? Math.round(Number(parts.get(key))) : null);
    const threads = (parts.get("threads") ?? "").split(".").filter((one) => /^\d+$/.test(one)).map(Number).filter((one) => one < recording.nThreads);
    const view = views.some(([key]) => key === parts.get("view")) ? parts.get("view") : recording.compared ? "comparison" : "summary";
    const { totals } = recording.allSums;
    const hasCpu = ON_CPU.some((state) => totals[state]);
    const wanted = recording.metric(parts.get("metric"))?.command ?? (hasCpu ? "totalcpu" : "total");
    return { view, metric: recording.metric(wanted) ? wanted : recording.metrics[0]?.command ?? "none",
        selection: { from: number("from"), to: number("to"), threads: threads.length ? new Set(threads) : null } };
}

async function main() {
    const element = document.getElementById("data");
    const text = element.textContent;
    element.remove();
    const root = document.documentElement;
    root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const recording = new Recording(await unpack(text));
    const place = document.getElementById("page");
    place.textContent = "";
    render(html`<${App} recording=${recording} />`, place);
    window.page = { recording, moment }; // for whoever asks in the console
    root.dataset.ready = "true";
}

main().catch((error) => {
    document.getElementById("page").textContent = `The page cannot be shown: ${error.message}`;
    throw error;
});
