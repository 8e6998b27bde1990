"""A solver and its nets as one text that a process elsewhere can read; other files it must see under the same paths."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from jitdnn.caffe import paths
from jitdnn.caffe.load import parse_file
from jitdnn.caffe.message import Message
from jitdnn.caffe.prototxt import to_text
from jitdnn.caffe.schema import NetParameter, SolverParameter
from jitdnn.caffe.solver_checks import check, prefix_of
from jitdnn.caffe.solver_nets import testing_nets, training_net
from jitdnn.caffe.upgrade import upgrade_solver
from jitdnn.errors import InvalidArgument

#: fields that name a file or a folder which is read
_READ = {"source", "mean_file", "meanfile", "root_folder", "label_map_file", "name_size_file"}
_WRITTEN = re.compile(
    r"_iter_\d{1,18}(\.jdsnap|\.caffemodel|\.solverstate|\.caffemodel\.h5|\.solverstate\.h5)"
)


class Shipped(NamedTuple):
    """A solver to be trained elsewhere, with its nets inside, and the prefix of its snapshots here."""

    solver: SolverParameter
    prefix: Path

    def text(self, folder: str) -> str:
        """It as a file there, which writes snapshots into that folder."""
        solver = self.solver.copy()
        solver.snapshot_prefix = f"{folder}/{self.prefix.name}"
        return to_text(solver)

    def is_snapshot(self, name: str) -> bool:
        """Whether a file of that name is one of its snapshots, or lies beside one."""
        return name.startswith(self.prefix.name) and bool(
            _WRITTEN.fullmatch(name.removeprefix(self.prefix.name))
        )


def ship(file: str) -> Shipped:
    """Read a solver's file, and the nets that it names.

    Paths of files that are found from here become absolute, others stay: the machine that trains must see all of
    them. Raises what `load_solver` raises for a solver that is wrong, or whose snapshots could not be written here.
    """
    path = paths.find(file)
    base = path.parent
    solver = upgrade_solver(parse_file(path, SolverParameter))
    check(solver)
    net = training_net(solver, base)
    testing_nets(solver, base)
    prefix = Path(prefix_of(solver, net.net.name, path, None, is_writer=True))
    sent = solver.copy()
    for field, target in (("net", "net_param"), ("train_net", "train_net_param")):
        if sent.has(field):
            setattr(sent, target, _net(getattr(sent, field), base))
            sent.clear(field)
    nets = [*sent.test_net_param, *(_net(name, base) for name in sent.test_net)]
    for field in ("net_param", "train_net_param"):
        if solver.has(field):
            _make_absolute(getattr(sent, field), base)
    for each in sent.test_net_param:
        _make_absolute(each, base)
    if nets:
        sent.clear("test_net")
        sent.test_net_param = nets
    if sent.weights:
        sent.weights = [
            ",".join(absolute(name.strip(), base) for name in names.split(",")) for names in sent.weights
        ]
    return Shipped(sent, prefix.absolute())


def absolute(name: str, base: Path | None) -> str:
    """The path that a name means here, itself if nothing is there or it is a shipped one."""
    if not name or name.startswith("package:"):
        return name
    try:
        return str(paths.find(name, base).absolute())
    except InvalidArgument:
        return name


def _net(name: str, base: Path) -> NetParameter:
    path = paths.find(name, base)
    net = parse_file(path, NetParameter)
    _make_absolute(net, path.parent)
    return net


def _make_absolute(message: Message, base: Path, fields: Collection[str] = _READ) -> None:
    for field, value in list(message.present()):
        for each in value if field.is_repeated else [value]:
            if isinstance(each, Message):
                _make_absolute(each, base, fields)
        if field.name in fields and isinstance(value, str):
            found = absolute(value, base)
            # names in lists are put behind a root folder as they are
            ending = "/" if field.name == "root_folder" and value.endswith("/") else ""
            setattr(message, field.name, found.rstrip("/") + ending if ending else found)
