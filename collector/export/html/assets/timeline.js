// Threads as rows, coloured by the microstate that each pixel's time was mostly spent in.

import { html, useLayoutEffect, useMemo, useRef, useState, useSize, useFrame, ground, useDrawnBeside, ink, fitted, FONT, Tip, Voice } from "page/ui";
import { lowerBound } from "page/recording";
import { STATES, N_STATES, ORDER, colourOf } from "page/states";
import { duration, moment, ticks } from "page/figures";

const ROW = 22;
const BAR = 16;
const AXIS = 22;
const CHUNK = 64; // pieces that are summed up beforehand
const FEW = 15;
const FRAMES_SHOWN = 14;

/** What the colours mean, of states that occur. */
export function Key({ recording }) {
    const { totals } = recording.allSums;
    return html`<ul class="key">${ORDER.filter((state) => totals[state]).map((state) => html`<li title=${STATES[state][1]}>
        <i class="chip" style=${{ background: colourOf(state) }}></i>${STATES[state][0]}</li>`)}</ul>`;
}

/** `range`, `onRange`: what is seen (ns); `selection`, `onSelect`: what counts. */
export function Timeline({ recording, range, onRange, selection, onSelect, height, isFew, onMore }) {
    const frame = useRef();
    const canvas = useRef();
    const { width } = useSize(frame);
    const names = width < 700 ? 120 : 190;
    const [top, setTop] = useState(0);
    const [hover, setHover] = useState(null);
    const [cursor, setCursor] = useState(null); // { row, time, from }
    const drag = useRef(null);
    const rows = useMemo(() => rowsOf(recording, isFew), [recording, isFew]);
    const inside = Math.max(width - names, 10);
    const tall = Math.min(height ?? Infinity, rows.length * ROW + AXIS);
    const scaled = useMemo(() => scaleOf(range, names, inside), [range, names, inside]);
    const { threads } = selection;
    const bars = useDrawnBeside(width, tall, (context) => drawRows(context,
        { recording, rows, top, tall, names, scaled, threads, width }), [recording, rows, top, names, scaled, threads]);
    useFrame(() => {
        if (!canvas.current || !bars) return;
        const context = ground(canvas.current, width, tall);
        context.drawImage(bars.canvas, 0, 0, width, tall);
        shade(context, scaled, selection, tall);
        if (cursor) drawCursor(context, { cursor, scaled, top, tall, width });
    }, [bars, selection, cursor]);

    const rowAt = (y) => rows[Math.floor((y - AXIS + top) / ROW)];
    const place = (event) => {
        const box = canvas.current.getBoundingClientRect();
        return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const zoomAt = (time, factor) => onRange(bounded(recording, {
        from: time - (time - range.from) * factor, to: time + (range.to - time) * factor }));
    useLayoutEffect(() => {
        const wheel = (event) => {
            if (!event.ctrlKey && !event.shiftKey) return;
            event.preventDefault();
            const time = scaled.time(place(event).x);
            const span = range.to - range.from;
            if (event.ctrlKey) zoomAt(time, event.deltaY > 0 ? 1.25 : 0.8);
            else onRange(bounded(recording, shifted(range, Math.sign(event.deltaY || event.deltaX) * span / 10)));
        };
        const element = canvas.current;
        element?.addEventListener("wheel", wheel, { passive: false });
        return () => element?.removeEventListener("wheel", wheel);
    });
    const down = (event) => {
        if (event.button) return;
        const { x, y } = place(event);
        const row = y > AXIS ? rowAt(y) : null;
        if (x < names) {
            if (row && row.thread !== undefined) onSelect({ ...selection, threads: toggled(selection.threads, row.thread, event) });
            return;
        }
        drag.current = { x, time: scaled.time(x) };
        canvas.current.setPointerCapture(event.pointerId);
    };
    const move = (event) => {
        const { x, y } = place(event);
        if (!isPressed(event)) drag.current = null;
        if (drag.current) {
            if (Math.abs(x - drag.current.x) > 2) onSelect({ ...selection, ...ordered(drag.current.time, scaled.time(x)) });
            return setHover(null);
        }
        const row = y > AXIS ? rowAt(y) : null;
        return setHover(row && row.thread !== undefined ? { x: event.clientX, y: event.clientY, row, time: scaled.time(x), isName: x < names } : null);
    };
    const up = (event) => {
        const { x } = place(event);
        if (drag.current && Math.abs(x - drag.current.x) <= 2) onSelect({ ...selection, from: null, to: null });
        drag.current = null;
    };
    const keys = (event) => {
        const known = cursor ?? { row: rows.findIndex((one) => one.thread !== undefined), time: range.from, from: null };
        const step = (range.to - range.from) / 100;
        const next = { ...known };
        switch (event.key) {
            case "ArrowDown": next.row = step_(rows, known.row, 1); break;
            case "ArrowUp": next.row = step_(rows, known.row, -1); break;
            case "ArrowRight": next.time = Math.min(range.to, known.time + step); break;
            case "ArrowLeft": next.time = Math.max(range.from, known.time - step); break;
            case "Home": next.time = range.from; break;
            case "End": next.time = range.to; break;
            case "+": case "=": zoomAt(known.time, 0.5); break;
            case "-": zoomAt(known.time, 2); break;
            case "Enter": if (rows[known.row]) onSelect({ ...selection, threads: toggled(selection.threads, rows[known.row].thread, event) }); break;
            case "Escape": onSelect({ from: null, to: null, threads: null }); next.from = null; break;
            default: return;
        }
        event.preventDefault();
        if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") {
            next.from = event.shiftKey ? known.from ?? known.time : null;
            if (event.shiftKey && next.from !== next.time) onSelect({ ...selection, ...ordered(next.from, next.time) });
        }
        const y = next.row * ROW - top;
        if (y < 0 || y > tall - AXIS - ROW) setTop(clamp(next.row * ROW - (tall - AXIS) / 2, 0, Math.max(0, rows.length * ROW - tall + AXIS)));
        setCursor(next);
    };
    const isScrolling = rows.length * ROW + AXIS > tall + 1;
    if (!rows.length) return html`<p class="empty" ref=${frame}>No thread has any time to show.</p>`;
    return html`<div class="timeline" ref=${frame}>
        <div class="timeline-scroll" style=${{ height: `${tall}px` }} tabindex=${isScrolling ? 0 : -1}
            aria-label=${isScrolling ? "Rows of threads, scrollable" : undefined} role="group"
            onScroll=${(event) => setTop(event.target.scrollTop)}>
            <div class="timeline-all" style=${{ height: `${rows.length * ROW + AXIS}px` }}>
                <canvas ref=${canvas} tabindex="0" role="application" aria-label="Timeline of threads" aria-describedby="timeline-help"
                    onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${() => { drag.current = null; }} onMouseLeave=${() => setHover(null)}
                    onDblClick=${() => selection.from !== null && onRange(bounded(recording, { from: selection.from, to: selection.to ?? recording.end }))}
                    onKeyDown=${keys} onBlur=${() => setCursor(null)} />
            </div>
        </div>
        <p class="under" id="timeline-help">
            ${range.from > recording.begin || range.to < recording.end
                ? html`<button onClick=${() => onRange({ from: recording.begin, to: recording.end })}>Show all of it</button> ` : null}
            ${selection.from !== null ? html`<button onClick=${() => onRange(bounded(recording, { from: selection.from, to: selection.to ?? recording.end }))}>Zoom to the selection</button> ` : null}
            ${recording.busiest.length > FEW ? html`<button onClick=${onMore}>${isFew ? `Show all ${recording.busiest.length} threads` : `Show the ${FEW} busiest`}</button> ` : null}
            Drag selects a time, a click on a name a thread; Ctrl and the wheel zoom. Keys: arrows move, with Shift select; + and − zoom; Enter selects the thread; Escape clears.</p>
        <${Tip} at=${hover}>${hover && (hover.isName ? nameTip(recording, hover.row.thread) : pieceTip(recording, hover.row.thread, hover.time))}<//>
        <${Voice} text=${cursor && rows[cursor.row] ? spoken(recording, rows[cursor.row].thread, cursor.time, range) : ""} />
    </div>`;
}

