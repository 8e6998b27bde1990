"""What a product by warpgroups is fused with: a prologue on the activations, sums by channel of its results.

How the prologue is applied: `cuda/warpgroup/prologue_rows.cuh` and `prologue_pixels.cuh`; the sums: `sums.cuh`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitdnn.kernels.cuda.warpgroup.cost import LAUNCH_SECONDS
from jitdnn.kernels.cuda.warpgroup.plan import NO_FINISH, Blocking, Finish
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.kernels.formulas.fused_convolution import prologue_expression
from jitdnn.rtcg.c_source import c_function

_BEHIND_CHANNELS = 64
"""Channels behind the last one whose parameters are 0; as in prologue.cuh."""
_MOST_CHANNELS = 4096
"""Whose parameters are kept in shared memory, 8 bytes each."""
_READY_BYTES = 16 * 8
"""Of further barriers, one for each stage."""
_FREE_REGISTERS = {1: 216, 2: 216, 3: 116}
"""Of a thread, by consumers: for sums, results on their way out and fragments behind the prologue."""
_PROLOGUE, _WGRAD_PROLOGUE, _SUMS = 1.32, 2.5, 1.16
"""How many times as long products take with a prologue, and with sums by channel, on an H100."""


@dataclass(frozen=True)
class Fusion:
    """`activation`: of a prologue, None without one, with its coefficient, over `channels`. `has_sums`: by channel.
    `finish`: what an epilogue costs."""

    activation: str | None = None
    coef: float | None = None
    channels: int = 0
    has_sums: bool = False
    finish: Finish = NO_FINISH

    @property
    def has_prologue(self) -> bool:
        return self.activation is not None

    @property
    def pointers(self) -> int:
        """Those that kernels take behind all others."""
        return 2 * self.has_prologue + 2 * self.has_sums

    @property
    def shared(self) -> int:
        """Bytes of shared memory, of a thread block."""
        return 8 * (self.channels + _BEHIND_CHANNELS) + _READY_BYTES if self.has_prologue else 0

    def refuse(self) -> str | None:
        """What cannot be fused; None if it can."""
        if self.channels > _MOST_CHANNELS:
            return f"the prologue's parameters of at most {_MOST_CHANNELS} channels fit, and there are {self.channels}"
        return None

    def tiles(self, tiles: Sequence[Tile], result_bytes: int, is_wgrad: bool) -> tuple[Tile, ...]:
        """Those whose threads have the registers, and without clusters where these do not do what is fused."""
        if self.has_prologue or self.has_sums:
            tiles = [tile for tile in tiles if tile.cluster == 1]
        if not self.has_prologue:
            return tuple(tiles)

        def registers(tile: Tile) -> int:
            return tile.sums + tile.sums * result_bytes // 4 + (24 if is_wgrad else 8 * tile.rows)

        return tuple(tile for tile in tiles if registers(tile) <= _FREE_REGISTERS[tile.warpgroups])

    def sum_rows(self, blocking: Blocking, works: int, row_tiles: int, multiprocessors: int) -> int:
        """Rows of sums that are added up at last."""
        if not self.has_sums:
            return 0
        tile = blocking.tile
        return (
            row_tiles * tile.m // 64
            if blocking.is_split
            else blocking.thread_blocks(works, multiprocessors) * tile.warpgroups
        )

    def seconds(self, seconds: float, is_wgrad: bool) -> float:
        """Expected time with what is fused, of products that take so long without, a rewritten operand included."""
        if self.has_prologue:
            seconds *= _WGRAD_PROLOGUE if is_wgrad else _PROLOGUE
        return seconds * _SUMS + LAUNCH_SECONDS if self.has_sums else seconds


NOTHING = Fusion()


@dataclass(frozen=True)
class FusionCode:
    """Pieces of text: functions, files of cuda/warpgroup behind the main loop, more parameters and definitions."""

    functions: str
    files: tuple[str, ...]
    parameters: str
    arguments: str
    defines: tuple[tuple[str, object], ...]


def fusion_code(fusion: Fusion, is_wgrad: bool, dtype: str) -> FusionCode:
    """The text of what is fused with a product of elements of `dtype`."""
    functions, files, names = "", [], []
    defines: list[tuple[str, object]] = [
        ("HAS_PROLOGUE", int(fusion.has_prologue)),
        ("HAS_SUMS", int(fusion.has_sums)),
    ]
    if fusion.activation is not None:
        pack, function = f"pack_{dtype}", fusion.activation
        if function == "relu" and dtype != "f32":  # rounding does it on the way
            pack, function = f"pack_relu_{dtype}", "identity"
        functions = c_function(prologue_expression(function, fusion.coef), "prologue", "f32")
        files += ["prologue.cuh", "prologue_pixels.cuh" if is_wgrad else "prologue_rows.cuh"]
        names += ["const f32 *scale", "const f32 *shift"]
        defines += [
            ("MULTIPLY_A", f"wgmma_a_{'tf32' if dtype == 'f32' else dtype}"),
            ("PROLOGUE_LOW", f"{dtype}_low"),
            ("PROLOGUE_HIGH", f"{dtype}_high"),
            ("PROLOGUE_PACK", pack),
        ]
    if fusion.has_sums:
        files.append("sums.cuh")
        names += ["f32 *channel_sums", "f32 *channel_squares"]
    parameters = "".join(f", {name}" for name in names)
    arguments = "".join(f", {name.rpartition('*')[2]}" for name in names)
    return FusionCode(functions, tuple(files), parameters, arguments, tuple(defines))
