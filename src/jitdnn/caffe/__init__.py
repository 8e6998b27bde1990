"""Caffe's formats and training: prototxt in, trained net out.

solver = load_solver("package:models/lenet_solver.prototxt")
solver.solve()
net = load_net("package:models/lenet.prototxt")
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from jitdnn import log
from jitdnn.arguments import shape, shown
from jitdnn.caffe import paths
from jitdnn.caffe.compiled import CompiledNet
from jitdnn.caffe.deployment import Deployment, deployment
from jitdnn.caffe.device import NetDevice
from jitdnn.caffe.events import Listener
from jitdnn.caffe.lenient import Repair, import_net
from jitdnn.caffe.load import is_message, is_text, naming, parse_file, read_text, read_text_leniently
from jitdnn.caffe.message import Message
from jitdnn.caffe.net import Net
from jitdnn.caffe.prototxt import parse, to_text
from jitdnn.caffe.schema import NetParameter, NetState, SolverParameter
from jitdnn.caffe.solver import Solver
from jitdnn.caffe.timing import time_net
from jitdnn.caffe.upgrade import upgrade_net, upgrade_solver
from jitdnn.errors import InvalidArgument, InvalidShape, ParseError
from jitdnn.groups import Group

M = TypeVar("M", NetParameter, SolverParameter)

__all__ = [
    "CompiledNet",
    "Deployment",
    "Net",
    "NetParameter",
    "NetState",
    "Solver",
    "SolverParameter",
    "deploy",
    "load_deployed",
    "load_net",
    "load_solver",
    "parse",
    "read_leniently",
    "time_net",
    "to_text",
    "upgrade",
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
    lenient: bool = False,
    inputs: Mapping[str, Sequence[int]] | None = None,
    python_layers: str | PathLike[str] | None = None,
    device: str | NetDevice | None = None,
    fuse: bool = True,
    channels_last: bool | None = None,
    shapes_only: bool = False,
) -> Net:
    """Build a net from a prototxt file or from prototxt text (a string with a line break, a brace or a
    quote).

    `phase` ("TRAIN" or "TEST"), `level` and `stages` choose its layers. `weights` names an .npz file or a
    snapshot to start from. A file may be a shipped one, "package:models/lenet.prototxt". The others are those
    of Net; `python_layers` is the folder that layers written in Python may come from. Their code runs with all
    rights of this process, so that a net with such layers is refused without it.

    With `lenient` a text from a web page is repaired as lenient.py says, and the logger `jitdnn` tells of every repair;
    `inputs` has the shapes of what its layers of data make where they name no source.

    Raises ParseError with line and column, InvalidArgument and NotSupported with the line.
    """
    if lenient:
        definition, repairs, file = read_leniently(source, inputs)
        for repair in repairs:
            log.tell(f"{file or 'text'}, {repair}")
    elif inputs:
        raise InvalidArgument("inputs are for lenient=True: Net.reshape changes the shapes of a net's inputs")
    else:
        definition, file = _read(source, NetParameter)
    state = NetState(phase=phase, level=level, stage=list(stages))
    with naming(file):
        net = Net(
            definition,
            state,
            base=file.parent if file else None,
            seed=seed,
            dtype=dtype,
            algorithm=algorithm,
            device=device,
            fuse=fuse,
            channels_last=channels_last,
            shapes_only=shapes_only,
            python_layers=None if python_layers is None else Path(python_layers),
        )
    if weights is not None:
        net.load_weights(str(weights))
    return net


def load_deployed(
    source: str | PathLike[str],
    weights: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    *,
    outputs: Sequence[str] | None = None,
    threads: int | None = None,
    **how: Any,
) -> CompiledNet:
    """Return the net of a prototxt file or text, in phase TEST and with these weights, ready to answer.

    `weights`: one file or several (.caffemodel, .npz, a snapshot). `outputs`: names of blobs, those that no layer reads
    if None. `threads`: how many the kernels use, instead of the setting. Whatever else `load_net` takes may be given.
    Raises what `load_net` and `Net.compiled` do.
    """
    net = load_net(source, "TEST", **how)
    several = weights if isinstance(weights, Sequence) and not isinstance(weights, str) else [weights]
    for file in several:
        if file is not None:
            net.load_weights(str(file))
    return net.compiled(outputs, threads=threads)


def load_solver(
    source: str | PathLike[str],
    *,
    listener: Listener | None = None,
    seed: int | None = None,
    dtype: str = "f32",
    algorithm: str | None = None,
    snapshot_prefix: str | None = None,
    memory_limit: int | str | None = None,
    level: int | None = None,
    stages: Sequence[str] = (),
    python_layers: str | PathLike[str] | None = None,
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
) -> Solver:
    """Build a solver and its nets from a prototxt file or text; arguments and errors are as for Solver and
    load_net.
    """
    parameter, file = _read(source, SolverParameter)
    with naming(file):
        return Solver(
            parameter,
            file=file,
            listener=listener,
            seed=seed,
            dtype=dtype,
            algorithm=algorithm,
            snapshot_prefix=snapshot_prefix,
            memory_limit=memory_limit,
            level=level,
            stages=stages,
            device=device,
            fuse=fuse,
            graph=graph,
            channels_last=channels_last,
            caffe_files=caffe_files,
            group=group,
            batch_norm=batch_norm,
            wire=wire,
            shards_state=shards_state,
            run=run,
            keep_blobs=keep_blobs,
            writes_beside=writes_beside,
            python_layers=None if python_layers is None else Path(python_layers),
        )


def deploy(
    source: str | PathLike[str] | NetParameter,
    image: Sequence[int] | None = None,
    *,
    base: Path | None = None,
    level: int = 0,
    stages: Sequence[str] = (),
) -> Deployment:
    """Turn a net that is trained into one that answers: its layers of data become an input, its losses a Softmax, a
    Sigmoid or nothing, and what is about labels is left out. deployment.py has the rules.

        found = deploy("package:models/lenet.prototxt")
        net = Net(found.net)
        net.load_weights("lenet_iter_500.jdsnap")
        answer = net.forward(**{found.input: found.prepare(images)})[found.answer]

    `source` is a prototxt file, text, or a NetParameter. `image` is the shape (C, H, W) of images before they are
    cropped; without it the net's source of data is looked at. `base` is where relative paths start, the file's folder
    if it is None; `level` and `stages` choose layers, as for `load_net`.

    Raises ParseError, InvalidShape for an image that is not (C, H, W), and InvalidArgument for a net without anything
    to give it or anything that it answers.
    """
    extents = None if image is None else shape(image, "image")
    if extents is not None and (len(extents) != 3 or 0 in extents):
        raise InvalidShape(f"image is {shown(image)}: give channels, height and width, each at least 1")
    definition, file = (source, None) if isinstance(source, NetParameter) else _read(source, NetParameter)
    state = NetState(stage=list(stages), **({"level": level} if level else {}))
    with naming(file):
        folder = base if base is not None or file is None else file.parent
        return deployment(definition, extents, folder, state)


def read_leniently(
    source: str | PathLike[str], inputs: Mapping[str, Sequence[int]] | None = None
) -> tuple[NetParameter, list[Repair], Path | None]:
    """Read a net from a web page's text or a file of it: the net in V2, what was repaired, and the path of the file.

    `inputs` and errors are as for `load_net`.
    """
    file = None if isinstance(source, str) and is_text(source) else paths.find(source)
    text, damage = (str(source), "") if file is None else read_text_leniently(file)
    with naming(file):
        net, repairs = import_net(text, inputs, "" if file is None else str(file))
    return net, [Repair(1, damage), *repairs] if damage else repairs, file


def upgrade(source: str | PathLike[str]) -> NetParameter | SolverParameter:
    """Read a net or a solver, from a file or as text, and return it in today's syntax (V2); `to_text` prints it.

    Raises ParseError for what is neither, InvalidArgument for what cannot be upgraded.
    """
    file = None if isinstance(source, str) and is_text(source) else paths.find(source)
    text = str(source) if file is None else read_text(file)
    if not is_message(text, NetParameter) and is_message(text, SolverParameter):
        parameter, _ = _read(source, SolverParameter)
        with naming(file):
            return upgrade_solver(parameter, nets=True)
    definition, _ = _read(source, NetParameter)
    with naming(file):
        return upgrade_net(definition)


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
