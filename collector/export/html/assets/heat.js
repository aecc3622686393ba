// Time against time within a column, as FlameScope draws it: patterns that repeat, and moments unlike the others.

import { html, useMemo, useRef, useState, useSize, useFrame, ground, useDrawnBeside, ink, FONT, Tip, Voice } from "page/ui";
import { ordered, clamp, isPressed } from "page/timeline";
import { duration, moment, ticks, told } from "page/figures";
import { isDark, N_STATES } from "page/states";

const ROWS = 50;
const HEIGHT = 200;
const LEFT = 56;
const SHADES = 64;
const WIDEST = 48; // pixels of a column
const WIDTHS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300].map((s) => s * 1e9);

export function Heat({ recording, metric, selection, onSelect }) {
    const frame = useRef();
    const canvas = useRef();
    const { width } = useSize(frame);
    const [hover, setHover] = useState(null);
    const [cell, setCell] = useState(null);
    const drag = useRef(null);
    const grid = useMemo(() => gridOf(recording, metric, selection.threads), [recording, metric, selection.threads]);
    const size = Math.max(2, Math.min(WIDEST, (width - LEFT - 4) / grid.columns));
    const isTime = metric.states.some((state) => state < N_STATES) || metric.command === "latency";
    const cells = useDrawnBeside(width, HEIGHT + 18, (context) => draw(context, { grid, size, width, recording }), [grid, size, recording]);
    useFrame(() => {
        if (!canvas.current || !cells) return;
        const context = ground(canvas.current, width, HEIGHT + 18);
        context.drawImage(cells.canvas, 0, 0, width, HEIGHT + 18);
        veil(context, grid, size, recording, selection);
        if (cell) outline(context, cell.at, size);
    }, [cells, selection, cell]);
    const at = (event) => {
        const box = canvas.current.getBoundingClientRect();
        const column = Math.floor((event.clientX - box.left - LEFT) / size);
        const row = Math.floor((event.clientY - box.top) / (HEIGHT / ROWS));
        return column >= 0 && column < grid.columns && row >= 0 && row < ROWS ? column * ROWS + row : null;
    };
    const timeOf = (index) => recording.begin + index * grid.cell;
    const choose = (a, b) => onSelect({ ...selection, ...ordered(timeOf(Math.min(a, b)), timeOf(Math.max(a, b) + 1)) });
    const keys = (event) => {
        const step = { ArrowDown: 1, ArrowUp: -1, ArrowRight: ROWS, ArrowLeft: -ROWS }[event.key];
        const known = cell ?? { at: 0, from: null };
        if (event.key === "Escape") { onSelect({ ...selection, from: null, to: null }); setCell(null); return; }
        if (event.key === "Enter" || event.key === " ") choose(known.from ?? known.at, known.at);
        else if (step) {
            const next = clamp(known.at + step, 0, grid.columns * ROWS - 1);
            const from = event.shiftKey ? known.from ?? known.at : null;
            setCell({ at: next, from });
            if (event.shiftKey) choose(from, next);
        } else return;
        event.preventDefault();
    };
    const why = !isTime ? "The heat map shows times; choose one." : grid.most ? "" : `There is nothing of ${metric.title} to show.`;
    if (why) return html`<div class="heat" ref=${frame}><p class="empty">${why}</p></div>`; // in the element whose size is followed
    const tell = (index) => `${moment(timeOf(index), grid.cell)}: ${told(grid.values[index] / 1000, "us")}`;
    return html`<div class="heat" ref=${frame}>
        <p class="under" id="heat-help">${metric.title} in cells of ${duration(grid.cell)}; a column is ${duration(grid.width)}, its time runs downward.
            Drag from the first cell to the last; or arrow keys, with Shift to select.</p>
        <canvas ref=${canvas} tabindex="0" role="application" aria-label="Heat map of time" aria-describedby="heat-help" onKeyDown=${keys} onBlur=${() => setCell(null)}
            onPointerDown=${(event) => { if (event.button) return; drag.current = at(event); if (drag.current !== null) choose(drag.current, drag.current); canvas.current.setPointerCapture(event.pointerId); }}
            onPointerMove=${(event) => {
                const index = at(event);
                if (!isPressed(event)) drag.current = null;
                setHover(index === null ? null : { index, x: event.clientX, y: event.clientY });
                if (drag.current !== null && index !== null) choose(drag.current, index);
            }} onPointerUp=${() => { drag.current = null; }} onPointerCancel=${() => { drag.current = null; }} onMouseLeave=${() => setHover(null)} />
        <${Tip} at=${hover}>${hover && html`<p>${tell(hover.index)}</p>`}<//>
        <${Voice} text=${cell ? tell(cell.at) : ""} /></div>`;
}

