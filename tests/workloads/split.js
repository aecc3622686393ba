// A known split over functions, in two threads: node split.js SECONDS [THREADS]
// Each round gives one() 1, three() 3 and seven() 7 parts of the CPU time of its thread.
'use strict';
const { Worker, isMainThread, workerData } = require('worker_threads');

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

function one(seed) { let x = seed; for (let k = 0; k < 1; k++) x = spinOne(PART, x); return x; }
function three(seed) { let x = seed; for (let k = 0; k < 3; k++) x = spinThree(PART, x); return x; }
function seven(seed) { let x = seed; for (let k = 0; k < 7; k++) x = spinSeven(PART, x); return x; }

// One copy each, so that none is shared: what they do is the same.
const spinOne = new Function('return ' + spin.toString())();
const spinThree = new Function('return ' + spin.toString())();
const spinSeven = new Function('return ' + spin.toString())();

function rounds(until) {
  let x = 1;
  while (Date.now() < until) {
    x = one(x);
    x = three(x);
    x = seven(x);
  }
  return x;
}

function main(seconds) {
  return rounds(Date.now() + seconds * 1000);
}

const seconds = Number(isMainThread ? process.argv[2] || 3 : workerData);
if (isMainThread) {
  const n = Number(process.argv[3] || 2);
  for (let i = 1; i < n; i++) new Worker(__filename, { workerData: seconds });
}
main(seconds);
