"""`jitdnn train --on SCHEDULER`: the same training at a worker of a Dask cluster, told here."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jitdnn.cli.console import say
from jitdnn.cli.together import Together
from jitdnn.cluster.engine import Engine
from jitdnn.cluster.places import resources_of
from jitdnn.cluster.shipping import absolute, ship
from jitdnn.cluster.training import INTERRUPTED, PLOT, RemoteTraining, Wanted
from jitdnn.errors import InvalidArgument


def run_train_elsewhere(
    solver_file: str,
    address: str,
    tls: Sequence[Path | None],
    resume: Path | None,
    plot: Path | None,
    options: Mapping[str, Any],
    effects: Mapping[str, str],
    gpu: Sequence[str],
    together: Together,
) -> int:
    """Train at a worker of the scheduler; return the exit code that the training has there.

    `options` are those of `jitdnn train`, with their values (a list: several times; None: not given). A worker that has
    what the training takes of it, the GPUs by name or a `cpu` for each process, is given the solver and its nets.
    """
    if resume is not None and options.get("--weights"):
        raise InvalidArgument("--resume takes the weights too: give it or --weights, not both")
    if resume is not None and not resume.is_file():
        raise InvalidArgument(f"there is no snapshot {resume}")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise InvalidArgument(f"{plot}: {plot.absolute().parent} is no folder")
    shipped = ship(solver_file)
    words = _words(options, effects, gpu, together, plot is not None)
    wanted = Wanted(shipped, words, _resources(gpu, together), resume, plot)
    engine = Engine.at(address, tls)
    try:
        training = RemoteTraining(engine, wanted, say)
        with _signals(training, effects):
            code = training.run()
    except KeyboardInterrupt:
        say("interrupted: the training there is being ended")
        return INTERRUPTED
    finally:
        engine.close()
    if code == INTERRUPTED and training.newest is not None:
        say(f"jitdnn train {solver_file} --on {address} --resume {training.newest}")
    if code == 0 and plot is not None:
        say(f"curves in {plot}")
    return code


def _resources(gpu: Sequence[str], together: Together) -> dict[str, int]:
    if list(gpu) == ["all"]:
        raise InvalidArgument(
            "--gpu all: workers have different GPUs, so name those that the training takes: --gpu 0,1"
        )
    if not gpu:
        return {"cpu": together.processes or 1}
    names = [f"cuda:{each}" if each.isdecimal() else each for each in gpu]
    return resources_of("+".join(names))


def _words(
    options: Mapping[str, Any],
    effects: Mapping[str, str],
    gpu: Sequence[str],
    together: Together,
    is_drawn: bool,
) -> list[str]:
    """The options of the process there."""
    given: dict[str, Any] = dict(options)
    # whoever has the package has the shipped files; others lie there as they do here
    given["--weights"] = [absolute(file, None) for file in options.get("--weights") or ()]
    given |= {
        "--gpu": ",".join(gpu) or None,
        "--processes": together.processes,
        "--max-restarts": together.max_restarts or None,
        "--batch-norm": together.batch_norm,
        "--wire": together.wire,
        "--sigint-effect": effects["SIGINT"],
        "--sighup-effect": effects["SIGHUP"],
        "--plot": f"{{folder}}/{PLOT}" if is_drawn else None,
    }
    words = ["--shard-state"] if together.shards_state else []
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            words += [] if each is None else [name, str(each)]
    return words


@contextmanager
def _signals(training: RemoteTraining, effects: Mapping[str, str]) -> Iterator[None]:
    """Hand SIGINT and SIGHUP on; the second SIGINT behind one that stops the training ends this program."""
    before: dict[int, Any] = {}

    def hand_on(number: int, frame: object) -> None:
        is_stop = effects[signal.Signals(number).name] == "stop"
        if is_stop and training.is_stopping:
            raise KeyboardInterrupt
        training.interrupt(number, is_stop=is_stop)

    for name in effects:
        number = getattr(signal, name, None)  # there is no SIGHUP on Windows
        if number is not None:
            before[number] = signal.signal(number, hand_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
