"""The filter's gradient on the matrix units: how a window is cut, what that costs, and the kernels made of it.

banded_wgrad.cu multiplies the columns of x that tiles read by those of dy, and adds along diagonals;
wgrad_reduce.cu adds the parts of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.depthwise.banded import (
    MMA_TIME,
    Banded,
    Cut,
    bands,
    cuts,
    skewed,
)
from jitdnn.kernels.cuda.convolution.depthwise.geometry import Axis, Window
from jitdnn.kernels.cuda.convolution.depthwise.sliding import (
    CLOCK,
    LAUNCH,
    Defines,
    defines_of_window,
    reach,
    resident_groups,
    widths,
)
from jitdnn.kernels.cuda.convolution.depthwise.sliding_wgrad import sum_launch, sum_seconds

UNKNOWN = 1.25  # what the account of this method leaves out


@dataclass(frozen=True)
class BandedFilter(Banded):
    """A cut of which a warp takes `tap_rows` rows of taps, a group `tap_warps` times as many; `parts` share it."""

    tap_rows: int = 1
    tap_warps: int = 1
    parts: int = 1

    @property
    def tap_groups(self) -> int:
        return -(-self.taps[0] // self.tap_rows)

    @property
    def own_channels(self) -> int:
        return 1

    @property
    def warps(self) -> int:
        return self.cut.channels * self.tap_warps

    @property
    def slots(self) -> int:
        """Rows that the planes hold: those of a step and those that the next one adds."""
        return max(1, min(self.axes[1].taps + 2 * self.cut.rows - 1, self.end_row - self.first_row))

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def dy_plane(self) -> int:
        return skewed(2 * self.cut.rows * self.cut.lines * self.cut.segment * 4)

    @property
    def shared(self) -> int:
        halves = -(-self.band.blocks // 2)
        planes = 4 * self.cut.channels * (self.plane + self.dy_plane) + 16
        return max(planes, self.warps * halves * 512)

    @property
    def is_crowded(self) -> bool:
        """Whether a step has more rows at a time, with those of the next on their way, than do it good."""
        return 4 < self.cut.rows < self.cut.strip and self.taps[0] > 1

    @property
    def registers(self) -> int:
        halves = -(-self.band.blocks // 2)
        cut = self.cut
        threads = self.threads
        chunks = cut.channels // self.width
        loads = -(-cut.rows * cut.lines * self.blocks_read * 4 * chunks // threads)
        loads += -(-cut.rows * cut.lines * cut.segment * 4 * chunks // threads)
        crowd = 12 if self.is_crowded else 0
        return self.tap_rows * halves * 4 + cut.rows * 2 + 4 + loads * max(2, self.width) + 40 + crowd

    @property
    def resident(self) -> int:
        by_shared = (self.most_shared + 1024) // (self.shared + self.line_bytes + 1024)
        return max(1, min(by_shared, resident_groups(self.registers, self.threads)))

    @property
    def strips(self) -> int:
        """Groups side by side over channels and rows of taps."""
        return -(-self.window.channels // self.cut.channels) * -(-self.tap_groups // self.tap_warps)

    @property
    def line_groups(self) -> int:
        return -(-self.line_count // self.cut.lines)

    @property
    def workspace(self) -> int:
        return 4 * self.parts * self.window.taps * self.window.channels

    def seconds(self, device: GpuDevice) -> float:
        cut, (taps, _) = self.cut, self.taps
        halves = -(-self.band.blocks // 2)
        steps = -(-cut.strip // cut.rows)
        height = self.end_row - self.first_row
        pieces = min(self.tap_warps, self.tap_groups)
        products = loaded = 0.0
        for step in range(steps):
            for piece in range(pieces):
                first = step * cut.rows + piece * self.tap_rows
                rows = min(first + cut.rows + self.tap_rows - 1, self.end_row) - max(first, self.first_row)
                loaded += max(0, rows)
                products += max(0, rows) * cut.rows * self.tap_rows / (cut.rows + self.tap_rows - 1)
        fragments = cut.channels * halves
        matrix = products * fragments * MMA_TIME
        conflicts = self._conflicts(self.line_blocks)[0] / 2
        reading = loaded * fragments * 4 * conflicts + steps * cut.rows * cut.channels * pieces * 2
        chunks = cut.channels // self.width
        packs = height * cut.lines * self.blocks_read * 4 * chunks
        packs += cut.strip * cut.lines * cut.segment * 4 * chunks
        turning, passing = packs * self.width / 32 * 1.3, packs * 2 / max(1, chunks)
        issued = (products * fragments * 1.2 + loaded * fragments * 4) / 4 + packs * (
            3 * self.width + 40
        ) / 128
        clocks = max(matrix, issued, reading + turning + passing) + 0.35 * min(matrix, issued)
        rounds = math.ceil(self.line_groups / self.parts)
        groups = self.strips * self.parts
        waves = math.ceil(groups / (device.multiprocessors * self.resident))
        together = min(self.resident, -(-groups // device.multiprocessors))
        waiting = 2500 * (1 + (taps > 1)) + 700 * steps
        busy = waves * rounds * max(clocks * together * 1.25, waiting + clocks)
        used = min(1.0, groups / device.multiprocessors)
        again = -(-self.tap_groups // self.tap_warps)
        transfer = self.window.bytes_moved * (1 + 0.4 * (again - 1)) / device.bandwidth / used
        return (
            LAUNCH
            + UNKNOWN * max(busy / CLOCK, transfer * 1.15) * (1 + 0.04 * self.is_crowded * (cut.rows - 4))
            + sum_seconds(self.window, self.parts, device)
        )

    def defines(self) -> Defines:
        return (
            *defines_of_window(self.window, self.axes),
            *(pair for pair in self.shape_defines() if pair[0] != "WARPS"),
            ("WARPS", self.warps),
            ("PR", self.cut.rows),
            ("CW", 1),
            ("RG", self.tap_rows),
            ("TAP_WARPS", self.tap_warps),
            ("DY_PLANE", self.dy_plane),
            ("PARTS", self.parts),
            ("MIN_BLOCKS", min(self.resident, 2)),
            ("OFFSET", self.window.shift(reach(self.window))),
        )

    def launch(self, epilogue: Epilogue | None = None) -> tuple[Source, list[Launch]]:
        files = (
            "common.cuh",
            "banded_planes.cuh",
            "banded_wgrad.cu",
            "wgrad_reduce.cu",
        )
        text = read_text("cuda/convolution/depthwise", *files)
        source = Source("depthwise_banded_filter", text, self.defines(), "cuda", spills=True)
        grid = (self.strips, self.parts)
        return source, [
            Launch("depthwise_filter", grid, self.threads, self.shared),
            sum_launch(self.window),
        ]


def choices(window: Window, device: GpuDevice) -> list[BandedFilter]:
    """Every sensible cut; none if the rows do not fit into shared memory."""
    found = []
    width = widths(window)[0]
    depth, height, wide = window.axes
    orders: Sequence[tuple[Axis, Axis, Axis]] = [(depth, height, wide)]
    if wide.taps < height.taps or wide.count < 8 < height.count:
        orders = [*orders, (depth, wide, height)]
    for axes in orders:
        for cut in _single(cuts(window, axes, width)):
            band = bands(axes[2], cut.segments, cut.segment)
            halves = -(-band.blocks // 2)
            most = max(1, min(axes[1].taps, 112 // (4 * halves)))
            rows = -(-axes[1].taps // -(-axes[1].taps // most))
            for tap_warps in sorted({1, min(2, -(-axes[1].taps // rows))}):
                plan = BandedFilter(window, axes, width, cut, band, device.shared_bytes, rows, tap_warps)
                if plan.warps <= 16 and plan.fits:
                    found.append(_with_parts(plan, device))
    return found


def _single(found: Iterator[Cut]) -> Iterator[Cut]:
    """Those whose groups have 16 tiles, and a channel a warp."""
    return (cut for cut in found if cut.tiles == 1 and cut.warps == cut.channels)


def _with_parts(plan: BandedFilter, device: GpuDevice) -> BandedFilter:
    wanted = max(1, device.multiprocessors * plan.resident // plan.strips)
    parts = max(1, min(wanted, plan.line_groups))
    rounds = -(-plan.line_groups // parts)
    return replace(plan, parts=-(-plan.line_groups // rounds))
