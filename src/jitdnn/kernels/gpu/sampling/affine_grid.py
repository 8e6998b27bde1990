"""Affine grids on GPUs: a thread for each coordinate; for the gradient thread blocks add up parts of them."""

from __future__ import annotations

from math import prod, sqrt

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, TypedAlgorithm
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.images import AXES
from jitdnn.kernels.gpu.prelude.types import refuse_doubles
from jitdnn.problems.spatial_transformer import AffineGrid
from jitdnn.tensor import DTYPES, compute_dtype

THREADS = 256
_PLACES = 16  # of a thread, before more thread blocks share an image
_MOST_PARTS = 64


class PlainAffineGrid(TypedAlgorithm[AffineGrid, GpuDevice]):
    """A thread for each place; sums in parts, in a fixed order."""

    name = "places"
    problem = AffineGrid
    deterministic = True
    takes_no_epilogue = "{kind} takes no epilogue"

    def refusal(self, problem: AffineGrid, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.grid.size >= 2**38:
            return f"the grid has {problem.grid.size} numbers: fewer than 2^38 fit a launch"
        return refuse_doubles([problem.dtype], device)

    def workspace_of(self, plan: AffineGrid, device: GpuDevice) -> int:
        if plan.direction == "fwd":
            return 0
        return plan.theta.size * _parts(plan) * DTYPES[compute_dtype(plan.dtype)]

    def seconds_of(self, plan: AffineGrid, device: GpuDevice) -> float:
        launches = 1 if plan.direction == "fwd" else 2
        return launches * LAUNCH_SECONDS + 1.3 * plan.bytes / device.bandwidth

    def error_of(self, problem: AffineGrid) -> float:
        computing = UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        in_turn = prod(problem.grid.shape[1:-1]) / (THREADS * _parts(problem))
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + computing * (24.0 + sqrt(in_turn))

    def kernel_of(self, plan: AffineGrid, device: GpuDevice) -> Kernel:
        grid, theta, rank = plan.grid, plan.theta, plan.grid.shape[-1]
        images, space = grid.shape[0], grid.shape[1:-1]
        is_forward = plan.direction == "fwd"
        missing = AXES - rank
        numbers = {
            "images": images,
            **dict(zip(("depth", "height", "width"), (*(1,) * missing, *space), strict=True)),
            "parts": _parts(plan),
            **{f"theta_{axis}": step for axis, step in enumerate(theta.strides)},
            "grid_n": grid.strides[0],
            **dict(zip(("grid_d", "grid_h", "grid_w"), (*(0,) * missing, *grid.strides[1:-1]), strict=True)),
            "grid_axis": grid.strides[-1],
        }
        read, written = ("theta", "grid") if is_forward else ("dgrid", "dtheta")
        signature = (
            f"GLOBAL const {plan.dtype} *{read}, GLOBAL {plan.dtype} *{written}, GLOBAL u8 *workspace, SCALE alpha, "
            "SCALE beta, " + ", ".join(f"i64 {name}" for name in numbers)
        )
        defines = (
            ("SIGNATURE", signature),
            ("X", plan.dtype),
            ("NUMBER", compute_dtype(plan.dtype)),
            ("RANK", rank),
            ("ALIGN_CORNERS", int(plan.align_corners)),
            ("FORWARD", int(is_forward)),
        )

        def blocks(units: int) -> int:
            return max(1, -(-units // THREADS))

        launches = [Launch("affine_grid", blocks(images * prod(space)), THREADS)]
        if not is_forward:
            launches = [
                Launch("affine_grid_parts", max(1, images * _parts(plan)), THREADS),
                Launch("affine_grid_sums", blocks(theta.size), THREADS),
            ]
        source = Source("affine_grid", read_text("gpu/sampling", "affine_grid.c"), defines, spills=True)
        return device.kernel(source, launches, 2, list(numbers.values()))


def _parts(problem: AffineGrid) -> int:
    places = prod(problem.grid.shape[1:-1])
    return max(1, min(_MOST_PARTS, -(-places // (THREADS * _PLACES))))
