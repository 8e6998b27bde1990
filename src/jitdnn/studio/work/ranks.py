"""A run of several processes, one for each device of its place: torchrun's launcher inside of its worker.

The worker holds the lock of the run's folder and starts `python -m jitdnn.studio.work HOME RUN LEASE` for each device.
These are one group: each has its rows of every batch, and process 0 reports, snapshots and obeys for all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jitdnn.caffe import snapshot
from jitdnn.cluster.places import devices_of
from jitdnn.errors import ProcessGroupError
from jitdnn.parents import ORPHANED, end_with_parent
from jitdnn.studio.store import Row
from jitdnn.studio.work import kept_settings
from jitdnn.studio.work.run_access import RunAccess

Train = Callable[[RunAccess, Row, dict[str, Any]], int]


def is_rank() -> bool:
    """Whether torchrun's launcher started this process."""
    return "RANK" in os.environ


def launch(access: RunAccess, processes: int) -> int:
    """Start the processes, wait for them, and return 0, or 130 where a signal had all of them leave. Raises
    ProcessGroupError, naming the process that failed first, and NotSupported without PyTorch.
    """
    from jitdnn.distributed import launch as launched

    arguments, environment = access.again()
    os.environ.update(environment)
    return launched(arguments, processes, module="jitdnn.studio.work")


def joined(access: RunAccess, train: Train, follow: Train) -> int:
    """Be one of the processes: call `train(access, row, options)` in process 0, `follow` in the others."""
    from jitdnn import distributed

    end_with_parent()
    row = access.run()
    place = distributed.place()
    assert place is not None
    device = devices_of(row["device"])[place.local_rank]
    group: distributed.TorchGroup | None = None
    try:
        group = distributed.start(device=device if ":" in device else None)
        options = {"device": device, "group": group}
        with kept_settings.in_force(access.folder):
            return (follow if place.rank else train)(access, row, options)
    except ProcessGroupError as error:  # the worker tells of the one that failed
        sys.stderr.write(f"{error}\n")
        return ORPHANED
    finally:
        if group is not None:
            group.close()


def newest(prefix: str, group: Any) -> Path | None:
    """The snapshot to go on from; of a group's processes the first looks, for all."""
    if group is None:
        return snapshot.newest(prefix)
    found = None if group.rank else snapshot.newest(prefix)
    told: bytes = group.share(b"" if found is None else os.fsencode(found))
    return Path(os.fsdecode(told)) if told else None
