// A flame graph that hangs from its root: as wide as the time is long, the largest first, callees below their callers.

import { html, useLayoutEffect, useMemo, useRef, useState, useSize, useFrame, ground, useDrawnBeside, ink, fitted, FONT, Tip, Voice } from "page/ui";
import { told, percent } from "page/figures";
import { isDark } from "page/states";

const ROW = 20;
const LEAST = 1; // pixels: what is narrower is not drawn
const TOP = 0;

/**
 * `buckets`: [{ name, whole, own }], trees of one shape side by side; one without a name is the whole graph. `tree`: see
 * tree.js. `colour(node, name)`: of a frame; `about(node, bucket)`: more lines of its tip.
 */
export function Flame({ tree, buckets, unit, title, pattern, colour, about, onPick }) {
    const frame = useRef();
    const canvas = useRef();
    const mark = useRef();
    const { width } = useSize(frame);
    const owner = useMemo(() => ({}), [tree, buckets.map((one) => one.name).join("\n")]);
    const [zoom, setZoom] = useStateOf(owner); // { bucket, node }
    const [current, setCurrent] = useStateOf(owner); // that the keyboard is on
    const [hover, setHover] = useStateOf(owner);
    const layout = useMemo(() => laidOut(tree, buckets, zoom, width), [tree, buckets, zoom, width]);
    const expression = useMemo(() => regular(pattern), [pattern]);
    const found = useMemo(() => matches(tree, buckets, expression), [tree, buckets, expression]);
    const height = (layout.depth + 1) * ROW;
    const frames = useDrawnBeside(width, height, (context) => draw(context, { tree, buckets, layout, found, colour }),
        [layout, found, colour]);
    useFrame(() => {
        if (!canvas.current || !frames) return;
        const context = ground(canvas.current, width, height);
        context.drawImage(frames.canvas, 0, 0, width, height);
        outline(context, hover && hover.frame, ink("text"), width);
        outline(context, current, ink("focus"), width);
    }, [frames, current, hover && hover.frame]);

    useLayoutEffect(() => mark.current?.scrollIntoView({ block: "nearest" }), [current]);
    const nameOf = (one) => (one.node === TOP ? buckets[one.bucket]?.name || title : tree.names[tree.item[one.node]]);
    const total = layout.total;
    const tell = (one) => {
        if (!one) return "";
        const weight = one.weight;
        const own = one.bucket < 0 ? 0 : buckets[one.bucket].own[one.node];
        return `${nameOf(one)}: ${told(weight, unit)}, ${percent(weight, total)} of all; itself ${told(own, unit)}`;
    };
    const at = (event) => {
        const box = canvas.current.getBoundingClientRect();
        return frameAt(layout, event.clientX - box.left, event.clientY - box.top);
    };
    const zoomTo = (one) => {
        const isRoot = !one || (one.node === TOP && one.bucket < 0) || (buckets.length === 1 && one.node === TOP);
        setZoom(isRoot ? null : { bucket: one.bucket, node: one.node });
        setCurrent(null);
    };
    const keys = (event) => {
        const next = moved(layout, current, event.key);
        if (next) setCurrent(next);
        else if (event.key === "Enter" && current) zoomTo(current);
        else if (event.key === "Escape" || event.key === "Backspace") zoomTo(zoom && parentOf(tree, buckets, zoom));
        else if (event.key === "t" && current && onPick && current.node) onPick(tree.item[current.node]);
        else return;
        event.preventDefault();
    };
    return html`<div class="flame">
        <p class="under" id="flame-help">
            ${zoom ? html`<button onClick=${() => zoomTo(null)}>Reset zoom</button> ` : null}
            ${expression === null ? html`<span class="bad">not a regular expression</span>`
                : pattern ? `${percent(found.weight, total)} of ${told(total, unit)} is in stacks that match`
                    : !total ? "" : `${told(total, unit)} in all. Click or Enter zooms, Escape goes back, arrow keys move${onPick ? ", t opens callers and callees" : ""}.`}
        </p>
        <div class="flame-frame" ref=${frame}>
            <canvas ref=${canvas} tabindex="0" role="application" aria-label=${`${title}: flame graph`}
                aria-describedby="flame-help" onKeyDown=${keys}
                onClick=${(event) => { const one = at(event); if (one) zoomTo(one); }}
                onMouseMove=${(event) => {
                    const one = at(event);
                    setHover(one ? { frame: one, x: event.clientX, y: event.clientY } : null);
                }} onMouseLeave=${() => setHover(null)} />
            ${current ? html`<i class="flame-mark" ref=${mark} style=${{ top: `${current.depth * ROW}px`, height: `${ROW}px` }}></i>` : null}
        </div>
        ${total === 0 ? html`<p class="empty">There is nothing of this in what is selected.</p>` : null}
        <${Tip} at=${hover}>${hover && html`<b class="name">${nameOf(hover.frame)}</b>
            <dl><dt>with callees</dt><dd>${told(hover.frame.weight, unit)} · ${percent(hover.frame.weight, total)}</dd>
            ${hover.frame.bucket >= 0 ? html`<dt>itself</dt><dd>${told(buckets[hover.frame.bucket].own[hover.frame.node], unit)}</dd>` : null}
            ${about ? about(hover.frame.node, hover.frame.bucket) : null}</dl>`}<//>
        <${Voice} text=${tell(current)} />
    </div>`;
}

