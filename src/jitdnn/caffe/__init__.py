"""Caffe's formats and training: prototxt in, trained net out.

solver = load_solver("package:models/lenet_solver.prototxt")
solver.solve()
net = load_net("package:models/lenet.prototxt")
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TypeVar

from jitdnn.caffe import paths
from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.events import Listener
from jitdnn.caffe.load import is_message, is_text, parse_file
from jitdnn.caffe.message import Message
from jitdnn.caffe.net import Net
from jitdnn.caffe.prototxt import parse, to_text
from jitdnn.caffe.schema import NetParameter, NetState, SolverParameter
from jitdnn.caffe.solver import Solver
from jitdnn.caffe.timing import time_net
from jitdnn.errors import InvalidArgument, ParseError

M = TypeVar("M", NetParameter, SolverParameter)

__all__ = [
    "Net",
    "NetParameter",
    "NetState",
    "Solver",
    "SolverParameter",
    "load_net",
    "load_solver",
    "parse",
    "time_net",
    "to_text",
]


def load_net(
    source: str | PathLike[str],
    phase: str = "TEST",
    *,
    level: int = 0,
    stages: Sequence[str] = (),
    weights: str | PathLike[str] | None = None,
    seed: int | None = None,
    dtype: str = "f32",
    algorithm: str | None = None,
    device: str | NetDevice | None = None,
    fuse: bool = True,
) -> Net:
    """Build a net from a prototxt file or from prototxt text (a string with a line break, a brace or a
    quote).

    `phase` ("TRAIN" or "TEST"), `level` and `stages` choose its layers. `weights` names an .npz file or a
    snapshot to start from. A file may be a shipped one, "package:models/lenet.prototxt". The others are those
    of Net.

    Raises ParseError with line and column, InvalidArgument and NotSupported with the line.
    """
    definition, file = _read(source, NetParameter)
    state = NetState(phase=phase, level=level, stage=list(stages))
    net = Net(
        definition,
        state,
        base=file.parent if file else None,
        seed=seed,
        dtype=dtype,
        algorithm=algorithm,
        device=device,
        fuse=fuse,
    )
    if weights is not None:
        net.load_weights(str(weights))
    return net


def load_solver(
    source: str | PathLike[str],
    *,
    listener: Listener | None = None,
    seed: int | None = None,
    dtype: str = "f32",
    algorithm: str | None = None,
    snapshot_prefix: str | None = None,
    memory_limit: int | str | None = None,
    device: str | NetDevice | None = None,
    fuse: bool = True,
    graph: bool = True,
) -> Solver:
    """Build a solver and its nets from a prototxt file or text; arguments and errors are as for Solver and
    load_net.
    """
    parameter, file = _read(source, SolverParameter)
    return Solver(
        parameter,
        file=file,
        listener=listener,
        seed=seed,
        dtype=dtype,
        algorithm=algorithm,
        snapshot_prefix=snapshot_prefix,
        memory_limit=memory_limit,
        device=device,
        fuse=fuse,
        graph=graph,
    )


def _read(source: str | PathLike[str], message: type[M]) -> tuple[M, Path | None]:
    """Parse text, or a file, whose path is returned too."""
    is_given = isinstance(source, str) and is_text(source)
    path = None if is_given else paths.find(source)
    try:
        return (parse(str(source), message) if path is None else parse_file(path, message)), path
    except ParseError as error:
        _refuse_the_other(error.text, message, path)
        raise


def _refuse_the_other(text: str, message: type[Message], path: Path | None) -> None:
    """Say so where a net stands in the place of a solver, or a solver in the place of a net."""
    here = "this text" if path is None else str(path)
    if message is SolverParameter and is_message(text, NetParameter):
        raise InvalidArgument(
            f'{here} is a net, not a solver: a solver\'s file names its net, as `net: "FILE"`'
        )
    if message is NetParameter and is_message(text, SolverParameter):
        raise InvalidArgument(f"{here} is a solver, not a net: give the file that it names as its net")
