// Unpacks what packed.py packs: a description, and columns of numbers as typed arrays.

const TYPES = { Uint8: Uint8Array, Uint16: Uint16Array, Int32: Int32Array, Float64: Float64Array };
const NEWLINE = 10;

/** The description, with every column in `columns` as a typed array. */
export async function unpack(text) {
    const packed = bytesOf(text);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const content = new Uint8Array(await new Response(stream).arrayBuffer());
    const end = content.indexOf(NEWLINE);
    const about = JSON.parse(new TextDecoder().decode(content.subarray(0, end)));
    const columns = {};
    for (const [name, described] of Object.entries(about.columns)) {
        columns[name] = column(content.subarray(end + 1 + described.at), described);
    }
    return { ...about, columns };
}

function bytesOf(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    return bytes;
}

function column(content, { n, bytes, base, delta, type }) {
    const numbers = new TYPES[type](n);
    if (!delta && bytes === 1 && base === 0) {
        numbers.set(content.subarray(0, n));
        return numbers;
    }
    const wide = delta || bytes > 3 || base !== 0 ? new Float64Array(n) : numbers;
    for (let plane = 0, factor = 1; plane < bytes; plane++, factor *= 256) {
        const at = plane * n;
        for (let i = 0; i < n; i++) wide[i] += content[at + i] * factor;
    }
    let before = 0;
    for (let i = 0; wide !== numbers && i < n; i++) {
        const value = wide[i] + base;
        numbers[i] = delta ? (before += value) : value;
    }
    return numbers;
}