/** A state that is null again with another owner, already while that is first drawn: its numbers mean nothing there. */
function useStateOf(owner) {
    const [state, setState] = useState({ owner, value: null });
    return [state.owner === owner ? state.value : null, (value) => setState({ owner, value })];
}

// -- where frames are

/** Frames that can be seen, level by level: { x, width, depth, node, bucket, weight }, the zoomed one and its callers wide. */
function laidOut(tree, buckets, zoom, width) {
    const total = buckets.reduce((all, one) => all + one.whole[TOP], 0);
    const levels = [];
    const place = (one) => (levels[one.depth] ??= []).push(one);
    const isOne = buckets.length === 1 && !buckets[0].name;
    if (!total || !width) return { levels, depth: 0, total: 0 };
    let begin;
    if (zoom) {
        const path = [];
        for (let node = zoom.node; node; node = tree.parent[node]) path.push({ node, bucket: zoom.bucket });
        path.push({ node: TOP, bucket: zoom.bucket });
        if (!isOne) path.push({ node: TOP, bucket: -1 });
        path.reverse().forEach((one, depth) => place(
            { ...one, depth, x: 0, width, weight: one.bucket < 0 ? total : buckets[one.bucket].whole[one.node] }));
        begin = levels.at(-1);
    } else {
        begin = [{ node: TOP, bucket: isOne ? 0 : -1, depth: 0, x: 0, width, weight: total }];
        place(begin[0]);
    }
    for (let waiting = begin; waiting.length;) {
        const next = [];
        for (const one of waiting) {
            const scale = one.width / one.weight;
            let x = one.x;
            for (const child of childrenOf(tree, buckets, one, LEAST / scale)) {
                const frame = { ...child, depth: one.depth + 1, x, width: child.weight * scale };
                x += frame.width;
                place(frame);
                next.push(frame);
            }
        }
        waiting = next;
    }
    return { levels, depth: levels.length - 1, total };
}

function childrenOf(tree, buckets, { node, bucket }, least) {
    const found = [];
    if (bucket < 0) {
        buckets.forEach((one, i) => one.whole[TOP] > least && found.push({ node: TOP, bucket: i, weight: one.whole[TOP] }));
        return found;
    }
    const { whole } = buckets[bucket];
    for (let child = tree.firstChild[node]; child; child = tree.sibling[child]) {
        if (whole[child] > least) found.push({ node: child, bucket, weight: whole[child] });
    }
    return found.sort((a, b) => b.weight - a.weight || a.node - b.node);
}

function frameAt(layout, x, y) {
    const level = layout.levels[Math.floor(y / ROW)] ?? [];
    return level.find((one) => x >= one.x && x < one.x + one.width) ?? null;
}

