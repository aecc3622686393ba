"""Aggregations: many values in, few numbers out, as DTrace and SystemTap do it. Pure: no kernel, no files, no clock.

An aggregating function f obeys the merge law f(f(a) + f(b)) = f(a + b): values may be folded in any split and order,
on any CPU, and the parts merged when somebody asks. Nobody who adds ever waits for anybody.

    scales.py     which bucket a value falls into: quantize, lquantize, llquantize, hist_log, hist_linear
    fold.py       the functions; their state is the 64-bit words that DTrace stores
    columns.py    what keys are made of: columns of integers, names, stacks
    keyed.py      one state for each key; a batch of values is one pass, whatever the number of keys
    spans.py      what the recording side hands in, see below
    syntax.py     ``NAME[KEYS] = FUNC(VALUE, ARGS) / CONDITION /``: the grammar; standard library only, as bounds.py
    bounds.py     which arguments scales take
    language.py   such an expression, compiled to work on columns
    ready.py      the expressions that users of bpftrace and BCC know by name
    aggregation.py  an expression at work: spans in, keyed states out
    dtrace.py     record descriptions and the bytes of traced data, as DTrace lays them out
    histogram.py  histograms as DTrace and SystemTap print them
    listing.py    traced data and whole aggregations as ``dtrace`` prints them
    stats.py      SystemTap's statistics (``<<<``, ``@count`` ... ``@hist_log``)

What comes in is ``spans.Spans``: parallel columns of one length n, a row for each stretch of time in which one thread
was in one microstate. A span is handed in once, when it is over.

    start_ns  int64  CLOCK_MONOTONIC at its begin
    end_ns    int64  CLOCK_MONOTONIC at its end, not before start_ns
    state     uint8  the microstate: 0 user CPU, 1 system CPU, 2 trap CPU, 3 text page fault, 4 data page fault,
                     5 kernel page fault, 6 user lock, 7 sleep, 8 wait CPU, 9 stopped; 10 on a CPU, in one of the
                     first three, which the recording does not tell
    slot      int64  the thread, as the recording numbers it; a TID may come again, a slot does not
    tid, pid  int32  the kernel's numbers of thread and process
    cpu       int32  the CPU it ran on, or -1
    stack     int64  number of its call stack, or -1
    source    uint8  0 both edges recorded, 1 an edge adjusted to the kernel's accounts, 2 synthetic
    syscall   int32  number of the system call it is in, or -1   (optional)
    waker     int64  number of who ended it, or -1             (optional)
    wakerstack int64  number of the call stack of that, or -1  (optional)

A slot's spans come in time order and do not overlap. Names (execname, symbols) do not come with every span: they are
tables, indexed by slot, stack, system call or waker. The lengths of synthetic spans sum up right but were never seen
one by one: they are aggregated apart, so that they are in no distribution unmarked.
"""
