// What all views share: elements, a canvas as sharp as the screen, a tip at the pointer, a voice for screen readers.

import { h, options, render } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);
export { render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

/** The size of an element in CSS pixels, followed. */
export function useSize(reference) {
    const [size, setSize] = useState({ width: 0, height: 0 });
    useLayoutEffect(() => {
        const element = reference.current;
        if (!element) return undefined;
        const measure = () => setSize((before) => {
            const now = { width: element.clientWidth, height: element.clientHeight };
            return before.width === now.width && before.height === now.height ? before : now;
        });
        measure();
        const observer = new ResizeObserver(measure);
        observer.observe(element);
        return () => observer.disconnect();
    }, []);
    return size;
}

const CANVAS_MAX = 32767; // pixels of a side: browsers draw nothing on a larger canvas

/** A context to draw on, cleared; one unit is a CSS pixel. What is too large to be as sharp as the screen is less sharp. */
export function ground(canvas, width, height) {
    const ratio = Math.min(window.devicePixelRatio || 1, CANVAS_MAX / Math.max(width, height));
    const [w, hh] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== hh) [canvas.width, canvas.height] = [w, hh];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
}

const theme = () => document.documentElement.dataset.theme; // what is drawn depends on it

/** Something drawn beside when an input has changed, to be shown again and again; null without a width. */
export function useDrawnBeside(width, height, draw, inputs) {
    const canvas = useRef(null);
    return useMemo(() => {
        if (!width) return null;
        canvas.current ??= document.createElement("canvas");
        draw(ground(canvas.current, width, height));
        return { canvas: canvas.current }; // another one each time: what depends on it is drawn again
    }, [width, height, theme(), ...inputs]);
}

/** A colour of the style sheet. */
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const FONT = "12px system-ui, sans-serif";

const widths = new Map();

/** How wide a text is in FONT: measured once, since measuring is dear. */
function widthOf(context, text) {
    if (!widths.has(text)) widths.set(text, context.measureText(text).width);
    return widths.get(text);
}

/** A text in FONT cut to a width; letters are taken to be as wide as they mostly are. */
export function fitted(context, text, width) {
    if (text.length * 3.2 <= width && widthOf(context, text) <= width) return text;
    const n = Math.floor(width / 6.6);
    if (n < 3) return "";
    let cut = text.slice(0, n - 1);
    while (cut.length > 1 && context.measureText(`${cut}…`).width > width) cut = cut.slice(0, -1);
    return `${cut}…`;
}

/** What is shown beside the pointer. `at`: clientX, clientY. */
export function Tip({ at, children }) {
    const own = useRef();
    useLayoutEffect(() => {
        const element = own.current;
        if (!element || !at) return;
        const { width, height } = element.getBoundingClientRect();
        const x = at.x + 14 + width > window.innerWidth ? at.x - width - 10 : at.x + 14;
        const y = at.y + 14 + height > window.innerHeight ? at.y - height - 10 : at.y + 14;
        element.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
    });
    return at ? html`<div class="tip" ref=${own} aria-hidden="true">${children}</div>` : null;
}

/** Says a text to those who listen. */
export function Voice({ text }) {
    return html`<p class="voice" role="status" aria-live="polite">${text}</p>`;
}

let isPrinting = false;

/** While the browser prints, changes are drawn at once: nothing waits for a frame. `change(isPrinting)`. */
export function onPrint(change) {
    const turn = (is) => () => {
        isPrinting = is;
        const usual = options.debounceRendering;
        options.debounceRendering = (work) => work();
        change(is);
        options.debounceRendering = usual;
    };
    const [begin, end] = [turn(true), turn(false)];
    window.addEventListener("beforeprint", begin);
    window.addEventListener("afterprint", end);
    return () => {
        window.removeEventListener("beforeprint", begin);
        window.removeEventListener("afterprint", end);
    };
}

/** Runs a function once for many calls before the next frame. */
export function useFrame(draw, inputs) {
    const pending = useRef(0);
    useLayoutEffect(() => {
        if (isPrinting) {
            draw();
            return undefined;
        }
        cancelAnimationFrame(pending.current);
        pending.current = requestAnimationFrame(draw);
        return () => cancelAnimationFrame(pending.current);
    }, [theme(), ...inputs]);
}

/** Runs a function when the next frame is drawn: what takes its time keeps nobody waiting for what does not. */
export function afterFrame(work) {
    requestAnimationFrame(() => setTimeout(work));
}

export function Choice({ label, value, options, onChange, id }) {
    return html`<label class="choice" for=${id}><span>${label}</span>
        <select id=${id} value=${value} onChange=${(event) => onChange(event.target.value)}>
            ${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}
        </select></label>`;
}

export function Check({ label, value, onChange, id }) {
    return html`<label class="check" for=${id}><input id=${id} type="checkbox" checked=${value}
        onChange=${(event) => onChange(event.target.checked)} /><span>${label}</span></label>`;
}