function moved(layout, current, key) {
    if (!["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "Home"].includes(key)) return null;
    if (!current || key === "Home") return layout.levels[0]?.[0] ?? null;
    const middle = (one) => one.x + one.width / 2;
    const level = layout.levels[current.depth] ?? [];
    const place = level.findIndex((one) => one.node === current.node && one.bucket === current.bucket);
    if (key === "ArrowLeft") return level[place - 1] ?? current;
    if (key === "ArrowRight") return level[place + 1] ?? current;
    if (key === "ArrowUp") return layout.levels[current.depth - 1]?.find(
        (one) => one.x <= middle(current) && middle(current) <= one.x + one.width) ?? current;
    return layout.levels[current.depth + 1]?.find(
        (one) => one.x >= current.x - 1e-6 && one.x < current.x + current.width) ?? current;
}

function parentOf(tree, buckets, { node, bucket }) {
    if (node) return { node: tree.parent[node], bucket };
    return buckets.length > 1 ? { node: TOP, bucket: -1 } : null;
}

// -- what is looked for

/** The expression; undefined for none, null where it is not one. */
function regular(pattern) {
    if (!pattern) return undefined;
    try {
        return new RegExp(pattern, "iu");
    } catch {
        return null;
    }
}

/** Which items match, and the weight of all stacks with one of them. */
function matches(tree, buckets, expression) {
    if (!expression) return { items: null, weight: 0 };
    const items = Uint8Array.from(tree.names, (name) => (expression.test(name) ? 1 : 0));
    const isBelow = new Uint8Array(tree.n);
    let weight = 0;
    for (let node = 1; node < tree.n; node++) {
        const above = isBelow[tree.parent[node]];
        isBelow[node] = above | items[tree.item[node]];
        if (isBelow[node] && !above) weight += buckets.reduce((all, one) => all + one.whole[node], 0);
    }
    return { items, weight };
}

// -- how it looks

function draw(context, { tree, buckets, layout, found, colour }) {
    const [text, plain, mute, mark] = [isDark() ? "#101418" : "#16191d", ink("text"), ink("frame-root"), ink("match")];
    context.font = FONT;
    context.textBaseline = "middle";
    for (const level of layout.levels) {
        for (const one of level) {
            const name = one.node === TOP ? buckets[one.bucket]?.name || "all" : tree.names[tree.item[one.node]];
            const isFound = found.items && one.node && found.items[tree.item[one.node]];
            const fill = isFound ? mark : one.node === TOP ? mute : (colour || warm)(one.node, name, one.bucket);
            const y = one.depth * ROW;
            const isFaded = Boolean(found.items) && !isFound;
            context.globalAlpha = isFaded ? 0.35 : 1;
            context.fillStyle = fill;
            context.fillRect(one.x, y, Math.max(one.width - (one.width > 3 ? 1 : 0), 0.5), ROW - 1);
            context.globalAlpha = 1;
            if (one.width > 24) {
                context.fillStyle = one.node === TOP || isFaded ? plain : text;
                context.fillText(fitted(context, name, one.width - 8), one.x + 4, y + ROW / 2);
            }
        }
    }
}

function outline(context, one, colour, width) {
    if (!one) return;
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.strokeRect(one.x + 1, one.depth * ROW + 1, Math.max(Math.min(one.width, width) - 3, 1), ROW - 3);
}

const shades = { light: new Map(), dark: new Map() };

/** A warm colour that a name always has. */
export function warm(_node, name) {
    const known = shades[document.documentElement.dataset.theme] ?? shades.light;
    let found = known.get(name);
    if (!found) {
        let hash = 0x811c9dc5;
        for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
        const [a, b] = [(hash >>> 0) % 1000 / 1000, (hash >>> 10) % 1000 / 1000];
        found = `hsl(${(18 + a * 34).toFixed(0)} ${(78 + b * 14).toFixed(0)}% ${((isDark() ? 60 : 66) + b * 8).toFixed(0)}%)`;
        known.set(name, found);
    }
    return found;
}
