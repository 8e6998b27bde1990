"""How a net is trained: what a form, a script or a sweep may set, with the value that each has by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jitdnn.caffe.update_rules import RULES
from jitdnn.errors import InvalidArgument
from jitdnn.settings import parse_bytes
from jitdnn.studio.nets.schedules import SCHEDULES

#: arithmetic of products of float32 numbers that a training may choose; sums and what is kept are float32 in both
MATHS = ("fp32", "tf32")
#: which mean of the training images is subtracted
MEANS = ("as in the net", "none", "pixel", "image")
# batches by the least number of training images; the steps that a training has at least, within these epochs
_BATCHES = ((1_000, 64), (400, 32), (0, 16))
_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 600, 10, 100
# percent: without, the first steps of a new net may be so long that units never answer again
_WARMUP = 5.0
#: of class_weights: each class counts as much as any other
BALANCED = "balanced"


def _whole(least: int, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        number = float(str(value).replace("_", "").strip())
        if number != int(number) or not least <= number <= most:
            raise ValueError(f"give a whole number from {least:,} to {most:,}")
        return int(number)

    return check


def _real(least: float, most: float, is_open: bool = False) -> Callable[[object], float]:
    def check(value: object) -> float:
        number = float(str(value).strip())
        if not math.isfinite(number) or not least <= number <= most or (is_open and number == least):
            low = f"above {least:g}" if is_open else f"from {least:g}"
            raise ValueError(f"give a number {low} to {most:g}")
        return number

    return check


def _one_of(*names: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in names:
            raise ValueError(f"choose one of {', '.join(names)}")
        return str(value)

    return check


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("1", "true", "on", "yes"):
        return True
    if str(value).lower() in ("0", "false", "off", "no", "", "none"):
        return False
    raise ValueError("give true or false")


def _maybe(check: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None or value == "" else check(value)


def _percents(value: object) -> tuple[float, ...]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError("give percents of the training, as 50, 85")
    found = tuple(_real(0, 100, True)(part) for part in parts)
    if sorted(found) != list(found):
        raise ValueError("give percents of the training in ascending order, as 50, 85")
    return found


def _bytes(value: object) -> str:
    text = str(value).strip()
    if text.lower() not in ("", "none", "unlimited", "least"):
        parse_bytes(text)
    return "" if text.lower() in ("none", "unlimited") else text


def _class_weights(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value).strip()
    if text in ("", BALANCED):
        return text
    try:
        weights = [_real(0, 1e6)(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f"give {BALANCED}, or a number of at least 0 for each class, as 1, 2.5") from None
    if not any(weights):
        raise ValueError("give one class at least a weight above 0")
    return ", ".join(f"{weight:.9g}" for weight in weights)


def _names(value: object) -> tuple[str, ...]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ValueError("give names of layers")
    return tuple(parts)


def _option(default: Any, check: Callable[[object], Any], about: str) -> Any:
    return field(default=default, metadata={"check": check, "about": about})


@dataclass(frozen=True)
class Options:
    """The options of a training; `of` reads them from a mapping, whose other entries are left alone."""

    epochs: int | None = _option(
        None, _maybe(_whole(1, 100_000)), "how often every training image is seen; empty: by their number"
    )
    batch: int | None = _option(None, _maybe(_whole(1, 65_536)), "images a step; empty: by their number")
    accumulate: int = _option(1, _whole(1, 4_096), "batches whose gradients are added before each step")
    rate: float = _option(0.01, _real(0, 1_000), "the learning rate at the start")
    policy: str = _option("multistep", _one_of(*SCHEDULES), "how the learning rate falls")
    gamma: float | None = _option(None, _maybe(_real(0, 1, True)), "by what the rate is multiplied")
    power: float | None = _option(None, _maybe(_real(0, 100)), "the exponent of inv and poly")
    step: float | None = _option(
        None, _maybe(_real(0, 100, True)), "percent of the training between steps, or to the highest rate"
    )
    steps: tuple[float, ...] | None = _option(
        None, _maybe(_percents), "percents of the training where it drops"
    )
    warmup: float | None = _option(
        None,
        _maybe(_real(0, 100)),
        "percent of the training in which the rate rises from 0; empty: 5, none with one cycle, which rises itself",
    )
    solver: str = _option("SGD", _one_of(*RULES), "what becomes of a gradient")
    momentum: float = _option(0.9, _real(0, 0.9999), "how much of the last step is kept")
    decay: float = _option(0.0005, _real(0, 10), "by how much weights are drawn to 0")
    clip: float = _option(0.0, _real(0, 1e9), "the longest gradient, 0: any")
    weight_average: float = _option(
        0.0,
        _real(0, 0.999999),
        "of the moving average of the weights what stays in an iteration, as 0.999; 0: none",
    )
    smoothing: float = _option(0.0, _real(0, 0.99), "what of a label goes to all classes alike, as 0.1")
    class_weights: str = _option(
        "", _class_weights, "how much each class counts: balanced, or a number for each; empty: as its images"
    )
    patience: int = _option(0, _whole(0, 10_000), "stop after so many tests without a better loss; 0: never")
    tests: int = _option(2, _whole(1, 100), "tests an epoch")
    snapshots: float = _option(1.0, _real(0, 100), "snapshots an epoch, 0: only at the end")
    seed: int = _option(1, _whole(0, 2**31 - 1), "of all that is random")
    math: str = _option(
        "",
        _one_of("", *MATHS),
        "what products are computed in: tf32 rounds factors to 11 bits, on matrix units of NVIDIA GPUs alone; "
        "empty: as the settings of the machine say",
    )
    memory_limit: str = _option("", _bytes, "the most memory that training may take, as 64 MiB; empty: any")
    mirror: bool | None = _option(None, _maybe(_flag), "mirror every second image")
    crop: int | None = _option(
        None, _maybe(_whole(0, 65_536)), "cut squares of so many pixels, at random in training"
    )
    scale: float | None = _option(None, _maybe(_real(0, 1e9, True)), "what pixels are multiplied by")
    mean: str = _option("as in the net", _one_of(*MEANS), "which mean of the training images is subtracted")
    weights: str = _option("", str, "a file to start from: the weights of a run, or a caffemodel")
    freeze: tuple[str, ...] = _option((), _names, "layers whose weights stay as they are")

    def settled(self, images: int) -> Options:
        """The same for so many training images, with the values that `epochs`, `batch` and `warmup` have by themselves.

        Of little data batches are small and epochs many, so that there are some hundred steps to learn in; 4,000
        images and more get 10 epochs of batches of 64.
        """
        batch = self.batch or next(size for least, size in _BATCHES if images >= least)
        each = max(1, math.ceil(images / (batch * self.accumulate)))
        by_itself = min(max(math.ceil(_STEPS / each), _LEAST_EPOCHS), _MOST_EPOCHS)
        warmup = self.warmup
        if warmup is None:
            warmup = 0.0 if self.policy == "onecycle" else _WARMUP
        return replace(self, batch=batch, epochs=self.epochs or by_itself, warmup=warmup)

    @property
    def sizes(self) -> tuple[int, int]:
        """`epochs` and `batch`, of options that are settled."""
        assert self.epochs is not None
        assert self.batch is not None
        return self.epochs, self.batch

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Options:
        """Check the values. Raises InvalidArgument, naming the option, its value and what would do."""
        given: dict[str, Any] = {}
        for option in fields(cls):
            if option.name not in values or values[option.name] is None:
                continue
            value = values[option.name]
            if value == "" and not isinstance(option.default, str | type(None)):
                raise InvalidArgument(f"{option.name} is empty: {option.metadata['about']}")
            try:
                given[option.name] = option.metadata["check"](value)
            except (ValueError, OverflowError) as error:
                said = str(error)
                if said.startswith(("could not convert", "cannot convert")):
                    said = "give a number"
                raise InvalidArgument(f"{option.name} is {str(value)[:40]!r}: {said}") from None
        return cls(**given)
