"""The files of a run, from a net as text, options and a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn.caffe.deployment import deployment
from jitdnn.caffe.prototxt import to_text
from jitdnn.files import write_whole
from jitdnn.studio.data import open_dataset
from jitdnn.studio.nets.asked import asked_of
from jitdnn.studio.nets.binding import Bound
from jitdnn.studio.nets.checks import checked_net
from jitdnn.studio.nets.fine_tuning import START, start_from
from jitdnn.studio.nets.loss_matrix import FILE, loss_matrix, train_by_matrix
from jitdnn.studio.nets.solvers import solver_of
from jitdnn.studio.store import ORIGINAL, SOLVER


def write(
    folder: str | Path, text: str, options: Mapping[str, Any], dataset: Mapping[str, Any], home: str | Path
) -> int:
    """Write original.prototxt, net.prototxt, deploy.prototxt and solver.prototxt into `folder`, which is made, and
    return the number of iterations. Where a mean is subtracted mean.npy is there too, start.npz where it begins
    with the weights of a file, and infogain.npy where classes have weights or labels are smoothed.

    Raises JitdnnError for what `check` finds wrong; nothing is written then.
    """
    folder, home = Path(folder), Path(home)
    settings, facts = asked_of(options, dataset)
    bound, net = checked_net(text, settings, facts, home, folder)
    solver = solver_of(settings, facts)
    start = start_from(bound, net, settings.weights, settings.freeze) if settings.weights else None
    matrix = loss_matrix(settings, facts)
    if matrix is not None:
        train_by_matrix(bound)
    folder.mkdir(parents=True, exist_ok=True)
    if matrix is not None:
        write_whole(folder / FILE, lambda file: np.save(file, matrix))
    if start is not None:
        arrays: dict[str, Any] = dict(start.arrays)
        write_whole(folder / START, lambda file: np.savez(file, **arrays))
        solver.weights = [START]
    _write_mean(bound, dataset, home, folder)
    for name, content in (
        (ORIGINAL, text),
        ("net.prototxt", to_text(bound.net)),
        ("deploy.prototxt", to_text(deployment(bound.net, facts.shape, folder).net)),
        (SOLVER, to_text(solver)),
    ):
        _write_text(folder / name, content)
    return int(solver.max_iter)


def _write_text(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))


def _write_mean(bound: Bound, dataset: Mapping[str, Any], home: Path, folder: Path) -> None:
    """Put the mean of the training images where the net's layers of data expect it."""
    layers = [layer for layer in bound.net.layer if layer.type == "Data"]
    pixels = [layer for layer in layers if layer.transform_param.mean_value]
    if not any(layer.transform_param.has("mean_file") for layer in layers) and not pixels:
        return
    mean = open_dataset(home, dataset).mean
    for layer in pixels:
        layer.transform_param.mean_value = [round(float(value), 4) for value in mean.mean((1, 2), np.float64)]
    if any(layer.transform_param.has("mean_file") for layer in layers):
        write_whole(folder / "mean.npy", lambda file: np.save(file, mean))
