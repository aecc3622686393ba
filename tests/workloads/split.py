"""Two threads that give one, three and seven parts of their CPU time to three functions, each with a caller of its own,
in so many rounds, and others that wait in known functions; at the end, as JSON, how long each really was.

For every CPython from 3.8 on.
"""

import asyncio
import json
import sys
import threading
import time
from collections import Counter

PART_S = 0.0213  # a round is no multiple of a profiling interval
told = []  # of each thread its own: two that add to one would lose what one of them adds


def one(end):
    x = 0
    while time.thread_time() < end:
        for i in range(200):
            x += i


def three(end):
    x = 1
    while time.thread_time() < end:
        for i in range(200):
            x += i


def seven(end):
    x = 2
    while time.thread_time() < end:
        for i in range(200):
            x += i


def for_one(end):
    one(end)


def for_three(end):
    three(end)


def for_seven(end):
    seven(end)


def split(rounds):
    mine = Counter()
    told.append(mine)
    for _ in range(rounds):
        for work, parts in ((for_one, 1), (for_three, 3), (for_seven, 7)):
            begin = time.thread_time()
            work(begin + parts * PART_S)
            mine[work.__name__[4:]] += time.thread_time() - begin


def timed(name, wait):
    begin = time.monotonic() - time.thread_time()
    wait()
    told.append(Counter({name: time.monotonic() - time.thread_time() - begin}))


def sleeps():
    time.sleep(0.9)


def waits():
    threading.Event().wait(1.1)


def generates():
    def generated():
        time.sleep(0.7)
        yield 1

    list(generated())


def awaits():
    async def awaited():
        await asyncio.sleep(1.3)

    asyncio.run(awaited())


def main():
    rounds = int(sys.argv[1])
    asyncio.run(asyncio.sleep(0))  # what it imports it has
    threads = [threading.Thread(target=split, args=(rounds,)) for _ in range(2)]
    waiting = (sleeps, waits, generates, awaits)
    threads += [threading.Thread(target=timed, args=(wait.__name__, wait)) for wait in waiting]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(sum(told, Counter())))


main()
