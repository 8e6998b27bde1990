"""What a solver is asked for while it trains: to stop, or to take a snapshot, from any thread or signal handler.
Several processes that train together do either in the same iteration.
"""

from __future__ import annotations

from threading import Event

from jitdnn.caffe.data_parallel import DataParallel


class Requests:
    """Those to one solver; with `parallel` the processes agree on them in each iteration, between `open` and
    `close`.
    """

    def __init__(self, parallel: DataParallel | None) -> None:
        self._parallel = parallel
        self._stopped, self._snapshot_wanted = Event(), Event()
        self._is_stop_agreed = self._is_snapshot_agreed = False
        self._is_snapshot_asked = False  # of the other processes, by this one

    def stop(self) -> None:
        """End training after the current iteration."""
        self._stopped.set()

    def ask_for_snapshot(self) -> None:
        """Have a snapshot taken after the current iteration."""
        self._snapshot_wanted.set()

    def begin(self) -> None:
        """Training begins: nobody has said that it should stop."""
        self._stopped.clear()
        self._is_stop_agreed = False

    def is_over(self) -> bool:
        """Whether training was told to stop; with other processes, in the same iteration in all."""
        return self._stopped.is_set() if self._parallel is None else self._is_stop_agreed

    def takes_snapshot(self) -> bool:
        """Whether a snapshot is to be taken now because somebody asked for it; with other processes, in the same
        iteration in all: who asks behind their agreement has it after the next one.
        """
        if self._parallel is not None:
            return self._is_snapshot_agreed
        is_asked = self._snapshot_wanted.is_set()
        self._snapshot_wanted.clear()
        return is_asked

    def open(self, loss: float) -> None:
        """Begin to agree with other processes about this iteration."""
        if self._parallel is not None:
            self._is_snapshot_asked = self._snapshot_wanted.is_set()
            self._parallel.open(loss, self._stopped.is_set(), self._is_snapshot_asked)

    def close(self) -> float:
        """Take up what was agreed, and return the loss of the whole batch."""
        if self._parallel is None:
            return 0.0
        agreed = self._parallel.close()
        self._is_stop_agreed, self._is_snapshot_agreed = agreed.is_stopped, agreed.is_snapshot_wanted
        if self._is_snapshot_asked:
            self._snapshot_wanted.clear()
        return agreed.loss