export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** Whether a drag goes on: a button that is released elsewhere is not told of. */
export const isPressed = (event) => (event.buttons & 1) === 1;

const shifted = ({ from, to }, by) => ({ from: from + by, to: to + by });

/** Inside the recording, and not shorter than a microsecond. */
export function bounded(recording, { from, to }) {
    const length = clamp(to - from, 1000, recording.end - recording.begin);
    const begin = clamp(from, recording.begin, recording.end - length);
    return { from: begin, to: begin + length };
}

/** A selection's whole nanoseconds. */
export const ordered = (a, b) => ({ from: Math.round(Math.min(a, b)), to: Math.round(Math.max(a, b)) });

function toggled(threads, thread, event) {
    const isMany = event.ctrlKey || event.metaKey || event.shiftKey;
    const found = new Set(isMany ? threads ?? [] : []);
    if (threads?.has(thread)) {
        if (isMany) found.delete(thread);
        return found.size ? found : null;
    }
    return found.add(thread);
}

function step_(rows, from, by) {
    for (let at = from + by; at >= 0 && at < rows.length; at += by) if (rows[at].thread !== undefined) return at;
    return from;
}

/** The rows: the busiest threads or all, below their processes if there are several. */
function rowsOf(recording, isFew) {
    const threads = recording.busiest.slice(0, isFew ? FEW : undefined);
    if (recording.experiments.length < 2) return threads.map((thread) => ({ thread }));
    const groups = new Map();
    for (const thread of threads) {
        const experiment = recording.threads[thread][0];
        if (!groups.has(experiment)) groups.set(experiment, []);
        groups.get(experiment).push({ thread });
    }
    return [...groups].flatMap(([experiment, mine]) => (mine.length > 1 ? [{ experiment }, ...mine] : mine));
}

