"""Solver: trains a net as a solver file says, tests it, takes snapshots and goes on from them exactly."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np

from jitdnn import __version__, log
from jitdnn.caffe import events, paths, snapshot, solver_files
from jitdnn.caffe.blob import Array
from jitdnn.caffe.debug_info import debugging, mean_magnitude, update_lines
from jitdnn.caffe.device import NetDevice, device_of
from jitdnn.caffe.events import (
    Debugged,
    Displayed,
    Finished,
    Iterated,
    Listener,
    Output,
    Snapshotted,
    Started,
    Tested,
)
from jitdnn.caffe.iteration_graph import IterationGraph
from jitdnn.caffe.loss_value import LossValue
from jitdnn.caffe.net import Net
from jitdnn.caffe.policies import LearningRate
from jitdnn.caffe.prototxt import to_text
from jitdnn.caffe.schema import NetState, SolverParameter
from jitdnn.caffe.solver_nets import limit_together, testing_nets, training_net
from jitdnn.caffe.solver_state import is_solver_state
from jitdnn.caffe.totals import Totals
from jitdnn.caffe.update_rules import rule_of
from jitdnn.caffe.updates import Updates
from jitdnn.caffe.upgrade import upgrade_solver
from jitdnn.caffe.waiting import WaitMeter
from jitdnn.caffe.weights import load_weights, share_weights, weight_arrays
from jitdnn.errors import InvalidArgument, SnapshotError

# what a snapshot written by this version looks like inside; older ones are refused by number
SNAPSHOT_SCHEMA = 1


class Solver:
    """Trains `net` and tests `test_nets`, which share its weights.

    `iteration` counts the updates done. What happens is told to `listener` as events (events.py). `solve`
    runs to the end; `step` runs some iterations; `stop` ends either after the current one, from any thread or
    signal handler.
    """

    def __init__(
        self,
        parameter: SolverParameter,
        *,
        file: Path | None = None,
        listener: Listener | None = None,
        seed: int | None = None,
        dtype: str = "f32",
        algorithm: str | None = None,
        snapshot_prefix: str | None = None,
        memory_limit: int | str | None = None,
        level: int | None = None,
        stages: Sequence[str] = (),
        python_layers: Path | None = None,
        device: str | NetDevice | None = None,
        fuse: bool = True,
        graph: bool = True,
        channels_last: bool | None = None,
        caffe_files: bool = False,
    ) -> None:
        """Build the nets and check the fields.

        `file` is where the solver comes from: relative paths may start from its folder, and snapshots are
        named after it if the solver has no snapshot_prefix. `seed` and `snapshot_prefix` take the place of
        the solver's own. `dtype`, `algorithm`, `python_layers`, `fuse` and `channels_last` are those of Net, and so is
        `device`; without it the solver's solver_mode and device_id decide, and where there is no such GPU the processor
        trains, after a warning.
        `level` and `stages` are set in, and added to, the solver's `train_state`: they choose layers of the net that is
        trained.

        `caffe_files`: a .caffemodel and a .solverstate are written beside each snapshot without snapshot_format, too.

        `memory_limit` (bytes, or text such as "64 MiB") is the most that weights, their gradients and history, and all
        that flows through the nets take together; `Net.limit_memory` says how it is kept, and `memory_plan` of `net`
        what it costs. "least" is the smallest there is.

        Raises InvalidArgument for a solver or net that is wrong, or a limit that is too small, NotSupported for what
        the library lacks.
        """
        self.parameter = upgrade_solver(parameter)
        if level is not None or stages:
            own = {} if level is None else {"level": level}
            state = self.parameter.train_state.copy()
            state.merge(NetState(stage=list(stages), **own))
            self.parameter.train_state = state
        _check(self.parameter)
        base = None if file is None else file.parent
        self.listener = listener
        self.caffe_files = caffe_files
        self.iteration = 0
        self._stopped = Event()
        self._snapshot_wanted = Event()
        self.rate = LearningRate(self.parameter)

        seed = self.parameter.random_seed if seed is None else seed
        root = np.random.SeedSequence(seed if seed >= 0 else None)
        self.device = device_of(self.parameter, device)
        options: dict[str, Any] = {
            "dtype": dtype,
            "algorithm": algorithm,
            "device": self.device,
            "fuse": fuse and not self.parameter.debug_info,  # which tells of each layer by itself
            "python_layers": python_layers,
            "channels_last": channels_last,
        }
        definition, state, folder = training_net(self.parameter, base)
        tests = testing_nets(self.parameter, base)
        train_seed, *test_seeds = root.spawn(1 + len(tests))
        self.net = Net(definition, state, base=folder, seed=train_seed, **options)
        self.test_nets = [
            Net(definition, state, base=folder, seed=test_seed, **options)
            for (definition, state, folder), test_seed in zip(tests, test_seeds, strict=True)
        ]
        for net in self.test_nets:
            share_weights(net, self.net)
        for names in self.parameter.weights:
            for name in names.split(","):
                load_weights(self.net, paths.find(name.strip(), base))
        keeps_updates = self.parameter.snapshot_diff or self.parameter.debug_info
        self.method = Updates(self.parameter, self.net.parameters, keeps_updates)
        self._graph: IterationGraph | None = None
        is_whole = self.parameter.iter_size == 1 and not keeps_updates
        if graph and is_whole and self.device is not None and memory_limit is None:
            self._graph = IterationGraph(self.net, self.method)
        self._losses: deque[float | LossValue] = deque(maxlen=self.parameter.average_loss)
        self._last_display: tuple[int, float] | None = None
        self._waits = WaitMeter(self.net)
        self.snapshot_prefix = _writable_prefix(self.parameter, self.net, file, snapshot_prefix)
        if memory_limit is not None:
            history = self.method.nbytes
            limit_together(self.net, self.test_nets, memory_limit, history)

    # ---- training

    def solve(self, resume: str | Path | None = None) -> None:
        """Train up to max_iter, from a snapshot if one is named; snapshot and test at the end as the file
        says.
        """
        self._stopped.clear()
        parameter = self.parameter
        if resume is not None:
            self.restore(resume)
        self._tell(Started(self.iteration, parameter.max_iter, self.net.name, parameter.lr_policy))
        self._run(parameter.max_iter - self.iteration)
        is_due = parameter.snapshot and self.iteration % parameter.snapshot == 0
        if parameter.snapshot_after_train and not is_due:
            self.snapshot()
        if not self._stopped.is_set():
            if parameter.display and self.iteration % parameter.display == 0:
                self.net.forward()
                self._losses.append(self.net.loss)
                self.net.release_memory()
                self._tell(Displayed(self.iteration, self._smoothed_loss()))
            if parameter.test_interval and self.iteration % parameter.test_interval == 0:
                self.test_all()
        self._tell(Finished(self.iteration, self._stopped.is_set()))

    def step(self, iterations: int) -> None:
        """Run so many iterations, with the tests, displays and snapshots that fall into them."""
        self._stopped.clear()
        self._run(iterations)

    def _run(self, iterations: int) -> None:
        parameter = self.parameter
        last = self.iteration + iterations
        self._last_display = None
        while self.iteration < last and not self._stopped.is_set():
            if self._is_test_due():
                self.test_all()
                if self._stopped.is_set():
                    return
            is_displayed = bool(parameter.display) and self.iteration % parameter.display == 0
            with self._debugging() if is_displayed and parameter.debug_info else nullcontext():
                rate = self.rate.at(self.iteration)
                if self._graph is None:
                    loss = self._gradients()
                else:  # with the update, which changes nothing of what is displayed
                    loss = self._graph.iterate(rate, self.iteration)
            self._losses.append(loss)
            if is_displayed:
                self._display(rate)
            before = {}
            if is_displayed and parameter.debug_info:
                before = {each.name: mean_magnitude(each.blob.data) for each in self.net.parameters}
            if self._graph is None:
                self.method.update(rate, self.iteration)
            for line in update_lines(self.net, before) if before else ():
                self._tell(Debugged(self.iteration, line))
            self.iteration += 1
            self._tell(Iterated(self.iteration, loss, rate))
            is_asked = self._snapshot_wanted.is_set()
            self._snapshot_wanted.clear()
            if parameter.snapshot and self.iteration % parameter.snapshot == 0:
                self.snapshot()
            elif is_asked:
                self._asked_snapshot()

    def ask_for_snapshot(self) -> None:
        """Take a snapshot after the current iteration and go on, from any thread or signal handler.

        If it cannot be written, the log says so, and training goes on.
        """
        self._snapshot_wanted.set()

    def _asked_snapshot(self) -> None:
        try:
            if not self.snapshot_prefix:
                raise SnapshotError("it has no name: set snapshot_prefix")
            self.snapshot()
        except SnapshotError as error:
            log.tell(f"the snapshot that was asked for at iteration {self.iteration} was not taken: {error}")

    def stop(self) -> None:
        """End `step` or `solve` after the current iteration; `solve` still takes its snapshot."""
        self._stopped.set()

    def _gradients(self) -> float | LossValue:
        """Gradients of the weights, summed over iter_size batches, and the mean of their losses, which on a GPU nobody
        waits for.
        """
        self.net.clear_gradients()
        losses: list[Any] = []
        for _ in range(self.parameter.iter_size):
            self.net.compute()
            losses.append(self.net.current_loss())
            self.net.backward()
        if self.device is not None:
            return LossValue.mean(losses)
        mean: float = sum(losses) / len(losses)
        return mean

    def _debugging(self) -> AbstractContextManager[None]:
        return debugging(self.net, lambda line: self._tell(Debugged(self.iteration, line)))

    def _is_test_due(self) -> bool:
        parameter = self.parameter
        if not parameter.test_interval or self.iteration % parameter.test_interval:
            return False
        return self.iteration > 0 or parameter.test_initialization

    # ---- testing and telling

    def test_all(self) -> list[Tested]:
        """Run every test net for its test_iter batches; tell and return the results."""
        results = []
        for index in range(len(self.test_nets)):
            if self._stopped.is_set():
                break
            results.append(self.test(index))
            self._tell(results[-1])
        return results

    def test(self, index: int = 0) -> Tested:
        """Run one test net for its test_iter batches, and return the mean of each output."""
        net, batches = self.test_nets[index], self.parameter.test_iter[index]
        totals, loss = Totals(), 0.0
        for _ in range(batches):
            totals.add(net.forward())
            loss += net.loss
        means = totals.means()
        mean_loss = loss / batches if self.parameter.test_compute_loss else None
        return Tested(self.iteration, index, _outputs(net, means), mean_loss)

    def _display(self, rate: float) -> None:
        now = perf_counter()
        speed = None
        if self._last_display is not None and now > self._last_display[1]:
            iteration, then = self._last_display
            speed = (self.iteration - iteration) / (now - then)
        self._last_display = self.iteration, now
        values = {name: self.net.blobs[name].read() for name in self.net.outputs}
        self._tell(
            Displayed(
                self.iteration,
                self._smoothed_loss(),
                _outputs(self.net, values),
                rate,
                speed,
                self.parameter.display,
            )
        )
        if (waited := self._waits.look(self.iteration)) is not None:
            self._tell(waited)

    def _smoothed_loss(self) -> float:
        return sum(map(float, self._losses)) / len(self._losses)

    def _tell(self, event: events.Event) -> None:
        if self.listener is not None:
            self.listener(event)

    # ---- snapshots

    def snapshot(self, path: Path | None = None) -> Path:
        """Write all that an exact resume needs to `path` (None: PREFIX_iter_N.jdsnap); return the path."""
        path = path or snapshot.path_of(self.snapshot_prefix, self.iteration)
        meta = {
            "schema": SNAPSHOT_SCHEMA,
            "library": __version__,
            "iteration": self.iteration,
            "current_step": self.rate.current_step,
            "losses": [float(loss) for loss in self._losses],
            "method": self.parameter.type,
            "solver": to_text(self.parameter),
            "net": to_text(self.net.parameter),
            "layers": [
                [{"name": layer.name, "state": layer.state()} for layer in net.layers]
                for net in (self.net, *self.test_nets)
            ],
        }
        arrays = {f"weights/{name}": array for name, array in weight_arrays(self.net).items()}
        arrays |= {f"history/{name}": array for name, array in self.method.history.items()}
        if self.parameter.snapshot_diff:
            arrays |= {f"diff/{each.name}": each.blob.diff for each in self.net.parameters}
        snapshot.write(path, meta, arrays)
        pair = solver_files.write_beside(
            path,
            self.parameter,
            self.net,
            self.method.history,
            self.iteration,
            self.rate.current_step,
            self.caffe_files,
        )
        self._tell(Snapshotted(self.iteration, path, pair))
        return path

    def restore(self, path: str | Path) -> None:
        """Go on exactly where the snapshot was taken, or from a .solverstate, which has no place in the data.

        Raises SnapshotError for a file that is damaged (the message and `previous` offer the newest good
        one), or that belongs to another net or solver.
        """
        path = Path(path)
        if is_solver_state(path):
            pair = solver_files.restore_pair(path, self.net, self.method.history)
            self.iteration, self.rate.current_step = pair.iteration, pair.current_step
            self._losses.clear()
            return
        meta, arrays = snapshot.read(path)
        if meta.get("schema") != SNAPSHOT_SCHEMA:
            raise SnapshotError(
                f"{path} has schema {meta.get('schema')}, this version reads {SNAPSHOT_SCHEMA}"
            )
        _check_meta(path, meta)
        if meta["method"] != self.parameter.type:
            raise SnapshotError(
                f"{path} is of a solver of type {meta['method']}, this one is {self.parameter.type}"
            )
        parts = {
            "weights": weight_arrays(self.net),
            "history": self.method.history,
        }
        wanted = {f"{part}/{name}": array for part, named in parts.items() for name, array in named.items()}
        # what snapshot_diff adds is for others to read
        _check_same_arrays(path, {n: a for n, a in arrays.items() if not n.startswith("diff/")}, wanted)
        nets = (self.net, *self.test_nets)
        if len(meta["layers"]) != len(nets):
            raise SnapshotError(
                f"{path} is of a solver with {len(meta['layers']) - 1} test nets, "
                f"this one has {len(self.test_nets)}"
            )
        for net, saved in zip(nets, meta["layers"], strict=True):
            if [layer.name for layer in net.layers] != [entry["name"] for entry in saved]:
                raise SnapshotError(f"{path} is of a net with other layers: {_difference(net, saved)}")
        layers = [layer for net in nets for layer in net.layers]
        states = [entry["state"] for saved in meta["layers"] for entry in saved]
        before = [layer.state() for layer in layers]
        try:
            for layer, state in zip(layers, states, strict=True):
                layer.restore(state)
        # the states of generators are checked by NumPy, in its own way
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            for layer, state in zip(layers, before, strict=True):
                layer.restore(state)
            raise SnapshotError(f"{path} cannot be taken up: {error}") from error
        for name, array in wanted.items():
            np.copyto(array, arrays[name])
        self.iteration = meta["iteration"]
        self.rate.current_step = meta["current_step"]
        self._losses.clear()
        self._losses.extend(meta["losses"])


def _outputs(net: Net, values: Mapping[str, Array]) -> tuple[Output, ...]:
    """Every number of the output blobs, with the loss weight of its blob."""
    weights = {
        blob.name: weight
        for node in net.nodes
        for blob, weight in zip(node.top, node.loss_weights, strict=True)
    }
    return tuple(
        Output(name, float(value), weights[name])
        for name, array in values.items()
        for value in array.reshape(-1)
    )


def _check(parameter: SolverParameter) -> None:
    rule_of(parameter)
    for name, least in (
        ("iter_size", 1),
        ("average_loss", 1),
        ("max_iter", 0),
        ("snapshot", 0),
        ("display", 0),
    ):
        if getattr(parameter, name) < least:
            raise InvalidArgument(
                f"{name} is {getattr(parameter, name)}{parameter.where(name)}: it must be at least {least}"
            ).at(parameter.place(name))
    solver_files.check(parameter)


def _writable_prefix(parameter: SolverParameter, net: Net, file: Path | None, given: str | None) -> str:
    """The prefix of snapshots; InvalidArgument if some will be taken and cannot be written there."""
    prefix = given or parameter.snapshot_prefix or ("" if file is None else str(file.with_suffix("")))
    if prefix and Path(prefix).is_dir():
        prefix = str(Path(prefix) / (net.name or "net"))
    if parameter.snapshot or parameter.snapshot_after_train:
        if not prefix:
            raise InvalidArgument(
                "snapshots will be taken and have no name: set snapshot_prefix, or snapshot: 0 and "
                "snapshot_after_train: false"
            )
        folder = Path(prefix).parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InvalidArgument(
                f"snapshot_prefix {prefix!r}{parameter.where('snapshot_prefix')}: {folder.absolute()} is no "
                "folder that can be written to"
            ).at(parameter.place("snapshot_prefix"))
    return prefix


def _check_same_arrays(path: Path, found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    for name in sorted(found.keys() ^ wanted.keys()):
        where = "only in the snapshot" if name in found else "not in the snapshot"
        raise SnapshotError(f"{path} is of another net: {name} is {where}")
    for name, array in wanted.items():
        if found[name].shape != array.shape or found[name].dtype != array.dtype:
            raise SnapshotError(
                f"{path} is of another net: {name} is {found[name].dtype} of shape "
                f"{found[name].shape} there, {array.dtype} of shape {array.shape} here"
            )


def _check_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Raises SnapshotError unless everything that `restore` reads is there and of its type."""
    counts = [meta.get(name) for name in ("iteration", "current_step")]
    losses, layers = meta.get("losses"), meta.get("layers")
    for name, is_sound in (
        ("iteration or current_step", all(type(count) is int and count >= 0 for count in counts)),
        ("method", isinstance(meta.get("method"), str)),
        ("losses", isinstance(losses, list) and all(isinstance(loss, float) for loss in losses)),
        (
            "layers",
            isinstance(layers, list)
            and all(isinstance(saved, list) for saved in layers)
            and all(
                isinstance(entry, dict) and isinstance(entry.get("state"), dict) and "name" in entry
                for saved in layers
                for entry in saved
            ),
        ),
    ):
        if not is_sound:
            raise SnapshotError(f"{path} does not say what its {name} is: no solver of this version wrote it")


def _difference(net: Net, saved: list[dict[str, Any]]) -> str:
    ours, theirs = [layer.name for layer in net.layers], [entry["name"] for entry in saved]
    mine, other = next(pair for pair in itertools.zip_longest(ours, theirs) if pair[0] != pair[1])
    return f"{other!r} there is {mine!r} here"
