"""What a solver checks: its fields, where snapshots go, and that a snapshot is of its nets, whose layers take it up."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jitdnn.caffe import solver_files
from jitdnn.caffe.blob import Array
from jitdnn.caffe.events import Output
from jitdnn.caffe.net import Net
from jitdnn.caffe.schema import SolverParameter
from jitdnn.caffe.update_rules import rule_of
from jitdnn.errors import InvalidArgument, SnapshotError

SNAPSHOT_SCHEMA = 1
"""What a snapshot written by this version looks like inside; older ones are refused by number."""


def outputs_of(net: Net, values: Mapping[str, Array]) -> tuple[Output, ...]:
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


def check(parameter: SolverParameter) -> None:
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
    if not 0 <= parameter.ema_decay < 1:
        raise InvalidArgument(
            f"ema_decay is {parameter.ema_decay:g}{parameter.where('ema_decay')}: it must be at least 0 (no average of "
            "the weights) and less than 1"
        ).at(parameter.place("ema_decay"))
    solver_files.check(parameter)


def prefix_of(
    parameter: SolverParameter, net_name: str, file: Path | None, given: str | None, is_writer: bool
) -> str:
    """The prefix of snapshots; InvalidArgument if this process will take some and cannot write there."""
    prefix = given or parameter.snapshot_prefix or ("" if file is None else str(file.with_suffix("")))
    if prefix and Path(prefix).is_dir():
        prefix = str(Path(prefix) / (net_name or "net"))
    if is_writer and (parameter.snapshot or parameter.snapshot_after_train):
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


def check_same_arrays(path: Path, found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    for name in sorted(found.keys() ^ wanted.keys()):
        where = "only in the snapshot" if name in found else "not in the snapshot"
        raise SnapshotError(f"{path} is of another net: {name} is {where}")
    for name, array in wanted.items():
        if found[name].shape != array.shape or found[name].dtype != array.dtype:
            raise SnapshotError(
                f"{path} is of another net: {name} is {found[name].dtype} of shape "
                f"{found[name].shape} there, {array.dtype} of shape {array.shape} here"
            )


def check_meta(path: Path, meta: Mapping[str, Any], method: str) -> None:
    """Raises SnapshotError unless all that `restore` reads is there and of its type, and the solver's is `method`."""
    if meta.get("schema") != SNAPSHOT_SCHEMA:
        raise SnapshotError(f"{path} has schema {meta.get('schema')}, this version reads {SNAPSHOT_SCHEMA}")
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
    if meta["method"] != method:
        raise SnapshotError(f"{path} is of a solver of type {meta['method']}, this one is {method}")


def layer_states(nets: Sequence[Net]) -> list[list[dict[str, Any]]]:
    """What `restore_layers` takes up: the name and the state of each layer, net by net."""
    return [[{"name": layer.name, "state": layer.state()} for layer in net.layers] for net in nets]


def restore_layers(path: Path, nets: Sequence[Net], saved: Sequence[list[dict[str, Any]]]) -> None:
    """Have all layers of the nets go on from what they saved, or none: SnapshotError for those of other nets."""
    if len(saved) != len(nets):
        raise SnapshotError(
            f"{path} is of a solver with {len(saved) - 1} test nets, this one has {len(nets) - 1}"
        )
    for net, entries in zip(nets, saved, strict=True):
        if [layer.name for layer in net.layers] != [entry["name"] for entry in entries]:
            raise SnapshotError(f"{path} is of a net with other layers: {_difference(net, entries)}")
    layers = [layer for net in nets for layer in net.layers]
    states = [entry["state"] for entries in saved for entry in entries]
    before = [layer.state() for layer in layers]
    try:
        for layer, state in zip(layers, states, strict=True):
            layer.restore(state)
    # the states of generators are checked by NumPy, in its own way
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        for layer, state in zip(layers, before, strict=True):
            layer.restore(state)
        raise SnapshotError(f"{path} cannot be taken up: {error}") from error


def _difference(net: Net, saved: list[dict[str, Any]]) -> str:
    ours, theirs = [layer.name for layer in net.layers], [entry["name"] for entry in saved]
    mine, other = next(pair for pair in itertools.zip_longest(ours, theirs) if pair[0] != pair[1])
    return f"{other!r} there is {mine!r} here"