function scaleOf(range, left, width) {
    const per = (range.to - range.from) / width;
    return { ...range, per, left, width, time: (x) => range.from + clamp(x - left, 0, width) * per,
        x: (time) => left + (time - range.from) / per };
}

// -- what a pixel shows

/** Sums of states of each CHUNK pieces of the recording: so many pieces in a pixel need not be looked at one by one. */
function chunksOf(recording) {
    return recording.once("chunks", () => {
        const { begins, ends } = recording.spans;
        const n = Math.ceil(recording.n / CHUNK);
        const sums = new Float32Array(n * N_STATES);
        for (let i = 0; i < recording.n; i++) {
            const column = recording.column[i];
            if (column < N_STATES) sums[Math.floor(i / CHUNK) * N_STATES + column] += ends[i] - begins[i];
        }
        return sums;
    });
}

/** For each pixel the state in which a thread mostly was, and how much of the pixel it is known for (0 to 255). */
export function pixelsOf(recording, thread, { from, per, width }, n = Math.ceil(width)) {
    const { begins, ends } = recording.spans;
    const { column } = recording;
    const chunks = chunksOf(recording);
    const last = recording.start[thread + 1];
    const states = new Uint8Array(n);
    const cover = new Uint8Array(n);
    const times = new Float64Array(N_STATES);
    let at = lowerBound(ends, from, recording.start[thread], last);
    for (let pixel = 0; pixel < n; pixel++) {
        const low = from + pixel * per;
        const high = low + per;
        times.fill(0);
        while (at < last && begins[at] < high) {
            if (at % CHUNK === 0 && at + CHUNK <= last && ends[at + CHUNK - 1] <= high && begins[at] >= low) {
                const row = at / CHUNK * N_STATES;
                for (let state = 0; state < N_STATES; state++) times[state] += chunks[row + state];
                at += CHUNK;
                continue;
            }
            if (column[at] < N_STATES) times[column[at]] += Math.max(0, Math.min(ends[at], high) - Math.max(begins[at], low));
            if (ends[at] > high) break;
            at++;
        }
        let best = 0;
        let all = 0;
        for (let state = 0; state < N_STATES; state++) {
            all += times[state];
            if (times[state] > times[best]) best = state;
        }
        states[pixel] = best;
        cover[pixel] = Math.min(255, Math.round(255 * all / per));
    }
    return { states, cover };
}

function drawRows(context, { recording, rows, top, tall, names, scaled, threads, width }) {
    const text = ink("text");
    context.font = FONT;
    context.textBaseline = "middle";
    axis(context, scaled, tall);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, width, tall - AXIS);
    context.clip();
    const colours = STATES.map((_, state) => colourOf(state));
    const first = Math.max(0, Math.floor(top / ROW));
    for (let number = first; number < Math.min(rows.length, Math.ceil((top + tall) / ROW)); number++) {
        const row = rows[number];
        const y = AXIS + number * ROW - top;
        if (row.thread === undefined) {
            const { program, pid, name } = recording.experiments[row.experiment];
            context.fillStyle = ink("mute");
            context.fillText(fitted(context, `${program} (${pid}) · ${name}`, width - 12), 6, y + ROW / 2);
            continue;
        }
        const isOut = threads && !threads.has(row.thread);
        context.globalAlpha = isOut ? 0.35 : 1;
        context.fillStyle = text;
        context.fillText(fitted(context, recording.threadNames[row.thread], names - 16), 8, y + ROW / 2);
        bar(context, pixelsOf(recording, row.thread, scaled), y + (ROW - BAR) / 2, names, colours);
        context.globalAlpha = 1;
    }
    context.restore();
}

