"""`jitdnn train`, `jitdnn test` and `jitdnn time`: Caffe's commands."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from jitdnn.caffe import Net, Solver, load_net, load_solver, time_net
from jitdnn.caffe.events import Event, Finished, Iterated, Snapshotted
from jitdnn.caffe.totals import Totals
from jitdnn.cli.console import Advance, progress, say, working
from jitdnn.cli.curves import History, require_matplotlib, save_png
from jitdnn.cli.together import Together, joined
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.settings import settings

STOPPED = 130


class Reporter:
    """A listener that prints the events as Caffe logs them, moves a bar, and keeps the history."""

    def __init__(self, advance: Advance = lambda done, note: None) -> None:
        self.history = History()
        self.snapshots: list[Path] = []
        self.is_stopped = False
        self.advance = advance
        self._note = ""  # the last loss that nobody need wait for

    def follow(self, event: Event) -> None:
        """Take note of how training ends and say nothing: another process reports."""
        if isinstance(event, Finished):
            self.is_stopped = event.is_stopped

    def __call__(self, event: Event) -> None:
        """Report one event."""
        self.history(event)
        if isinstance(event, Iterated):
            if isinstance(event.loss, float) or event.loss.is_known:
                self._note = f"loss {event.loss:.4f}"
            self.advance(event.iteration, self._note)
        if isinstance(event, Snapshotted):
            self.snapshots.append(event.path)
        if isinstance(event, Finished):
            self.is_stopped = event.is_stopped
        for line in event.lines():
            say(line)


def run_train(
    solver_file: str,
    resume: Path | None,
    weights: Sequence[str],
    plot: Path | None,
    memory: str | None,
    level: int | None,
    stages: Sequence[str],
    effects: Mapping[str, str],
    gpus: Sequence[str],
    threads: int | None,
    together: Together,
) -> int:
    """Train. `effects` says for the name of each signal whether it stops the training, has it take a snapshot, or does
    nothing. `gpus`: names, one for each process of this host. A training that is stopped takes the snapshot and returns
    130.
    """
    if resume is not None and weights:
        raise InvalidArgument("--resume takes the weights too: give it or --weights, not both")
    if plot is not None:
        require_matplotlib()
    with using_threads(threads), joined(together, gpus, threads) as joining:
        reporter = Reporter()
        is_told = joining.is_first
        solver = load_solver(
            solver_file,
            listener=reporter if is_told else reporter.follow,
            memory_limit=memory,
            level=level,
            stages=stages,
            caffe_files=True,
            **joining.options,
        )
        if solver.net.memory_plan is not None and is_told:
            say(solver.net.memory_plan.explain())
        for file in weights:
            names = solver.net.load_weights(file)
            if is_told:
                say(f"weights of {', '.join(names)} from {file}")
        if (own := joining.newest(solver.snapshot_prefix)) is not None:
            resume = own
            if is_told:
                say(f"started again: going on from {resume}")
        bar = progress(solver.parameter.max_iter, "training") if is_told else nullcontext(reporter.advance)
        with bar as reporter.advance, _signals(solver, effects, is_patient=joining.is_joined):
            solver.solve(resume)
    if plot is not None and is_told:
        save_png(reporter.history, plot, solver.net.name or solver_file)
        say(f"curves in {plot}")
    if reporter.is_stopped and not is_told:
        return STOPPED
    if reporter.is_stopped:
        say(f"stopped at iteration {solver.iteration}" + ("; to go on:" if reporter.snapshots else ""))
        if reporter.snapshots:
            say(f"jitdnn train {solver_file} --resume {reporter.snapshots[-1]}")
        return STOPPED
    return 0


@contextmanager
def _signals(solver: Solver, effects: Mapping[str, str], is_patient: bool = False) -> Iterator[None]:
    """Let signals have their effects. After an interrupt that stops the solver, the next one stops the program, unless
    `is_patient`: of several processes each gets it from the terminal and from their launcher.
    """
    before: dict[int, Any] = {}

    def stop(number: int, frame: object) -> None:
        solver.stop()
        if not is_patient:
            signal.signal(number, before[number])

    def snapshot(number: int, frame: object) -> None:
        solver.ask_for_snapshot()

    actions: dict[str, Any] = {"stop": stop, "snapshot": snapshot, "none": signal.SIG_IGN}
    for name, effect in effects.items():
        number = getattr(signal, name, None)  # there is no SIGHUP on Windows
        if number is not None:
            before[number] = signal.getsignal(number)
            signal.signal(number, actions[effect])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_test(
    net_file: str,
    weights: Sequence[str],
    iterations: int,
    level: int,
    stages: Sequence[str],
    gpu: Sequence[str],
    threads: int | None,
) -> None:
    """Print the outputs of every batch and their means, as `caffe test` does."""
    with using_threads(threads):
        net = load_net(net_file, "TEST", level=level, stages=stages, seed=0, **on_gpu(gpu))
        for file in weights:
            net.load_weights(file)
        needs_data(net, net_file, "a test needs")
        has_loss = any(weight for node in net.nodes for weight in node.loss_weights)
        totals, loss = Totals(), 0.0
        with progress(iterations, "testing") as advance:
            for batch in range(iterations):
                outputs = net.forward()
                loss += net.loss
                totals.add(outputs)
                for name, values in outputs.items():
                    if values.size == 1:
                        say(f"Batch {batch}, {name} = {values.item():g}")
                advance(batch + 1, "")
    if has_loss:
        say(f"Loss: {loss / iterations:g}")
    for name, mean in totals.means().items():
        if mean.size == 1:
            say(f"{name} = {mean.item():g}")


def run_time(
    net_file: str,
    iterations: int,
    phase: str,
    level: int,
    stages: Sequence[str],
    gpu: Sequence[str],
    threads: int | None,
) -> None:
    """Print the time of every layer, as `caffe time` does."""
    with using_threads(threads):
        net = load_net(net_file, phase, level=level, stages=stages, seed=0, **on_gpu(gpu))
        with working(f"{iterations} iterations"):
            found = time_net(net, iterations)
    for line in found.lines():
        say(line)


def on_gpu(gpu: Sequence[str]) -> dict[str, Any]:
    """The argument `device` of load_net and load_solver for --gpu: a number, or a name as cuda:0; none without it."""
    if not gpu:
        return {}
    if len(gpu) > 1 or gpu[0] == "all":
        raise NotSupported(f"--gpu {','.join(gpu)}: a net runs on one GPU, so give one number")
    return {"device": f"cuda:{gpu[0]}" if gpu[0].isdecimal() else gpu[0]}


def needs_data(net: Net, file: str, what: str) -> None:
    """Refuse a net whose inputs the caller fills: there is nobody to fill them."""
    if net.inputs:
        raise InvalidArgument(
            f"{file} takes its {' and '.join(net.inputs)} from the caller, as a net for deployment does: "
            f"{what} a net with a layer that reads data"
        )


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Run with so many threads, None: with those of the settings."""
    with settings(**({} if count is None else {"threads": count})):
        yield
