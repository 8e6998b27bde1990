"""Caffe's own state of a solver: .solverstate, and .solverstate.h5, its twin.

It has the iteration, the step of the learning rate, the history of the method, and the name of the file with the
weights, but neither the place in the data nor the random generators: training goes on from it, and not by the same bits
as without a stop. What does is a .jdsnap file (snapshot.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitdnn import limits
from jitdnn.caffe import hdf5
from jitdnn.caffe.blob import Array
from jitdnn.caffe.blob_proto import (
    Parts,
    blob_parts,
    field_parts,
    read_blob,
    read_whole,
    real_array,
    write_parts,
)
from jitdnn.caffe.model_files import HDF5
from jitdnn.caffe.wire import LENGTH, VARINT, Reader, key, prefixed, signed, varint
from jitdnn.errors import InvalidArgument

BINARY = ".solverstate"
_ITERATION, _LEARNED_NET, _HISTORY, _CURRENT_STEP = 1, 2, 3, 4
_MOST = (1 << 31) - 1


class SolverState(NamedTuple):
    """What a file holds. `learned_net` names the file of the weights, "" for none; `history` has an array for each
    weight, of AdaDelta and Adam the second ones of all weights behind the first ones of all.
    """

    iteration: int
    learned_net: str
    history: list[Array]
    current_step: int


def is_solver_state(path: Path) -> bool:
    """Whether the name is that of such a file: .solverstate, .solverstate.h5."""
    return path.suffix == BINARY or (path.suffix in HDF5 and Path(path.stem).suffix == BINARY)


def write_solverstate(
    path: Path, iteration: int, learned_net: str, history: Sequence[Array], current_step: int = 0
) -> None:
    """Write a state, whole or not at all, as HDF5 if the name ends in .h5. Raises InvalidArgument."""
    if path.suffix in HDF5:
        _write_hdf5(path, SolverState(iteration, learned_net, list(history), current_step))
        return
    parts: Parts = [key(_ITERATION, VARINT) + varint(iteration)]
    if learned_net:
        parts.append(prefixed(_LEARNED_NET, learned_net.encode()))
    for array in history:
        parts += field_parts(_HISTORY, blob_parts(real_array(array)))
    parts.append(key(_CURRENT_STEP, VARINT) + varint(current_step))
    write_parts(path, parts, "a solver's state")


def read_solverstate(path: Path) -> SolverState:
    """Read a state. Raises InvalidArgument if it is damaged, NotSupported without h5py for HDF5."""
    if path.suffix in HDF5:
        return _checked(_read_hdf5(path), path)
    reader = Reader(str(path))
    numbers, learned_net, history = {_ITERATION: 0, _CURRENT_STEP: 0}, "", list[Array]()
    for number, kind, value, content in reader.fields(read_whole(path, "a solver's state")):
        if number in numbers and kind == VARINT:
            numbers[number] = signed(value)
        elif number == _LEARNED_NET and kind == LENGTH:
            learned_net = reader.text(content, "learned_net")
        elif number == _HISTORY and kind == LENGTH:
            history.append(read_blob(content, reader, f"history {len(history)}").data)
    return _checked(SolverState(numbers[_ITERATION], learned_net, history, numbers[_CURRENT_STEP]), path)


def _checked(state: SolverState, path: Path) -> SolverState:
    for name, number in (("iter", state.iteration), ("current_step", state.current_step)):
        if not 0 <= number <= _MOST:
            raise InvalidArgument(f"{path}: {name} is {number}")
    return state


def _write_hdf5(path: Path, state: SolverState) -> None:
    def fill(file: Any) -> None:
        file.create_dataset("iter", data=np.array([state.iteration], np.int32))
        file.create_dataset("learned_net", data=np.bytes_(state.learned_net.encode() + b"\0"))
        file.create_dataset("current_step", data=np.array([state.current_step], np.int32))
        group = file.create_group("history")
        for index, array in enumerate(state.history):
            group.create_dataset(str(index), data=real_array(array))

    hdf5.write(path, fill)


def _read_hdf5(path: Path) -> SolverState:
    with hdf5.opened(path) as file:
        found = hdf5.datasets(file, path)
        for name in ("iter", "current_step"):
            if name not in found or found[name].size != 1:
                raise InvalidArgument(f"{path} is no state of a solver: it has no number {name}")
        history = {
            name: hdf5.array(dataset, path, name)
            for name, dataset in found.items()
            if name.startswith("history/")
        }
        names = [f"history/{index}" for index in range(len(history))]
        if history.keys() != set(names):
            raise InvalidArgument(f"{path}: history has {', '.join(sorted(history)[:6])}, not 0, 1, 2 ...")
        return SolverState(
            int(hdf5.array(found["iter"], path, "iter").reshape(-1)[0]),
            _text(found.get("learned_net"), path),
            [history[name] for name in names],
            int(hdf5.array(found["current_step"], path, "current_step").reshape(-1)[0]),
        )


def _text(dataset: Any, path: Path) -> str:
    if dataset is None:
        return ""
    if dataset.shape not in ((), (1,)) or dataset.dtype.itemsize > limits.PROTOTXT_STRING:
        raise InvalidArgument(f"{path}: learned_net is no string")
    value = dataset[()] if dataset.shape == () else dataset[0]
    if not isinstance(value, bytes):
        raise InvalidArgument(f"{path}: learned_net is no string")
    return value.split(b"\0")[0].decode("utf-8", "replace")
