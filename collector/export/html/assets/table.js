// A table of which only the rows in sight are in the document. Rows are reached by the arrow keys.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState, useSize, onPrint } from "page/ui";

const ROW = 26;
const BEYOND = 8;
const PRINTED_MAX = 500;

/**
 * `columns`: [{ key, title, value(row), text(row), isNumber, isShort, hint }]; `rows`, of which the first `pinned` stay on top.
 * `onOpen(row)`: for Enter and a click. `isChosen(row)`. `initial`: the column to sort by.
 */
export function Table({ label, columns, rows, pinned = 0, onOpen, isChosen, initial, height = 420 }) {
    const [order, setOrder] = useState({ key: initial ?? columns[0].key, isUp: false });
    const [top, setTop] = useState(0);
    const [active, setActive] = useState(0);
    const scroll = useRef();
    const isFocused = useRef(false);
    const { height: seen } = useSize(scroll);
    const sorted = useMemo(() => inOrder(columns, rows, pinned, order), [rows, order, columns]);
    const [isPrinted, setPrinted] = useState(false);
    useEffect(() => onPrint(setPrinted), []);
    const first = isPrinted ? 0 : Math.max(0, Math.floor(top / ROW) - BEYOND);
    const last = isPrinted ? Math.min(sorted.length, PRINTED_MAX) : Math.min(sorted.length, Math.ceil((top + (seen || height)) / ROW) + BEYOND);
    const go = (to) => {
        const next = Math.max(0, Math.min(sorted.length - 1, to));
        isFocused.current = true;
        setActive(next);
        const element = scroll.current;
        if (next * ROW < element.scrollTop) element.scrollTop = next * ROW;
        if ((next + 2) * ROW > element.scrollTop + element.clientHeight) element.scrollTop = (next + 2) * ROW - element.clientHeight;
    };
    useLayoutEffect(() => {
        if (isFocused.current) scroll.current.querySelector('tr[tabindex="0"]')?.focus({ preventScroll: true });
        isFocused.current = false;
    });
    const page = Math.max(1, Math.floor((seen || height) / ROW) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    const keys = (event) => {
        if (event.target.tagName === "BUTTON") return;
        if (event.key in steps) go(active + steps[event.key]);
        else if (event.key === "Home") go(0);
        else if (event.key === "End") go(sorted.length - 1);
        else if (event.key === "Enter" && onOpen) onOpen(sorted[active]);
        else return;
        event.preventDefault();
    };
    const current = Math.min(active, sorted.length - 1);
    const bodyRow = (row, at) => html`<tr key=${at} aria-rowindex=${at + 2} tabindex=${at === current ? 0 : -1}
        class=${[isChosen && isChosen(row) ? "chosen" : "", row.role ?? "", row.isFaint ? "faint" : ""].join(" ").trim() || undefined}
        onClick=${() => { setActive(at); if (onOpen) onOpen(row); }} onFocus=${() => setActive(at)}>
        ${columns.map((one) => html`<td class=${one.isNumber ? numberClass(one, row) : one.key === "name" && !one.isShort ? "t wide" : "t"} title=${one.isNumber ? undefined : textOf(one, row)}>${one.show ? one.show(row)
            : one.isNumber ? textOf(one, row) : html`<bdi>${textOf(one, row)}</bdi>`}</td>`)}</tr>`;
    return html`<div class="table-scroll" ref=${scroll} style=${{ maxHeight: `${height}px` }} onScroll=${(event) => setTop(event.target.scrollTop)}
            onKeyDown=${keys} tabindex="0" role="group" aria-label=${`${label}, scrollable`}>
        <table aria-label=${label} aria-rowcount=${sorted.length + 1}>
            <thead><tr aria-rowindex="1">${columns.map((one) => html`<th scope="col" class=${one.isNumber ? `n ${extra(one)}` : "t"}
                aria-sort=${order.key === one.key ? (order.isUp ? "ascending" : "descending") : "none"}>
                <button onClick=${() => setOrder({ key: one.key, isUp: order.key === one.key ? !order.isUp : !one.isNumber })} title=${one.hint}>
                ${one.title}<span aria-hidden="true">${order.key === one.key ? (order.isUp ? " ▲" : " ▼") : ""}</span></button></th>`)}</tr></thead>
            <tbody>
                ${first > 0 ? html`<tr aria-hidden="true" style=${{ height: `${first * ROW}px` }}></tr>` : null}
                ${sorted.slice(first, last).map((row, i) => bodyRow(row, first + i))}
                ${last < sorted.length && !isPrinted ? html`<tr aria-hidden="true" style=${{ height: `${(sorted.length - last) * ROW}px` }}></tr>` : null}
            </tbody>
        </table></div>`;
}

/** A zero is written as er_print does, "0.", and has its point where others have theirs. */
const numberClass = (column, row) => `n ${extra(column)} ${textOf(column, row) === "0." ? "zero" : ""}`;

/** Shares and intervals are left out where the window is as narrow as a phone. */
const extra = (column) => (column.key.endsWith("%") ? "share" : "");

const textOf = (column, row) => (column.text ? column.text(row) : String(column.value(row)));

/** By the column chosen, then by name; what is pinned stays where it is. */
function inOrder(columns, rows, pinned, { key, isUp }) {
    const column = columns.find((one) => one.key === key) ?? columns[0];
    const sign = isUp ? 1 : -1;
    const compare = column.isNumber ? (a, b) => sign * (column.value(a) - column.value(b))
        : (a, b) => sign * byName(column.value(a), column.value(b));
    const rest = rows.slice(pinned).sort((a, b) => compare(a, b) || byName(a.name ?? "", b.name ?? ""));
    return [...rows.slice(0, pinned), ...rest];
}

const byName = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
