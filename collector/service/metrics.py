"""What Prometheus asks: figures of the daemon and its sessions, in its text format, by HTTP on a local socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from collector.errors import reason
from collector.linux import census
from collector.service.retention import MEGABYTE, REFUSED, WAITING

if TYPE_CHECKING:
    from collector.service.daemon import Daemon

_REQUEST_S = 5.0
_AT_ONCE = 16


class _Figures:
    """Of one daemon, as they are now."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        """Called by the library for each answer."""
        daemon, budget, totals = self._daemon, self._daemon.house.budget, self._daemon.house.totals
        sessions = list(daemon.sessions.values())
        states = GaugeMetricFamily("collectord_sessions", "Sessions by state.", labels=["state"])
        for state in sorted({session.state for session in sessions}):
            states.add_metric([state], sum(session.state == state for session in sessions))
        yield states
        yield CounterMetricFamily("collectord_samples", "Clock samples of runs that have ended.",
                                  totals["samples"])
        yield CounterMetricFamily("collectord_lost", "Samples and records that were lost, of runs that have ended.",
                                  totals["lost"])
        yield CounterMetricFamily("collectord_runs", "Recordings begun.", totals["runs"])
        yield CounterMetricFamily("collectord_cpu_seconds", "CPU time of the daemon and of all recordings.",
                                  daemon.own_cpu_s())
        pids = [os.getpid(), *(session.own_pid for session in sessions if session.own_pid)]
        yield GaugeMetricFamily("collectord_memory_bytes", "Resident memory of the daemon and of all recordings.",
                                sum(map(census.memory_bytes, pids)))
        yield GaugeMetricFamily("collectord_experiment_bytes", "Disk space of experiments.",
                                sum(session.n_bytes for session in sessions))
        yield GaugeMetricFamily("collectord_disk_free_bytes", "Free on the spool's disk.", daemon.spool.free_bytes())
        yield GaugeMetricFamily("collectord_disk_reserve_bytes", "What stays free.",
                                daemon.config.daemon.reserve_megabytes * MEGABYTE)
        clients = daemon.house.clients_budget
        yield GaugeMetricFamily("collectord_cpu_share", "Part of a CPU that the daemon and what is configured took "
                                "last.", budget.share)
        yield GaugeMetricFamily("collectord_interval_factor", "Intervals are so many times what is configured.",
                                budget.stretched)
        yield GaugeMetricFamily("collectord_clients_cpu_share", "Part of a CPU that what clients asked for took last.",
                                clients.share)
        yield GaugeMetricFamily("collectord_clients_interval_factor", "Intervals of what a client asks for now are so "
                                "many times that.", clients.stretched)
        yield from self._handoff()
        events = CounterMetricFamily("collectord_requests", "Requests by what came of them.", labels=["kind"])
        for kind, count in sorted(daemon.counts.items()):
            events.add_metric([kind], count)
        yield events

    def _handoff(self) -> Iterator[Metric]:
        handoff = self._daemon.handoff
        attempts = CounterMetricFamily("collectord_handoffs", "Attempts to hand experiments over, by what came of it.",
                                       labels=["outcome"])
        for outcome, count in sorted(handoff.counts.items()):
            attempts.add_metric([outcome], count)
        yield attempts
        owed = [kept for _, kept in handoff.owed()]
        by_state = GaugeMetricFamily("collectord_handoff_owed", "Experiments that were not handed over yet.",
                                     labels=["state"])
        for state in (WAITING, REFUSED):
            by_state.add_metric([state], sum(kept.owed == state for kept in owed))
        yield by_state
        yield GaugeMetricFamily("collectord_handoff_bytes", "Disk space of those.", sum(kept.n_bytes for kept in owed))


def text(daemon: Daemon) -> bytes:
    """The figures in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(daemon))
    return generate_latest(registry)


async def answer(daemon: Daemon, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request, one answer, whatever was asked for."""
    daemon.n_scrapes += 1
    try:
        if daemon.n_scrapes > _AT_ONCE:
            return
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_S)
        body = text(daemon)
        writer.write(_head(len(body)) + body)
        await asyncio.wait_for(writer.drain(), _REQUEST_S)
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), _REQUEST_S)
    except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    except Exception as err:
        daemon.counts["faults"] += 1
        daemon.say("error", f"metrics: {reason(err)}")
    finally:
        writer.transport.abort()
        daemon.n_scrapes -= 1


def _head(length: int) -> bytes:
    lines: Iterable[str] = ("HTTP/1.0 200 OK", f"Content-Type: {CONTENT_TYPE_LATEST}", f"Content-Length: {length}",
                            "Connection: close", "", "")
    return "\r\n".join(lines).encode()
