"""Caffe's pair of files beside a snapshot: PREFIX_iter_N.caffemodel and PREFIX_iter_N.solverstate, or their HDF5 twins.

A solver with `snapshot_format` writes them too, and `jitdnn train` and pycaffe's solvers do by default, as Caffe does.
Training goes on from a .solverstate with the weights, the history and the iteration; data are read from where the nets
stand, and random numbers are others. Only a .jdsnap file resumes exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jitdnn import log
from jitdnn.caffe import hdf5, paths
from jitdnn.caffe.blob import Array
from jitdnn.caffe.model_files import write_weights
from jitdnn.caffe.net import Net
from jitdnn.caffe.schema import SolverParameter
from jitdnn.caffe.solver_state import SolverState, read_solverstate, write_solverstate
from jitdnn.caffe.weights import copy_weights, read_weight_file
from jitdnn.caffe.wire import MOST_BYTES
from jitdnn.errors import InvalidArgument, JitdnnError, SnapshotError

SUFFIXES = {
    "BINARYPROTO": (".caffemodel", ".solverstate"),
    "HDF5": (".caffemodel.h5", ".solverstate.h5"),
}


class Pair(NamedTuple):
    """The files of the weights and of the state."""

    model: Path
    state: Path


def pair_of(snapshot: Path, form: str) -> Pair:
    """The names of the files beside a snapshot."""
    model, state = SUFFIXES[form]
    return Pair(snapshot.with_name(snapshot.stem + model), snapshot.with_name(snapshot.stem + state))


def check(solver: SolverParameter) -> None:
    """Raises NotSupported if the solver wants HDF5 and h5py is not installed: now, and not at the first snapshot."""
    if solver.has("snapshot_format") and solver.snapshot_format == "HDF5":
        hdf5.h5py()


def write_beside(
    snapshot: Path,
    solver: SolverParameter,
    net: Net,
    history: Mapping[str, Array],
    iteration: int,
    current_step: int,
    by_default: bool = False,
) -> tuple[Path, ...]:
    """Write the pair that snapshot_format asks for, the weights first, each whole or not at all; return the files.

    If it is not set there are none; with `by_default` those of BINARYPROTO, Caffe's default, unless the weights are too
    many for it, which is logged. Raises SnapshotError.
    """
    if not solver.has("snapshot_format"):
        if not by_default:
            return ()
        size = sum(blob.nbytes for blobs in net.weights.values() for blob in blobs)
        if size > MOST_BYTES // 2:  # a history may be twice as large
            log.fallback_once(
                ("no caffemodel", str(snapshot.parent)),
                f"{size:,} bytes of weights are too many for Caffe's binary files: beside {snapshot} none are written; "
                "set snapshot_format: HDF5 for them",
            )
            return ()
    pair = pair_of(snapshot, solver.snapshot_format)
    try:
        write_weights(net, net.parameter, pair.model, with_diff=solver.snapshot_diff)
        write_solverstate(pair.state, iteration, str(pair.model), list(history.values()), current_step)
    except InvalidArgument as error:
        raise SnapshotError(str(error)) from error
    return pair


def restore_pair(path: Path, net: Net, history: Mapping[str, Array]) -> SolverState:
    """Take up the weights and the history of a .solverstate; nothing changes if either does not fit.

    The weights are in the file that it names: from the working directory, from the folder of `path`, or there under the
    last part of the name. Raises SnapshotError.
    """
    try:
        state = read_solverstate(path)
        if len(state.history) != len(history):
            raise InvalidArgument(
                f"{path} has {len(state.history)} histories, and this solver {len(history)}: it is of another net, or "
                "another type"
            )
        for (name, mine), saved in zip(history.items(), state.history, strict=True):
            if not _fits(saved.shape, mine.shape):
                raise InvalidArgument(
                    f"{path}: the history of {name} has shape {saved.shape}, here {mine.shape}"
                )
        model = _model(state.learned_net, path)
        if model is not None:
            copy_weights(net, read_weight_file(net, model), str(model))
    except SnapshotError:
        raise
    except JitdnnError as error:
        raise SnapshotError(f"cannot go on from {path}: {error}") from error
    for mine, saved in zip(history.values(), state.history, strict=True):
        np.copyto(mine, saved.reshape(mine.shape), casting="same_kind")
    return state


def _fits(saved: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether they are equal but for extents of 1 in front, which old files have."""
    return saved == wanted or (
        saved[-len(wanted) :] == wanted and set(saved[: len(saved) - len(wanted)]) == {1}
    )


def _model(name: str, state: Path) -> Path | None:
    if not name:
        return None
    try:
        return paths.find(name, state.parent)
    except InvalidArgument:
        beside = state.parent / Path(name).name
        if beside.exists():
            return beside
        raise
