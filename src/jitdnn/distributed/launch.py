"""Starting the processes of a command on this host, by the launcher behind torchrun, and what torchrun tells them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.errors import InvalidArgument, NotSupported, ProcessGroupError
from jitdnn.parents import ORPHANED

INTERRUPTED = 130


@dataclass(frozen=True)
class Place:
    """Which process this is, as torchrun said it: of all, on its host, and how often they were started again."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    restarts: int


def place() -> Place | None:
    """Where torchrun put this process, None if it did not start it. Raises InvalidArgument for what is no number."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    defaults = ("", "", "0", "1", "0")
    try:
        return Place(
            *(int(os.environ.get(name, default)) for name, default in zip(names, defaults, strict=True))
        )
    except ValueError as error:
        raise InvalidArgument(f"{', '.join(names)} are torchrun's: {error}") from error


def launch(arguments: Sequence[str], processes: int, max_restarts: int = 0, module: str = "jitdnn") -> int:
    """Run `python -m MODULE ARGUMENTS` in so many processes that torchrun's launcher starts and watches, and return
    the exit code: 0, or 130 if they were stopped.

    When one ends early the others are ended, and with `max_restarts` all are started again, so often. Raises
    ProcessGroupError, naming the process that failed first; NotSupported without PyTorch.
    """
    try:
        from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except ImportError as error:
        raise NotSupported(
            f'several processes need PyTorch: pip install "jitdnn[distributed]" ({error})'
        ) from error
    if processes < 1:
        raise InvalidArgument(f"{processes} processes: there must be one or more")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch computes nothing here
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # a store of its own for each restart
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"jitdnn-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        elastic_launch(config, sys.executable)("-u", "-m", module, *arguments)
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: (item[1].timestamp, item[0]))
        codes = {failure.exitcode for _, failure in failures}
        if codes == {INTERRUPTED}:
            return INTERRUPTED
        rank, failure = min(failures, key=lambda item: _is_effect(item[1].exitcode))
        raise ProcessGroupError(
            f"process {rank} of {processes} {_how(failure.exitcode)} (pid {failure.pid}), so that the others were ended"
            f"{f' after {max_restarts} restarts' if max_restarts else ''}; the last snapshot is whole: go on from it "
            "with --resume",
            rank,
        ) from None
    except SignalException as stopped:
        if stopped.sigval in (signal.SIGINT, signal.SIGTERM):
            return INTERRUPTED
        raise ProcessGroupError(f"the processes were ended by {stopped.sigval.name}") from None
    return 0


def _is_effect(code: int) -> bool:
    """Whether a process ended because another one had gone, which the launcher ends by SIGTERM."""
    return code in (-signal.SIGTERM, ORPHANED, INTERRUPTED)


def _how(code: int) -> str:
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"failed with exit code {code}"