function drawCursor(context, { cursor, scaled, top, tall, width }) {
    const y = AXIS + cursor.row * ROW - top;
    context.strokeStyle = context.fillStyle = ink("focus");
    context.lineWidth = 2;
    if (y >= AXIS) context.strokeRect(1, y + 1, width - 2, ROW - 2);
    context.fillRect(Math.round(scaled.x(cursor.time)) - 1, AXIS - 6, 2, tall);
}

function bar(context, { states, cover }, y, left, colours) {
    for (let pixel = 0; pixel < states.length;) {
        let end = pixel + 1;
        while (end < states.length && states[end] === states[pixel] && cover[end] === cover[pixel]) end++;
        if (cover[pixel]) {
            context.fillStyle = colours[states[pixel]];
            const part = Math.max(2, BAR * cover[pixel] / 255);
            context.fillRect(left + pixel, y + BAR - part, end - pixel, part);
        }
        pixel = end;
    }
}

function axis(context, scaled, tall) {
    context.fillStyle = ink("mute");
    context.strokeStyle = ink("line");
    context.lineWidth = 1;
    const marks = ticks(scaled.from, scaled.to, scaled.width / (scaled.width < 400 ? 75 : 110));
    const step = marks.length > 1 ? marks[1] - marks[0] : scaled.to - scaled.from;
    for (const at of marks) {
        const x = Math.round(scaled.x(at)) + 0.5;
        context.beginPath();
        context.moveTo(x, AXIS - 4);
        context.lineTo(x, tall);
        context.stroke();
        const text = moment(at, step);
        if (x + 3 + context.measureText(text).width <= scaled.left + scaled.width) context.fillText(text, x + 3, AXIS / 2 - 1);
    }
}

/** What is not selected is veiled. */
export function shade(context, scaled, { from, to }, tall) {
    if (from === null && to === null) return;
    const [low, high] = [from === null ? scaled.left : scaled.x(from), to === null ? scaled.left + scaled.width : scaled.x(to)];
    const [a, b] = [clamp(low, scaled.left, scaled.left + scaled.width), clamp(high, scaled.left, scaled.left + scaled.width)];
    context.fillStyle = ink("veil");
    context.fillRect(scaled.left, 0, a - scaled.left, tall);
    context.fillRect(b, 0, scaled.left + scaled.width - b, tall);
    context.strokeStyle = ink("focus");
    context.lineWidth = 1.5;
    context.strokeRect(a, 0.75, Math.max(b - a, 1), tall - 1.5);
}

// -- what is told of a place

function nameTip(recording, thread) {
    const [experiment, number, tid] = recording.threads[thread];
    const { program, pid } = recording.experiments[experiment];
    return html`<b class="name">${recording.threadNames[thread]}</b>
        <dl><dt>process</dt><dd>${program}, ${pid}</dd><dt>thread</dt><dd>${number}, tid ${tid}</dd></dl>`;
}

function pieceTip(recording, thread, time) {
    const piece = recording.pieceAt(thread, time);
    if (piece < 0) return html`<b class="name">${recording.threadNames[thread]}</b><p>${duration(time)}: nothing is known of it here</p>`;
    const { begins, ends } = recording.spans;
    const stack = recording.stackOf(piece);
    return html`<b class="name">${recording.threadNames[thread]}</b>
        <p><i class="chip" style=${{ background: colourOf(recording.column[piece]) }}></i> ${STATES[recording.column[piece]][0]} for ${duration(ends[piece] - begins[piece])},
        ${" "}from ${moment(begins[piece], 1e6)} on, CPU ${recording.cpu[piece]}</p>
        <ol class="stack">${stack.slice(0, FRAMES_SHOWN).map((name) => html`<li>${name}</li>`)}
        ${stack.length > FRAMES_SHOWN ? html`<li>… ${stack.length - FRAMES_SHOWN} more</li>` : null}
        ${stack.length ? null : html`<li>(no stack)</li>`}</ol>`;
}

function spoken(recording, thread, time, range) {
    const piece = recording.pieceAt(thread, time);
    const when = `${recording.threadNames[thread]} at ${moment(time, (range.to - range.from) / 1000)}`;
    if (piece < 0) return `${when}: nothing known`;
    return `${when}: ${STATES[recording.column[piece]][0]} in ${recording.stackOf(piece)[0] ?? "no stack"}`;
}

// -- all threads in one strip

const STRIP = 44;

