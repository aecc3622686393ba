// Numbers as er_print writes them, digit for digit, and as people say them.

/** Decimals of a number as Python rounds them: what lies exactly in the middle goes to the even digit. */
export function fixed(value, digits) {
    const text = value.toFixed(digits);
    const scaled = Math.abs(value) * 2 ** (digits + 1) * 5 ** digits; // exact where the middle can be hit at all
    if (Number.isInteger(scaled) && scaled % 2 === 1 && Math.abs(value) * 2 ** (digits + 1) % 1 === 0) {
        const below = (scaled - 1) / 2;
        const even = below % 2 ? below + 1 : below;
        return (value < 0 ? "-" : "") + (even / 10 ** digits).toFixed(digits);
    }
    return text;
}

/** Microseconds as seconds with three digits; a zero is "0.". */
export function seconds(us) {
    return us ? fixed(us / 1e6, 3) : "0.";
}

/** A share in percent with two digits. */
export function share(percent) {
    return percent ? fixed(percent, 2) : "0.";
}

/** What part of a total something is, divided as er_print does it. */
export function percentOf(value, total) {
    return total ? 100 * ((value / 1e6) / (total / 1e6)) : 0;
}

/** A metric's value in its unit. */
export function amount(value, unit) {
    return unit === "us" ? seconds(value) : String(value);
}

/** Nanoseconds for people: 1.204 s, 13 ms. */
export function duration(ns) {
    const size = Math.abs(ns);
    if (size >= 1e10) return `${(ns / 1e9).toFixed(1)} s`;
    if (size >= 1e9) return `${(ns / 1e9).toFixed(2)} s`;
    if (size >= 1e6) return `${trimmed(ns / 1e6)} ms`;
    if (size >= 1e3) return `${trimmed(ns / 1e3)} µs`;
    return `${Math.round(ns)} ns`;
}

function trimmed(value) {
    return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/** A value for people, in the unit of its metric. */
export function told(value, unit) {
    if (unit === "us") return duration(value * 1000);
    return unit === "bytes" ? bytes(value) : Math.round(value).toLocaleString("en");
}

function bytes(n) {
    const names = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    const power = Math.min(Math.floor(Math.log2(Math.max(n, 1)) / 10), names.length - 1);
    return power ? `${(n / 2 ** (10 * power)).toFixed(1)} ${names[power]}` : `${n} bytes`;
}

/** A time since the start, as precise as a step is (ns). */
export function moment(ns, step) {
    const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(Math.max(step, 1) / 1e9) + 1e-9)));
    return `${(ns / 1e9).toFixed(digits)} s`;
}

export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(part / whole < 0.1 ? 1 : 0)} %` : "0 %");

/** Ticks of an axis: about `wanted` round steps in a range. */
export function ticks(from, to, wanted) {
    const rough = Math.max((to - from) / Math.max(wanted, 1), 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
    return found;
}
