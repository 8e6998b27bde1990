"""`jitdnn classify`: the best classes of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn import limits
from jitdnn.caffe import paths
from jitdnn.caffe.pycaffe import Classifier, io, mode
from jitdnn.caffe.transform import read_mean_file
from jitdnn.cli.console import say
from jitdnn.cli.train import on_gpu, using_threads
from jitdnn.errors import InvalidArgument, InvalidShape


def run_classify(
    net_file: str,
    images: Sequence[Path],
    weights: Sequence[str],
    labels: Path | None,
    mean: str | None,
    top: int,
    size: str | None,
    oversample: bool,
    raw_scale: float,
    input_scale: float | None,
    channel_swap: str | None,
    gpu: Sequence[str],
    threads: int | None,
) -> None:
    """Print the best classes of each image with their scores, as Caffe's classification program does."""
    with using_threads(threads):
        with mode.built_on(on_gpu(gpu).get("device")):
            net = Classifier(net_file, None)
        for file in weights:
            net.core.load_weights(file)
        name = net.inputs[0]
        shape = net.blobs[name].shape
        if len(shape) != 4 or shape[1] not in (1, 3):
            raise InvalidShape(f"input {name!r} of {net_file} has shape {shape}: (N, 1 or 3, H, W) is needed")
        swap = _numbers(channel_swap or ("2,1,0" if shape[1] == 3 else "0"), "--channel-swap")
        means = None if mean is None else _means(mean, shape[1])
        net.transformer.set_all(
            name, mean=means, raw_scale=raw_scale, input_scale=input_scale, channel_swap=swap
        )
        if size is not None:
            net.image_dims = tuple(_numbers(size, "--resize"))
            if len(net.image_dims) != 2 or any(a < b for a, b in zip(net.image_dims, shape[2:], strict=True)):
                raise InvalidArgument(
                    f"--resize is {size}: height and width of at least {shape[2]},{shape[3]}"
                )
        pictures = [io.load_image(image, color=shape[1] == 3) for image in images]
        scores = net.predict_compiled(pictures, oversample=oversample)
    scores = scores.reshape(len(pictures), -1)
    names = None if labels is None else _labels(labels, scores.shape[1])
    for image, row in zip(images, scores, strict=True):
        say(f"---------- Prediction for {image} ----------")
        for index in np.argsort(-row, kind="stable")[:top]:
            say(f'{row[index]:.4f} - "{index if names is None else names[index]}"')


def _means(file: str, channels: int) -> Any:
    """The mean of each channel: of a mean image, as an array (K, H, W) or (1, K, H, W), or as it stands in the file."""
    path = paths.find(file)
    mean = read_mean_file(path)
    if mean.ndim not in (1, 3) or mean.shape[0] != channels:
        raise InvalidShape(
            f"the mean {path} has shape {mean.shape}: ({channels},) or ({channels}, H, W) is needed"
        )
    return mean.reshape(channels, -1).mean(1, dtype=np.float64)


def _labels(path: Path, classes: int) -> list[str]:
    try:
        text = limits.read_bounded(path, limits.PROTOTXT_BYTES, "names of classes").decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read as text: {error}") from error
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if len(names) != classes:
        raise InvalidArgument(
            f"{path} names {len(names)} classes, and the net has {classes}: a line for each"
        )
    return names


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(f"{option} is {text!r}: give integers between commas") from None
