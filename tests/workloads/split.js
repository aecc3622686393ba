// Work and waits of a known split over functions, in two threads: node split.js SECONDS
// The main thread waits; then each works for so long: one() has 1, three() 3 and seven() 7 parts of it. Printed is how
// long they were in each function, in seconds by the clock. With a second argument both stay until the input ends.
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { execFileSync } = require('child_process');
const fs = require('fs');

const PART = 20000;

// A round has the same parts always, but not the same length: nothing comes round with a clock.
function spin(n, seed) {
  let x = seed | 1;
  for (let i = 0; i < n; i++) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
  }
  return x;
}

function one(n, seed) { return spin(n, seed); }
function three(n, seed) { return spin(3 * n, seed); }
function seven(n, seed) { return spin(7 * n, seed); }

function split(until) {
  const told = { one: 0, three: 0, seven: 0 };
  let x = 1;
  while (performance.now() < until) {
    const n = PART + (x >>> 0) % PART;
    const times = [performance.now()];
    x = one(n, x);
    times.push(performance.now());
    x = three(n, x);
    times.push(performance.now());
    x = seven(n, x);
    times.push(performance.now());
    told.one += (times[1] - times[0]) / 1e3;
    told.three += (times[2] - times[1]) / 1e3;
    told.seven += (times[3] - times[2]) / 1e3;
  }
  return told;
}

function waits() { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300); }
function executes() { execFileSync('sleep', ['0.3']); }
function reads() { fs.readFileSync(process.env.SPLIT_FIFO); }

function timed(wait) {
  const begin = performance.now();
  wait();
  return (performance.now() - begin) / 1e3;
}

if (isMainThread) {
  const told = { waits: timed(waits), executes: timed(executes) };
  if (process.env.SPLIT_FIFO) told.reads = timed(reads);
  const seconds = Number(process.argv[2]);
  const worker = new Worker(__filename, { workerData: { seconds, stays: Boolean(process.argv[3]) } });
  const mine = split(performance.now() + seconds * 1000);
  worker.on('message', its => {
    for (const name in mine) told[name] = mine[name] + its[name];
    console.log(JSON.stringify(told));
    if (process.argv[3]) process.stdin.on('end', () => worker.terminate()).resume();
  });
} else {
  parentPort.postMessage(split(performance.now() + workerData.seconds * 1000));
  if (workerData.stays) parentPort.on('message', () => {});
}
