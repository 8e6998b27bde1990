"""The request for a plan of products by warpgroups."""

from __future__ import annotations

from dataclasses import dataclass

from jitdnn.devices.gpu import GpuDevice
from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import Batch
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.pieces import element_bytes, moved_bytes
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor


class Refused(Exception):
    """Why there is no plan, in words a user can act on."""


@dataclass(frozen=True)
class ProductRequest:
    """The fields are the arguments of `choose.plan_of`."""

    problem: Convolution
    device: GpuDevice
    tiles: tuple[Tile, ...]
    uses_workspace: bool
    parts: int
    batch: Batch | None
    fusion: Fusion
    is_scaled: bool
    is_divided: bool
    divides_rows: bool
    is_rough: bool
    is_blockwise: bool
    pixels_are_columns: bool
    skips_padding: int
    is_paired: bool
    limit: float

    @property
    def size(self) -> int:
        """Bytes of an element of what is multiplied."""
        return element_bytes(self.problem, self.is_scaled or self.is_divided)

    @property
    def data(self) -> TensorDescriptor:
        """What is multiplied by the filter, forward and of the data."""
        return self.problem.x if self.problem.direction == "fwd" else self.problem.y

    @property
    def result(self) -> TensorDescriptor:
        """What is written."""
        problem = self.problem
        return {"fwd": problem.y, "bwd_data": problem.x, "bwd_filter": problem.w}[problem.direction]

    @property
    def result_bytes(self) -> int:
        """Bytes of an element of the result."""
        return DTYPES[self.result.dtype]

    @property
    def groups(self) -> int:
        """Of the convolution, or products of the batch."""
        return self.batch.count if self.batch else self.problem.groups

    @property
    def bytes_moved(self) -> int:
        """From and to memory."""
        return self.batch.nbytes if self.batch else moved_bytes(self.problem)
