// Work and waits of a known split over functions, in two threads: node split.js SECONDS
// Each thread works for so long: one() has 1, three() 3 and seven() 7 parts of it. Then the main thread waits; it prints
// how long it was in each function that does, in seconds.
'use strict';
const { Worker, isMainThread, workerData } = require('worker_threads');
const { execFileSync } = require('child_process');
const fs = require('fs');

const PART = 20000;

function spin(n, seed) {
  let x = seed | 1;
  for (let i = 0; i < n; i++) {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
  }
  return x;
}

function one(seed) { return spin(PART, seed); }
function three(seed) { return spin(3 * PART, seed); }
function seven(seed) { return spin(7 * PART, seed); }

function split(until) {
  let x = 1;
  while (Date.now() < until) {
    x = one(x);
    x = three(x);
    x = seven(x);
  }
  return x;
}

function waits() { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300); }
function executes() { execFileSync('sleep', ['0.3']); }
function reads() { fs.readFileSync(process.env.SPLIT_FIFO); }

if (isMainThread) {
  const worker = new Worker(__filename, { workerData: Number(process.argv[2]) });
  split(Date.now() + Number(process.argv[2]) * 1000);
  worker.on('exit', () => {
    const told = {};
    for (const wait of process.env.SPLIT_FIFO ? [waits, executes, reads] : [waits, executes]) {
      const begin = process.hrtime.bigint();
      wait();
      told[wait.name] = Number(process.hrtime.bigint() - begin) / 1e9;
    }
    console.log(JSON.stringify(told));
  });
} else {
  split(Date.now() + workerData * 1000);
}
