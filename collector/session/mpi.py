"""Ranks of an MPI job: who we are, told by the launcher's environment; and the experiment around them.

Standard library only: the target waits for this."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collector.errors import UsageError

if TYPE_CHECKING:
    from collector.session.options import Options

# Open MPI, PMIx, MPICH and its kin, MVAPICH: the rank; and what tells one job from another.
_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_ID_JOB", "MV2_COMM_WORLD_JOBID")


@dataclass(frozen=True)
class Rank:
    """One process of an MPI job; all ranks of a job on a machine have the same ``job``."""

    number: int
    job: str


def rank(environment: Mapping[str, str] = os.environ) -> Rank:
    """Our rank. Raises UsageError where no launcher has given us one."""
    for name in _RANK:
        value = environment.get(name, "")
        if value.isascii() and value.isdigit():
            job = next((f"{key}={environment[key]}" for key in _JOB if environment.get(key)), f"parent={os.getppid()}")
            return Rank(int(value), job)
    raise UsageError("-M on: no MPI rank in the environment; start it as: mpirun -np N collect -M on program ...")


def fill_founder(path: Path, options: Options, pid: int, start_ns: int) -> None:
    """Makes the directory around the ranks of a job an experiment that opens; it has no data of its own."""
    from collector.experiment.recorder import Recorder
    from collector.session.headers import Headers
    from collector.session.heir import Ids

    recorder = Recorder.create(path, Headers(options, Ids.ours()).job(pid, start_ns))
    recorder.comment("founder of an MPI job; its ranks are in M_r*.er")
    recorder.close(start_ns)
