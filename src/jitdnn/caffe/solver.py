"""Solver: trains a net as a solver file says, tests it, takes snapshots and goes on from them exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from jitdnn import __version__, log
from jitdnn.caffe import events, snapshot, solver_files
from jitdnn.caffe.blob import Array
from jitdnn.caffe.data_parallel import DataParallel
from jitdnn.caffe.debug_info import debugging, mean_magnitude, update_lines
from jitdnn.caffe.device import NetDevice, device_of
from jitdnn.caffe.early_update import EarlyUpdate
from jitdnn.caffe.events import (
    Debugged,
    Displayed,
    Finished,
    Iterated,
    Listener,
    Snapshotted,
    Started,
    Tested,
)
from jitdnn.caffe.files_beside import FilesBeside
from jitdnn.caffe.iteration import Iteration
from jitdnn.caffe.iteration_graph import IterationGraph
from jitdnn.caffe.loss_value import LossValue
from jitdnn.caffe.policies import LearningRate
from jitdnn.caffe.prototxt import to_text
from jitdnn.caffe.requests import Requests
from jitdnn.caffe.schema import NetState, SolverParameter
from jitdnn.caffe.shared_memory import Block, SharedMemory
from jitdnn.caffe.solver_checks import (
    SNAPSHOT_SCHEMA,
    check,
    check_meta,
    check_same_arrays,
    layer_states,
    outputs_of,
    prefix_of,
    restore_layers,
)
from jitdnn.caffe.solver_nets import limit_together, made_nets
from jitdnn.caffe.solver_state import is_solver_state
from jitdnn.caffe.totals import Totals
from jitdnn.caffe.updates import Updates
from jitdnn.caffe.upgrade import upgrade_solver
from jitdnn.caffe.waiting import WaitMeter
from jitdnn.caffe.weight_average import WeightAverage
from jitdnn.caffe.weights import weight_arrays, write_npz
from jitdnn.errors import NotSupported, SnapshotError
from jitdnn.groups import Group


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
        group: Group | None = None,
        batch_norm: str = "synchronized",
        wire: str = "f32",
        shards_state: bool = False,
        run: Collection[str] = (),
        keep_blobs: bool = False,
        writes_beside: bool = False,
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

        `group`: processes that train together, each with this call (jitdnn.distributed). Each has its rows of every
        batch, and the result is that of one process with the whole batch: `batch_norm` "synchronized", or "local"
        where the statistics are to be those of each process's rows. `wire`: gradients travel as "f32", or rounded to
        "bf16". With `shards_state` each process keeps a part of the history alone. Process 0 writes snapshots; the
        listeners of all are told the same.

        `keep_blobs`: data and gradients of all blobs and weights may be read after an iteration. Otherwise they share
        memory (shared_memory.py): those of inputs, outputs and losses are there, and asking for others raises
        InvalidArgument, once: from the next iteration on all are kept. Passes that a program runs itself keep all, too.

        `writes_beside`: snapshots, and what `save_weights_beside` writes, are written by a thread while training goes
        on, of copies, in their order. Each is whole, and told of, before the next snapshot is begun, and all are when
        `step` and `solve` return; an error ends training. Training waits for what several processes write, solvers with
        a memory_limit, and snapshots with Caffe's files beside them.

        `run`: names by which a start of the same training knows its snapshots again (snapshot.newest), and takes
        none that another training left under the same prefix.

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
        check(self.parameter)
        base = None if file is None else file.parent
        self.listener = listener
        self.caffe_files = caffe_files
        self.run = sorted(run)
        self.iteration = 0
        self.rate = LearningRate(self.parameter)

        self._parallel: DataParallel | None = None
        if group is not None:
            self._parallel = DataParallel(group, batch_norm=batch_norm, wire=wire, shards_state=shards_state)
        self._requests = Requests(self._parallel)
        seed = self.parameter.random_seed if seed is None else seed
        if seed < 0 and self._parallel is not None:
            seed = self._parallel.seed()
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
        self.net, self.test_nets = made_nets(self.parameter, base, root, self._parallel, options)
        self.average: WeightAverage | None = None
        if self.parameter.ema_decay:
            if group is not None and batch_norm == "local":
                raise NotSupported(
                    "ema_decay: with batch_norm 'local' each process would have averages of its own"
                )
            self.average = WeightAverage(self.net, self.parameter.ema_decay)
            for net in self.test_nets:
                self.average.share_with(net)
        keeps_updates = self.parameter.snapshot_diff or self.parameter.debug_info
        if shards_state and keeps_updates:
            raise NotSupported(
                "snapshot_diff and debug_info show whole updates: shards_state has each process keep a part"
            )
        shards = None if self._parallel is None else self._parallel.shards
        self.method = Updates(self.parameter, self.net.parameters, keeps_updates, shards)
        self._graph: IterationGraph | None = None
        is_whole = self.parameter.iter_size == 1 and not keeps_updates
        if graph and is_whole and self.device is not None and memory_limit is None:
            self._graph = IterationGraph(self.net, self.method, self._parallel)
        early: EarlyUpdate | None = None
        if not keep_blobs and memory_limit is None and not self.parameter.debug_info:
            if is_whole and self._parallel is None and not self.method.needs_all_gradients:
                early = EarlyUpdate(self.net, self.method)
            block = Block(self.device)
            for each in (self.net, *self.test_nets):
                is_trained, is_forced = each is self.net, each.parameter.force_backward
                spans = early.spans if early is not None and is_trained else None
                each.shared = SharedMemory(each, block, spans, is_forced=is_forced, is_trained=is_trained)
        self._steps = Iteration(
            self.net, self.method, self._requests, passes=self.parameter.iter_size, parallel=self._parallel,
            graph=self._graph, early=early,
        )  # fmt: skip
        self._is_pair = caffe_files or self.parameter.has("snapshot_format")
        self._files = FilesBeside(is_beside=writes_beside and group is None and memory_limit is None)
        self._losses: deque[float | LossValue] = deque(maxlen=self.parameter.average_loss)
        self._last_display: tuple[int, float] | None = None
        self._waits = WaitMeter(self.net)
        is_writer = group is None or not group.rank
        self.snapshot_prefix = prefix_of(self.parameter, self.net.name, file, snapshot_prefix, is_writer)
        if memory_limit is not None:
            history = self.method.nbytes + (0 if self.average is None else self.average.nbytes)
            limit_together(self.net, self.test_nets, memory_limit, history)

    # ---- training

    def solve(self, resume: str | Path | None = None) -> None:
        """Train up to max_iter, from a snapshot if one is named; snapshot and test at the end as the file
        says.
        """
        self._begin()
        if resume is not None:
            self.restore(resume)
        with self._files.until_written():
            self._solve()

    def _solve(self) -> None:
        parameter = self.parameter
        self._tell(Started(self.iteration, parameter.max_iter, self.net.name, parameter.lr_policy))
        self._run(parameter.max_iter - self.iteration)
        is_due = parameter.snapshot and self.iteration % parameter.snapshot == 0
        if parameter.snapshot_after_train and not is_due:
            self._snapshot_beside()
        if not self._requests.is_over():
            if parameter.display and self.iteration % parameter.display == 0:
                with self.net.lent_memory():
                    self.net.compute()
                loss = self.net.loss
                self._losses.append(loss if self._parallel is None else self._parallel.total(loss))
                self.net.release_memory()
                self._tell(Displayed(self.iteration, self._smoothed_loss()))
            if parameter.test_interval and self.iteration % parameter.test_interval == 0:
                self.test_all()
        self._files.wait()
        self._tell(Finished(self.iteration, self._requests.is_over()))

    def step(self, iterations: int) -> None:
        """Run so many iterations, with the tests, displays and snapshots that fall into them."""
        self._begin()
        with self._files.until_written():
            self._run(iterations)

    def _begin(self) -> None:
        self._requests.begin()
        if self._parallel is not None:
            self._parallel.agree_on_weights()
        if self.average is not None and not self.iteration:
            self.average.begin()

    def _run(self, iterations: int) -> None:
        parameter = self.parameter
        last = self.iteration + iterations
        self._last_display = None
        while self.iteration < last and not self._requests.is_over():
            if self._is_test_due():
                self.test_all()
                if self._requests.is_over():
                    return
            is_displayed = bool(parameter.display) and self.iteration % parameter.display == 0
            with self._debugging() if is_displayed and parameter.debug_info else nullcontext():
                rate = self.rate.at(self.iteration)
                # with the update, where that may be: it changes nothing of what is displayed
                loss = self._steps.run(rate, self.iteration)
            self._losses.append(loss)
            if is_displayed:
                self._display(rate)
            before = {}
            if is_displayed and parameter.debug_info:
                before = {each.name: mean_magnitude(each.blob.data) for each in self.net.parameters}
            self._steps.finish(rate, self.iteration)
            if self.average is not None:
                self.average.update(self.iteration)
            for line in update_lines(self.net, before) if before else ():
                self._tell(Debugged(self.iteration, line))
            self.iteration += 1
            is_due = bool(parameter.snapshot) and self.iteration % parameter.snapshot == 0
            # whoever listens knows of all files before a snapshot is begun that may be gone on from
            (self._files.wait if is_due else self._files.look)()
            self._tell(Iterated(self.iteration, loss, rate, self.method.norm))
            is_asked = self._requests.takes_snapshot()
            if is_due:
                self._snapshot_beside()
            elif is_asked:
                self._asked_snapshot()

    def ask_for_snapshot(self) -> None:
        """Take a snapshot after the current iteration and go on, from any thread or signal handler.

        If it cannot be written, the log says so, and training goes on.
        """
        self._requests.ask_for_snapshot()

    def _asked_snapshot(self) -> None:
        self._files.wait()  # whose errors end training
        try:
            if not self.snapshot_prefix:
                raise SnapshotError("it has no name: set snapshot_prefix")
            self.snapshot()
        except SnapshotError as error:
            log.tell(f"the snapshot that was asked for at iteration {self.iteration} was not taken: {error}")

    def stop(self) -> None:
        """End `step` or `solve` after the current iteration; `solve` still takes its snapshot."""
        self._requests.stop()

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
            if self._requests.is_over():
                break
            results.append(self.test(index))
            self._tell(results[-1])
        return results

    def test(self, index: int = 0) -> Tested:
        """Run one test net for its test_iter batches, and return the mean of each output."""
        net, batches = self.test_nets[index], self.parameter.test_iter[index]
        totals, loss = Totals(), 0.0
        if self._parallel is not None:
            self._parallel.settle()
        for _ in range(batches):
            if net.is_my_turn:
                with net.lent_memory():
                    totals.add(net.forward())
                loss += net.loss
            else:
                net.skip_batch()
        if self._parallel is not None:
            totals.sums, totals.batches, loss = self._parallel.sums(totals.sums, totals.batches, loss)
        means = totals.means()
        mean_loss = loss / batches if self.parameter.test_compute_loss else None
        return Tested(self.iteration, index, outputs_of(net, means), mean_loss)

    def _display(self, rate: float) -> None:
        now = perf_counter()
        speed = None
        if self._last_display is not None and now > self._last_display[1]:
            iteration, then = self._last_display
            speed = (self.iteration - iteration) / (now - then)
        self._last_display = self.iteration, now
        values = {name: self.net.blobs[name].read() for name in self.net.outputs}
        if self._parallel is not None:
            values = self._parallel.outputs(self.net, values)
        self._tell(
            Displayed(
                self.iteration,
                self._smoothed_loss(),
                outputs_of(self.net, values),
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

    # ---- weights and snapshots

    def save_weights(self, path: str | Path) -> None:
        """Write the weights that tests run with, as `Net.save_weights`: with ema_decay their average."""
        if self.average is None:
            self.net.save_weights(path)
        else:
            self.average.save(Path(path))

    def save_weights_beside(self, path: Path, then: Callable[[], object]) -> None:
        """As `save_weights`, of the weights as they are now; with `writes_beside` by its thread (.npz alone). `then` is
        called by this thread once the file is there, in `step` or `solve`.
        """
        if path.suffix != ".npz":
            self.save_weights(path)
            then()
            return
        arrays = self._files.kept(weight_arrays(self.net) if self.average is None else self.average.arrays)
        self._files.put(lambda: write_npz(path, arrays), lambda _: then())

    def snapshot(self, path: Path | None = None) -> Path:
        """Write all that an exact resume needs to `path` (None: PREFIX_iter_N.jdsnap); return the path."""
        path = path or snapshot.path_of(self.snapshot_prefix, self.iteration)
        self._files.wait()
        if self._parallel is None:
            pair = self._write(path, self.method.history)
        else:
            self._parallel.settle()
            history = self.method.history
            pair = self._parallel.wait_for_first(lambda: self._write(path, history)) or ()
        self._tell(Snapshotted(self.iteration, path, pair))
        return path

    def _snapshot_beside(self) -> None:
        if self._is_pair or self._parallel is not None:
            self.snapshot()
            return
        iteration, path = self.iteration, snapshot.path_of(self.snapshot_prefix, self.iteration)
        write = snapshot.prepared(path, self._meta(), self._files.kept(self._arrays(self.method.history)))
        self._files.put(write, lambda _: self._tell(Snapshotted(iteration, path)))

    def _write(self, path: Path, history: Mapping[str, Array]) -> tuple[Path, ...]:
        """Write the snapshot, and return the files beside it."""
        snapshot.write(path, self._meta(), self._arrays(history))
        return solver_files.write_beside(
            path,
            self.parameter,
            self.net,
            history,
            self.iteration,
            self.rate.current_step,
            self.caffe_files,
        )

    def _meta(self) -> dict[str, Any]:
        return {
            "schema": SNAPSHOT_SCHEMA,
            "library": __version__,
            "run": self.run,
            "iteration": self.iteration,
            "current_step": self.rate.current_step,
            "losses": [float(loss) for loss in self._losses],
            "method": self.parameter.type,
            "solver": to_text(self.parameter),
            "net": to_text(self.net.parameter),
            "layers": layer_states((self.net, *self.test_nets)),
        }

    def _resumed(self, history: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays that a snapshot gives back, by their names in it."""
        parts = {"weights": weight_arrays(self.net), "history": history}
        if self.average is not None:
            parts["average"] = self.average.arrays
        return {f"{part}/{name}": array for part, named in parts.items() for name, array in named.items()}

    def _arrays(self, history: Mapping[str, Array]) -> dict[str, Array]:
        arrays = self._resumed(history)
        if self.parameter.snapshot_diff:
            arrays |= {f"diff/{each.name}": each.blob.diff for each in self.net.parameters}
        return arrays

    def restore(self, path: str | Path) -> None:
        """Go on exactly where the snapshot was taken, or from a .solverstate, which has no place in the data.

        Raises SnapshotError for a file that is damaged (the message and `previous` offer the newest good
        one), or that belongs to another net or solver.
        """
        path = Path(path)
        if is_solver_state(path):
            history = self.method.history
            pair = solver_files.restore_pair(path, self.net, history)
            self.method.take_history(history)
            self.iteration, self.rate.current_step = pair.iteration, pair.current_step
            self._losses.clear()
            if self.average is not None:  # of which such a file knows nothing
                self.average.begin()
            return
        if self._parallel is None:
            meta, arrays = snapshot.read(path)
        else:
            meta, arrays = self._parallel.read_once(lambda: snapshot.read(path))
        check_meta(path, meta, self.parameter.type)
        history = self.method.history
        wanted = self._resumed(history)
        # what snapshot_diff adds is for others to read
        check_same_arrays(path, {n: a for n, a in arrays.items() if not n.startswith("diff/")}, wanted)
        restore_layers(path, (self.net, *self.test_nets), meta["layers"])
        for name, array in wanted.items():
            np.copyto(array, arrays[name])
        self.method.take_history(history)
        self.iteration = meta["iteration"]
        self.rate.current_step = meta["current_step"]
        self._losses.clear()
        self._losses.extend(meta["losses"])
