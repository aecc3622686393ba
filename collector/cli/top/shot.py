"""What is to be seen at one moment: the figures of a live experiment, kept as they are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collector.cli.top.settings import Settings
from collector.clock import NS_PER_S
from collector.report.live import Figures, Interval, Live
from collector.report.metrics import Metric
from collector.report.profile import I8

_RECENT = 16


@dataclass(frozen=True)
class Shot:
    """``history``: length and states of the intervals so far; ``recent``: the last ones as a whole."""

    name: str
    program: bytes
    pid: int
    cumulative: Figures
    window: Figures
    history: Sequence[tuple[int, I8]]
    recent: Sequence[Interval]
    metrics: tuple[Metric, ...]
    n_experiments: int
    quiet_s: float
    is_over: bool

    def figures(self, settings: Settings) -> Figures:
        """Those that are asked for."""
        return self.cumulative if settings.is_cumulative else self.window

    def metric(self, settings: Settings) -> Metric:
        """The one by which functions are shown: CPU time, unless another one is chosen."""
        if settings.metric is not None:
            return self.metrics[settings.metric % len(self.metrics)]
        return next((metric for metric in self.metrics if metric.command == "totalcpu"), self.metrics[0])


def taken(live: Live, settings: Settings) -> Shot:
    """A shot of now."""
    log, all_ = live.following.founder.log, live.cumulative()
    kept = replace(all_, functions=list(all_.functions), threads=list(all_.threads), own=all_.own.copy(),
                   inclusive=all_.inclusive.copy(), by_thread=all_.by_thread.copy(), total=all_.total.copy())
    window = live.window(round(settings.window_s * NS_PER_S))
    return Shot(live.following.path.name, log.arguments, log.pid, kept, kept if window is all_ else window,
                list(live.history), live.recent(_RECENT), live.metrics, live.n_experiments, live.quiet_ns / NS_PER_S,
                live.is_over)
