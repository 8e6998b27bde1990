"""A listener of the solver: curves and notes go to the access; it stops when somebody, or its patience, says so."""

from __future__ import annotations

import math
import time
from typing import Any

from jitdnn.caffe import Net, Solver
from jitdnn.caffe.events import Event, Finished, Iterated, Snapshotted, Started, Tested
from jitdnn.caffe.snapshot import SUFFIX
from jitdnn.errors import JitdnnError
from jitdnn.studio.store import BEST, Row
from jitdnn.studio.work.gpu_load import GpuLoad
from jitdnn.studio.work.run_access import Point, Report, RunAccess

PERIOD = 0.2
#: iterations between two values of the series "time/iteration", and of a GPU's load
_TIMED = 50
_KEPT = 2
PREFIX = "snap"
_WORST = (-math.inf, -math.inf)


class Diverged(JitdnnError):
    """The loss of a training is no number any more."""


class Reporter:
    """Reports the events of `solver`, to be set before it runs, about 5 times a second.

    A test and every iteration that a snapshot may follow are written at once: no snapshot is ever newer than what the
    store knows, so that a run which goes on from it leaves no gap. Files are written beside the training, in their
    order; what is told of one is told once it is there.
    """

    solver: Solver

    def __init__(self, access: RunAccess, row: Row, load: GpuLoad | None = None) -> None:
        self._access, self._load = access, load
        options = row["options"]
        self._batch = int(options.get("batch") or 0) * int(options.get("accumulate") or 1)
        self._patience = int(options.get("patience") or 0)
        self._spent = float(row["seconds"] or 0.0)
        self._best_told = int(row["best_at"] or 0)
        self._points: list[tuple[str, int, Any]] = []
        self._values: Row = {}
        self._marks: list[tuple[int, str]] = []
        self._last_told = time.monotonic()
        self._seen: int | None = None  # the snapshot that training goes on from
        self._best, self._best_loss, self._waited = _WORST, math.inf, 0
        self.why = ""  # why patience ended it
        self.intent = ""
        self.is_leaving = False  # told by a signal handler: stop after this iteration

    def resumed(self, iteration: int) -> None:
        """Training will go on from the snapshot of this iteration."""
        self._seen = iteration
        self._marks.append((iteration, f"went on from the snapshot at iteration {iteration:,}"))

    def __call__(self, event: Event) -> None:
        """Report one event."""
        if isinstance(event, Started):
            self._start(event.iteration)
        elif isinstance(event, Iterated):
            self._iterated(event)
        elif isinstance(event, Tested):
            self._tested(event)
        elif isinstance(event, Snapshotted):
            self._snapshotted(event)
        now = time.monotonic()
        is_due = self._is_snapshot_near(event)
        if is_due or isinstance(event, Tested | Finished) or now - self._last_told > PERIOD:
            self.flush(event.iteration, is_lasting=is_due or isinstance(event, Tested))
        if isinstance(event, Iterated) and (self.intent or self.is_leaving):
            self.solver.stop()
            self.flush(event.iteration, is_lasting=True)  # a snapshot follows

    def _start(self, iteration: int) -> None:
        self._first = self._timed_from = iteration
        self._begun = self._timed_at = time.monotonic()
        self._accuracy = _accuracy_of(self.solver)
        self._values |= {"iteration": iteration, "max_iter": self.solver.parameter.max_iter}
        if self._seen is None:
            self._marks.append((iteration, "training begins"))
        # the test at the snapshot's own iteration is run again
        losses = dict(self._access.history("val loss", iteration - 1))
        for value in losses.values():
            self._judge_loss(value)
        told = dict(self._access.history(f"val {self._accuracy}", iteration - 1)) if self._accuracy else {}
        best: Row = {}
        for at in told if self._accuracy else losses:
            best = self._judge(at, told.get(at), losses.get(at)) or best
        if best and best["best_at"] > self._best_told:  # its weights were there, and the worker was killed
            self._values |= best

    def _is_snapshot_near(self, event: Event) -> bool:
        if not isinstance(event, Iterated):
            return False
        parameter = self.solver.parameter
        is_last = event.iteration >= parameter.max_iter
        return is_last or bool(parameter.snapshot and event.iteration % parameter.snapshot == 0)

    def _iterated(self, event: Iterated) -> None:
        self._points += [("loss", event.iteration, event.loss), ("lr", event.iteration, event.rate)]
        if event.gradient_norm is not None:
            self._points.append(("gradient norm", event.iteration, event.gradient_norm))
        self._values |= {"iteration": event.iteration, "loss": event.loss}
        if event.iteration % _TIMED == 0:
            now = time.monotonic()
            if (done := event.iteration - self._timed_from) > 0:
                self._points.append(("time/iteration", event.iteration, (now - self._timed_at) / done))
            if self._load is not None:
                self._points += [(name, event.iteration, value) for name, value in self._load.read().items()]
            self._timed_from, self._timed_at = event.iteration, now

    def _tested(self, event: Tested) -> None:
        prefix = "val " if event.net == 0 else f"val {event.net + 1} "
        self._points += [(prefix + output.name, event.iteration, output.value) for output in event.outputs]
        if event.net:
            return
        loss = next((output.value for output in event.outputs if output.name == "loss"), None)
        weighted = [output.weight * output.value for output in event.outputs if output.weight]
        if loss is None and weighted:
            loss = sum(weighted)
            self._points.append(("val loss", event.iteration, loss))
        accuracy = next((o.value for o in event.outputs if o.name == self._accuracy), None)
        if accuracy is not None:
            self._values["accuracy"] = accuracy
        if best := self._judge(event.iteration, accuracy, loss):
            self._save_best(best)
        if loss is not None and event.iteration >= self._first:
            self._judge_loss(loss)
            if self._patience and self._waited >= self._patience:
                self.why = f"stopped early: no better loss in {self._waited} tests"
                self.solver.stop()

    def _judge(self, iteration: int, accuracy: float | None, loss: float | None) -> Row:
        """What to tell of a test if it is the best so far: by accuracy where the net says one, and of equal ones by
        loss; else by loss alone. Of few images the same number is right again and again, first of all where the net
        hardly knows.
        """
        judged = _judged(accuracy, loss)
        if not iteration or judged <= self._best:
            return {}
        self._best = judged
        name = f"val {self._accuracy}" if accuracy is not None else "val loss"
        return {"best": loss if accuracy is None else accuracy, "best_at": iteration, "best_of": name}

    def _save_best(self, told: Row) -> None:
        """Keep the weights as they are; `told` is told once they are on the disk."""
        file = self._access.folder / BEST

        def saved() -> None:
            self._access.saved(file)
            self._values |= told

        self.solver.save_weights_beside(file, saved)

    def save_last_as_best(self) -> None:
        """Where nothing was ever tested, the last weights are the best that there are."""
        if not (self._access.folder / BEST).exists():
            self.solver.save_weights(self._access.folder / BEST)
            self._access.saved(self._access.folder / BEST)

    def _judge_loss(self, loss: float) -> None:
        self._waited = 0 if loss < self._best_loss else self._waited + 1
        self._best_loss = min(loss, self._best_loss)

    def _snapshotted(self, event: Snapshotted) -> None:
        """Keep the last snapshots; the best weights are beside them."""
        self._access.saved(event.path)
        self._marks.append((event.iteration, f"snapshot at iteration {event.iteration:,}"))
        files = sorted(self._access.folder.glob(f"{PREFIX}_iter_*{SUFFIX}"), key=_iteration_of)
        for file in files[:-_KEPT]:
            file.unlink(missing_ok=True)
            self._access.removed(file)

    def flush(self, iteration: int, *, is_lasting: bool = False) -> None:
        """Write what has come together. Raises LeaseLost, and Diverged for a loss that is no number."""
        now = time.monotonic()
        done, took = iteration - self._first, now - self._begun
        points: list[Point] = [(name, at, float(value)) for name, at, value in self._points]
        values = self._values | {"seconds": self._spent + took}
        if "loss" in values:
            values["loss"] = _finite(float(values["loss"]))
        if done > 0 and took > (0 if is_lasting else 0.1):
            values["speed"] = self._batch * done / took if self._batch else done / took
        wrong = next((at for name, at, value in points if name == "loss" and math.isnan(value)), None)
        self.intent = self._access.tell(Report(points, values, self._marks), is_lasting=is_lasting)
        # what could not be written is kept for the next attempt
        self._points, self._values, self._marks = [], {}, []
        self._last_told = now
        if wrong is not None:
            raise Diverged(
                f"the loss is no number since iteration {wrong:,}: a lower learning rate, or clip_gradients, may help"
            )


def _judged(accuracy: float | None, loss: float | None) -> tuple[float, float]:
    """What tests are ordered by; what is no number is the worst."""
    right = 0.0 if accuracy is None else accuracy if math.isfinite(accuracy) else -math.inf
    lost = -loss if loss is not None and math.isfinite(loss) else -math.inf
    return (right, lost) if accuracy is not None or lost > -math.inf else _WORST


def _accuracy_of(solver: Solver) -> str | None:
    """The name of the test output that says how many are right: of the first Accuracy layer that asks for one guess."""
    nets: list[Net] = solver.test_nets[:1]
    found = [node for net in nets for node in net.nodes if node.layer.type == "Accuracy"]
    found.sort(key=lambda node: node.layer.parameter.accuracy_param.top_k)
    return found[0].top[0].name if found else None


def _iteration_of(file: Any) -> int:
    digits = file.name.removeprefix(f"{PREFIX}_iter_").removesuffix(SUFFIX)
    return int(digits) if digits.isdecimal() else -1


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
