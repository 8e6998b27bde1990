"""`jitdnn calibrate`: how far the cost models are off on this processor, as one number for each algorithm and
direction.

All algorithms of some layers of known networks are measured as `jitdnn bench --choices` does. The *efficiency* of an
algorithm is the median of estimated over measured seconds: 1 where the model is right, 0.8 where the algorithm takes a
quarter longer. With the facts of the processor it makes a device file (docs/devices.md): estimates are divided by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from jitdnn.bench.choices import ChoiceRow, run_choices
from jitdnn.bench.driver import Options
from jitdnn.bench.suites import Layer, load
from jitdnn.bench.timing import Method
from jitdnn.devices.cpu import CpuDevice
from jitdnn.files import write_whole
from jitdnn.problems import parse
from jitdnn.problems.convolution import DIRECTIONS

#: networks with dense, wide, depthwise and grouped layers, and which of their layers are measured
_NETWORKS = {"resnet18": 2, "vgg16_D": 3, "mobilenet_v2": 6, "convnext_t": 6, "resnext50_32x4d": 3}
_MOST_IMAGES, _MOST_BYTES = 8, 64 << 20
_LAYOUTS = ("nchw", "nhwc")
_FEWEST = 3  # problems that an algorithm must have run for a number of its own
_BOUNDS = 0.2, 5.0  # what is farther off is no matter of efficiency


def layers() -> list[Layer]:
    """What is measured."""
    chosen: dict[str, Layer] = {}
    for network, step in _NETWORKS.items():
        for layer in load(network)[::step]:
            for layout in _LAYOUTS:
                smaller = layer.stored("f32", layout).limited(_MOST_IMAGES, _MOST_BYTES)
                if smaller is not None:
                    for direction in DIRECTIONS:
                        each = smaller.towards(direction)
                        chosen.setdefault(str(each.problem), each)
    return list(chosen.values())


def measure(
    problems: Sequence[Layer], seconds: float, progress: Callable[[int, str], None] = lambda done, label: None
) -> list[ChoiceRow]:
    """The rows of all algorithms; ``seconds`` for each of them at most."""
    return list(run_choices(problems, Options(method=Method(seconds=seconds)), progress))


def efficiencies(rows: Sequence[ChoiceRow], before: Mapping[str, float]) -> dict[str, float]:
    """The median of estimated over measured seconds by "algorithm kind", of those that were measured often enough.

    ``before`` are the efficiencies that the estimates were already divided by.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, taken in row.measured.items():
            key = f"{name} {parse(row.problem).kind}"
            found.setdefault(key, []).append(before.get(key, 1.0) * row.estimates[name] / taken)
    least, most = _BOUNDS
    return {
        key: float(f"{min(most, max(least, median(ratios))):.2g}")
        for key, ratios in sorted(found.items())
        if len(ratios) >= _FEWEST
    }


def device_file(device: CpuDevice, rows: Sequence[ChoiceRow]) -> dict[str, Any]:
    """What the file holds: the facts in force, and the efficiencies that go with them."""
    return {
        "cpu": {**asdict(device.isa.processor), "efficiency": efficiencies(rows, dict(device.efficiency))}
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """The file, whole or not at all."""
    write_whole(path, lambda file: file.write(f"{json.dumps(content, indent=2)}\n".encode()))
