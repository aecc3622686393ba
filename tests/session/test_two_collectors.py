"""Somebody else has events of the same switches, and wants fewer registers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collector.engines.perf.opening import REGS_SITE_X86
from collector.experiment.reader import open_experiment
from collector.linux import abi, perf

pytestmark = pytest.mark.usefixtures("perf_allowed")

SLEEPS = "import time\nwhile True:\n    time.sleep(0.0002)"
WHO = abi.SAMPLE_TID | abi.SAMPLE_TIME | abi.SAMPLE_CPU
FLAGS = abi.SAMPLE_ID_ALL | abi.USE_CLOCKID | abi.INHERIT | abi.DISABLED
RING_BYTES = 1 << 16


def test_records_that_the_kernel_tears_are_lost_and_not_the_recording(tmp_path: Path) -> None:
    """The other's events are made while we record, so that the kernel serves them first."""
    with subprocess.Popen([sys.executable, "-c", SLEEPS]) as target:
        recording = subprocess.Popen(
            [Path(sys.executable).parent / "collect", "-v", "-o", tmp_path / "a.er", "-P", str(target.pid)],
            stderr=subprocess.PIPE, text=True)
        assert recording.stderr is not None
        assert "experiment" in recording.stderr.readline()
        for regs in (1 << 8, 1 << 7 | 1 << 8, REGS_SITE_X86, REGS_SITE_X86 | 1 << 5):  # of 1 to 4 words
            attr = abi.pack_attr(config=abi.SW_CONTEXT_SWITCHES, period=1, sample_type=WHO | abi.SAMPLE_REGS_USER,
                                 watermark=0, flags=FLAGS, regs_user=regs)
            rings = perf.open_rings([target.pid], [perf.EventSpec("other", attr, RING_BYTES)])
            rings.enable()
            while not any(rings.head(ring) > RING_BYTES // 2 for ring in rings.rings):
                assert recording.poll() is None, recording.communicate()[1]
                time.sleep(0.02)
            rings.close()
        recording.send_signal(signal.SIGINT)
        said = recording.communicate(timeout=60)[1]
        target.kill()
    assert recording.returncode == 0, said
    assert "internal error" not in said
    assert open_experiment(tmp_path / "a.er").log.complete