function gridOf(recording, metric, threads) {
    const { begins, ends } = recording.spans;
    const span = recording.end - recording.begin;
    const width = WIDTHS.find((one) => span / one <= 120) ?? Math.ceil(span / 120);
    const columns = Math.max(1, Math.ceil(span / width));
    const cell = width / ROWS;
    const values = new Float64Array(columns * ROWS);
    const states = metric.command === "latency" ? [0, 1, 2, 10] : metric.states;
    const isIn = new Uint8Array(recording.n_columns + 1);
    states.forEach((state) => state < N_STATES && (isIn[state] = 1));
    for (let thread = 0; thread < recording.nThreads; thread++) {
        if (threads && !threads.has(thread)) continue;
        for (let i = recording.start[thread]; i < recording.start[thread + 1]; i++) {
            if (!isIn[recording.column[i]]) continue;
            const low = Math.max(0, begins[i] - recording.begin);
            const high = ends[i] - recording.begin;
            const last = Math.min(values.length - 1, Math.floor(high / cell));
            for (let at = Math.floor(low / cell); at <= last; at++) {
                values[at] += Math.min(high, (at + 1) * cell) - Math.max(low, at * cell);
            }
        }
    }
    return { columns, width, cell, values, most: values.reduce((a, b) => Math.max(a, b), 0) };
}

function draw(context, { grid, size, width, recording }) {
    const tall = HEIGHT / ROWS;
    context.font = FONT;
    context.textBaseline = "middle";
    context.fillStyle = ink("mute");
    [0, 0.5, 1].forEach((part) => context.fillText(part ? duration(part * grid.width) : "0", 2, clamp(part * HEIGHT, 8, HEIGHT - 8)));
    const marks = ticks(recording.begin, recording.begin + grid.columns * grid.width, grid.columns * size / 90);
    const step = marks.length > 1 ? marks[1] - marks[0] : grid.width;
    for (const mark of marks) {
        const [text, x] = [moment(mark, step), LEFT + (mark - recording.begin) / grid.width * size];
        if (x + context.measureText(text).width <= width || mark === marks[0]) context.fillText(text, x, HEIGHT + 10);
    }
    const colours = Array.from({ length: SHADES + 1 }, (_, shade) => heat(shade / SHADES));
    for (let at = 0; at < grid.values.length; at++) {
        const value = grid.most ? Math.sqrt(grid.values[at] / grid.most) : 0;
        const x = LEFT + Math.floor(at / ROWS) * size;
        const y = at % ROWS * tall;
        context.fillStyle = colours[Math.round(value * SHADES)];
        context.fillRect(x, y, size - (size > 4 ? 1 : 0), tall - 0.5);
    }
}

/** What is not selected is veiled: the cells before the first one, and those behind the last. */
function veil(context, grid, size, recording, { from, to }) {
    const index = (time) => clamp((time - recording.begin) / grid.cell, 0, grid.values.length);
    context.fillStyle = ink("veil");
    if (from !== null) veilCells(context, size, 0, Math.floor(index(from)));
    if (to !== null) veilCells(context, size, Math.ceil(index(to)), grid.values.length);
}

/** Cells from the one to before the other: parts of columns, and whole ones between them. */
function veilCells(context, size, begin, end) {
    const tall = HEIGHT / ROWS;
    for (let at = begin; at < end;) {
        const [column, row] = [Math.floor(at / ROWS), at % ROWS];
        const isWhole = row === 0 && end - at >= ROWS;
        const n = isWhole ? end - at - (end - at) % ROWS : Math.min(end, (column + 1) * ROWS) - at;
        context.fillRect(LEFT + column * size, row * tall, size * (isWhole ? n / ROWS : 1), isWhole ? HEIGHT : n * tall);
        at += n;
    }
}

function outline(context, at, size) {
    const tall = HEIGHT / ROWS;
    context.strokeStyle = ink("focus");
    context.lineWidth = 2;
    context.strokeRect(LEFT + Math.floor(at / ROWS) * size, at % ROWS * tall, size, tall);
}

function heat(value) {
    const light = isDark() ? 16 + 56 * value : 96 - 52 * value;
    return `hsl(${46 - 40 * value} ${value ? 55 + 40 * value : 12}% ${light}%)`;
}
