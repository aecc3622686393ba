"""Copies of load objects and sources in a closed experiment, by what its recording knows of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from collector.clock import NS_PER_S
from collector.errors import ExperimentError, NoDescriptors
from collector.experiment import names
from collector.experiment.log import Header
from collector.experiment.recorder import Recorder
from collector.session.objects import Objects


def archive(choice: str, recorder: Recorder, mapped_ns: Mapping[bytes, int], objects: Objects) -> list[str]:
    """Fills the archives of an experiment that is closed; what could not be copied, in lines.

    ``mapped_ns``: the load objects of it and its descendants, with the time when each was mapped last. The recording is
    whole whatever fails. Nothing is copied where an experiment could not be written; at its limit (-L), which is one of
    data, it could.
    """
    if choice == "off" or recorder.failed:
        return []
    doubles = [f"{names.shown(os.fsdecode(name))}: several files had this name; the first one is archived"
               for name in sorted(objects.doubles)]
    doubles += [f"{names.shown(os.fsdecode(name))}: was written anew while it was recorded; the last one is archived"
                for name in sorted(objects.rewritten)]
    try:
        return doubles + _archive(recorder.path, choice, recorder.header, mapped_ns, objects)
    except (ExperimentError, NoDescriptors) as err:
        return [*doubles, str(err)]


def _archive(directory: Path, choice: str, header: Header, mapped_ns: Mapping[bytes, int],
             objects: Objects) -> list[str]:
    from collector.experiment import archive as archives

    root, opened = objects.root, objects.sources()
    if choice in archives.KNOWN_CHOICES:
        unix_ns = header.start_unix * NS_PER_S - header.start_ns
        mapped_unix_ns = {name: time_ns + unix_ns for name, time_ns in mapped_ns.items()}
        return archives.archive_known(names.archives_path(directory), mapped_unix_ns, choice, root, opened,
                                      objects.identities).problems
    from collector.experiment import reader

    return archives.archive(reader.open_experiment(directory), choice, root=root, opened=opened).problems