/** How many threads were in which state, over the whole time; selects as the timeline does. */
export function Strip({ recording, selection, onSelect, range }) {
    const frame = useRef();
    const canvas = useRef();
    const { width } = useSize(frame);
    const drag = useRef(null);
    const [cursor, setCursor] = useState(null);
    const scaled = useMemo(() => scaleOf({ from: recording.begin, to: recording.end }, 0, Math.max(width, 1)), [recording, width]);
    const layers = useDrawnBeside(width, STRIP, (context) => drawCrowd(context, crowd(recording, scaled), width), [recording, scaled]);
    useFrame(() => {
        if (!layers || !canvas.current) return;
        const context = ground(canvas.current, width, STRIP);
        context.drawImage(layers.canvas, 0, 0, width, STRIP);
        shade(context, scaled, selection, STRIP);
        if (range.from > recording.begin || range.to < recording.end) {
            context.fillStyle = ink("text");
            context.fillRect(scaled.x(range.from), STRIP - 3, Math.max(scaled.x(range.to) - scaled.x(range.from), 2), 3);
        }
        if (cursor) {
            context.fillStyle = ink("focus");
            context.fillRect(Math.round(scaled.x(cursor.time)) - 1, 0, 2, STRIP);
        }
    }, [layers, selection, width, range, cursor]);
    const xOf = (event) => event.clientX - canvas.current.getBoundingClientRect().left;
    const keys = (event) => {
        const all = recording.end - recording.begin;
        const step = { ArrowLeft: -all / 100, ArrowRight: all / 100, Home: -all, End: all }[event.key];
        if (event.key === "Escape") onSelect({ ...selection, from: null, to: null });
        if (!step) return;
        event.preventDefault();
        const known = cursor ?? { time: recording.begin, from: null };
        const time = clamp(known.time + step, recording.begin, recording.end);
        const from = event.shiftKey ? known.from ?? known.time : null;
        if (event.shiftKey && from !== time) onSelect({ ...selection, ...ordered(from, time) });
        setCursor({ time, from });
    };
    return html`<div class="strip" ref=${frame}>
        <canvas ref=${canvas} tabindex="0" role="application"
            aria-label="All threads over time, by state: left, right, Home and End move, with Shift select, Escape clears"
            onPointerDown=${(event) => { if (event.button) return; drag.current = xOf(event); canvas.current.setPointerCapture(event.pointerId); }}
            onPointerMove=${(event) => {
                if (!isPressed(event)) drag.current = null;
                if (drag.current !== null && Math.abs(xOf(event) - drag.current) > 2) {
                    onSelect({ ...selection, ...ordered(scaled.time(drag.current), scaled.time(xOf(event))) });
                }
            }} onPointerCancel=${() => { drag.current = null; }}
            onPointerUp=${(event) => {
                if (drag.current !== null && Math.abs(xOf(event) - drag.current) <= 2) onSelect({ ...selection, from: null, to: null });
                drag.current = null;
            }} onKeyDown=${keys} onBlur=${() => setCursor(null)} />
        <${Voice} text=${cursor ? `at ${moment(cursor.time, recording.end / 1000)}` : ""} /></div>`;
}

/** Time of all threads by pixel and state, in threads. */
function crowd(recording, { from, per, width }) {
    const { begins, ends } = recording.spans;
    const n = Math.ceil(width);
    const found = new Float64Array(n * N_STATES);
    for (let i = 0; i < recording.n; i++) {
        const column = recording.column[i];
        if (column >= N_STATES || ends[i] <= from) continue;
        const [low, high] = [Math.max(begins[i], from), ends[i]];
        const [first, last] = [Math.floor((low - from) / per), Math.min(n - 1, Math.floor((high - from) / per))];
        if (first === last) found[first * N_STATES + column] += (high - low) / per;
        for (let pixel = first; first < last && pixel <= last; pixel++) {
            found[pixel * N_STATES + column] += Math.min(1, (high - from) / per - pixel, pixel + 1 - (low - from) / per);
        }
    }
    return found;
}

function drawCrowd(context, layers, width) {
    const n = layers.length / N_STATES;
    let most = 0;
    for (let pixel = 0; pixel < n; pixel++) {
        let all = 0;
        for (let state = 0; state < N_STATES; state++) all += layers[pixel * N_STATES + state];
        most = Math.max(most, all);
    }
    const base = new Float64Array(n);
    for (const state of ORDER) {
        context.fillStyle = colourOf(state);
        for (let pixel = 0; pixel < n; pixel++) {
            const height = layers[pixel * N_STATES + state] / (most || 1) * STRIP;
            if (height <= 0) continue;
            context.fillRect(pixel, STRIP - base[pixel] - height, Math.min(1, width - pixel), height);
            base[pixel] += height;
        }
    }
}
