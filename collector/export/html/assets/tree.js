// The tree of stacks seen as functions, lines or load objects, and what its nodes and their items weigh.
//
// Nodes are numbered so that parents come before children; loops run over them, never down a stack.

/** How the tree is seen: what each instruction is, and the names of that. */
export function itemsOf(recording, group) {
    return recording.once(`items ${group}`, () => {
        const { function_of: functions, line_of: lines, object_of: objects } = recording;
        if (group === "line") return { of: lines, names: recording.lines };
        if (group === "object") return { of: functions.map((one) => objects[one]), names: recording.objects };
        return { of: functions, names: recording.functions };
    });
}

/** The tree of a group; with `isFolded` frames of one item that follow each other are one. */
export function treeOf(recording, group, isFolded) {
    return recording.once(`tree ${group} ${isFolded}`, () => {
        const { of, names } = itemsOf(recording, group);
        return { ...merged(recording, of, isFolded), names, group };
    });
}

function merged(recording, of, isFolded) {
    const { nNodes, parent, instruction } = recording;
    const nodeOf = new Int32Array(nNodes);
    const parents = new Int32Array(nNodes);
    const items = new Int32Array(nNodes).fill(-1);
    const table = new Places(nNodes);
    let n = 1;
    for (let node = 1; node < nNodes; node++) {
        const above = nodeOf[parent[node]];
        const item = of[instruction[node]];
        if (isFolded && above && items[above] === item) {
            nodeOf[node] = above;
            continue;
        }
        const place = table.of(above, item, n);
        nodeOf[node] = place;
        if (place === n) {
            parents[n] = above;
            items[n++] = item;
        }
    }
    return withLinks({ n, nodeOf, parent: parents.slice(0, n), item: items.slice(0, n) });
}

/** Numbers for pairs, by open addressing: a Map of a million pairs would take a second. */
class Places {
    constructor(n) {
        this.mask = 2 ** Math.ceil(Math.log2(2 * n + 2)) - 1;
        this.above = new Int32Array(this.mask + 1);
        this.item = new Int32Array(this.mask + 1);
        this.place = new Int32Array(this.mask + 1);
    }

    of(above, item, next) {
        let at = (Math.imul(above, 0x9e3779b1) ^ Math.imul(item + 1, 0x85ebca6b)) >>> 3 & this.mask;
        while (this.place[at] && (this.above[at] !== above || this.item[at] !== item)) at = (at + 1) & this.mask;
        if (!this.place[at]) [this.above[at], this.item[at], this.place[at]] = [above, item, next];
        return this.place[at];
    }
}

/** With the children of each node as a chain, and which nodes are the topmost of their item on their path. */
export function withLinks(tree) {
    const { n, parent, item } = tree;
    const firstChild = new Int32Array(n);
    const sibling = new Int32Array(n);
    const isTopmost = new Uint8Array(n);
    for (let node = n - 1; node > 0; node--) {
        sibling[node] = firstChild[parent[node]];
        firstChild[parent[node]] = node;
    }
    for (let node = 1; node < n; node++) isTopmost[node] = nearest(tree, node) ? 0 : 1;
    return { ...tree, firstChild, sibling, isTopmost };
}

/** The nearest ancestor with a node's item; 0 for none. */
function nearest({ parent, item }, node) {
    let above = parent[node];
    while (above && item[above] !== item[node]) above = parent[above];
    return above;
}

/** What the nodes of a tree weigh: their own, and with all below them. `leaves`: weights of the recording's nodes. */
export function weigh(tree, leaves) {
    const own = new Float64Array(tree.n);
    for (let node = 0; node < leaves.length; node++) if (leaves[node]) own[tree.nodeOf[node]] += leaves[node];
    return { own, whole: summedUp(tree, own) };
}

export function summedUp(tree, own) {
    const whole = own.slice();
    for (let node = tree.n - 1; node > 0; node--) whole[tree.parent[node]] += whole[node];
    return whole;
}

/** Which nodes lie on a stack that occurs. */
export function occurring(tree, leaves) {
    const found = new Uint8Array(tree.n);
    for (let node = 0; node < leaves.length; node++) if (leaves[node]) found[tree.nodeOf[node]] = 1;
    for (let node = tree.n - 1; node > 0; node--) if (found[node]) found[tree.parent[node]] = 1;
    return found;
}

/** For each item that occurs: what it weighs itself, and with what it calls, counted once on a stack. */
export function itemRows(tree, { own, whole }, occurs) {
    const n = tree.names.length;
    const exclusive = new Float64Array(n);
    const inclusive = new Float64Array(n);
    const isThere = new Uint8Array(n);
    for (let node = 1; node < tree.n; node++) {
        if (!occurs[node]) continue;
        const item = tree.item[node];
        isThere[item] = 1;
        exclusive[item] += own[node];
        if (tree.isTopmost[node]) inclusive[item] += whole[node];
    }
    const rows = [];
    for (let item = 0; item < n; item++) {
        if (isThere[item]) rows.push({ item, name: tree.names[item], exclusive: exclusive[item], inclusive: inclusive[item] });
    }
    return rows;
}

/**
 * Callers and callees of an item with attributed weights: those of stacks whose occurrence of it nearest to the leaf was
 * called by the one, or called the other. A pair that occurs in outer turns of a recursion alone weighs nothing.
 */
export function neighbours(tree, { own, whole }, occurs, wanted) {
    const callers = new Map();
    const callees = new Map();
    const inner = new Map(); // node -> weight of the stacks in which it is the innermost one
    const below = new Map(); // child -> the same of what it leads to
    let self = 0;
    for (let node = 1; node < tree.n; node++) {
        if (tree.item[node] !== wanted || !occurs[node]) continue;
        inner.set(node, (inner.get(node) ?? 0) + whole[node]);
        self += own[node];
        let child = node;
        let above = tree.parent[node];
        while (above && tree.item[above] !== wanted) [child, above] = [above, tree.parent[above]];
        if (!above) continue;
        inner.set(above, inner.get(above) - whole[node]);
        below.set(child, (below.get(child) ?? 0) + whole[node]);
    }
    for (const [node, weight] of inner) {
        const caller = tree.parent[node] ? tree.item[tree.parent[node]] : -1;
        callers.set(caller, (callers.get(caller) ?? 0) + weight);
        for (let child = tree.firstChild[node]; child; child = tree.sibling[child]) {
            if (!occurs[child]) continue;
            const item = tree.item[child];
            callees.set(item, (callees.get(item) ?? 0) + whole[child] - (below.get(child) ?? 0));
        }
    }
    return { callers, callees, self };
}
