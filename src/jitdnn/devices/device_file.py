"""The device file: facts of devices, stated in place of what is read and measured.

The file (`JITDNN_DEVICE_FILE`) is JSON with a section for each kind of device,

    {"cpu": {"l2_bytes": 524288, "efficiency": {"direct conv_fwd": 1.1}}, "cuda": {"clock": 1.5e9}}

of which each states some facts by name, and the efficiencies of algorithms: estimated over measured seconds. What is
not stated is the device's own. A name that no device has, or a value, is refused with those that would do.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument
from jitdnn.settings import current

SECTIONS = ("cpu", "cuda")
_LEAST_FACTOR = 0.01  # of an efficiency


@dataclass(frozen=True)
class Range:
    """The values of a fact that some device could have."""

    least: float
    most: float
    is_integer: bool = True

    def __str__(self) -> str:
        return f"{'an integer' if self.is_integer else 'a number'} of {self.least:g} to {self.most:g}"

    def takes(self, value: object) -> bool:
        is_number = isinstance(value, int if self.is_integer else (int, float)) and not isinstance(
            value, bool
        )
        return is_number and self.least <= value <= self.most  # type: ignore[operator]


_FACTOR = Range(_LEAST_FACTOR, 1 / _LEAST_FACTOR, is_integer=False)


@dataclass(frozen=True)
class Stated:
    """What a section states: facts by name, and efficiencies by "algorithm kind", in order."""

    facts: tuple[tuple[str, int | float], ...] = ()
    efficiency: tuple[tuple[str, float], ...] = ()


def stated(section: str, ranges: Mapping[str, Range], path: Path | None = None) -> Stated:
    """What the device file of the settings, or the one at `path`, states in a section of facts with these ranges.

    Raises InvalidArgument for a file that cannot be read, a name that is unknown, and a value out of its range.
    """
    path = path or current().device_file
    return Stated() if path is None else _read(path, section, tuple(ranges.items()))


@functools.lru_cache(16)
def _read(path: Path, section: str, ranges: tuple[tuple[str, Range], ...]) -> Stated:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the device file {str(path)!r} cannot be read: {error}") from None
    found = content.get(section, {}) if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise InvalidArgument(
            f'the device file {str(path)!r} must hold an object such as {{"cpu": {{"l2_bytes": 524288}}}}'
        )
    for name in content:
        if name not in SECTIONS:
            raise InvalidArgument(
                f"the device file {str(path)!r} has a section {shown(name)}, which is none of {', '.join(SECTIONS)}"
            )
    factors = found.pop("efficiency", {})
    if not isinstance(factors, dict):
        raise InvalidArgument(
            f"the device file {str(path)!r} states {section}.efficiency as {shown(factors)}: no object"
        )
    return Stated(
        tuple((name, _fact(path, section, dict(ranges), name, value)) for name, value in found.items()),
        tuple((name, _factor(path, name, value)) for name, value in sorted(factors.items())),
    )


def _factor(path: Path, name: str, value: Any) -> float:
    if not _FACTOR.takes(value):
        raise InvalidArgument(
            f"the device file {str(path)!r} states the efficiency of {shown(name)} as {shown(value)}: it must be "
            f"estimated over measured seconds, {_FACTOR}"
        )
    return float(value)


def _fact(path: Path, section: str, ranges: Mapping[str, Range], name: str, value: Any) -> int | float:
    if name not in ranges:
        raise InvalidArgument(
            f"the device file {str(path)!r} states {section}.{shown(name)}, which is none of {', '.join(ranges)}"
        )
    if not ranges[name].takes(value):
        raise InvalidArgument(
            f"the device file {str(path)!r} states {section}.{name} as {shown(value)}: it must be {ranges[name]}"
        )
    return int(value) if ranges[name].is_integer else float(value)
