"""Grid sampling on GPUs, and both gradients; that of the image sorts the coordinates by cell."""

from __future__ import annotations

from math import prod, sqrt
from typing import NamedTuple

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, PlannedAlgorithm, terms
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.prelude.images import AXES, MOST_BLOCKS_OF_IMAGES, offset_type, spatial
from jitdnn.kernels.gpu.prelude.types import refuse_doubles
from jitdnn.kernels.gpu.sampling.resize import APART, PACKED, lanes_of
from jitdnn.problems.spatial_transformer import PADDINGS, GridSample
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

THREADS = 256
CROWDED = 32  # places of a cell that a thread goes through by itself
LONG = 4096  # places of a cell that are put in order by comparing each with all
_BY_IMAGE = 8  # channels of a thread that lie apart, for the gradient of the image: lists are read for all
_MOST_MEMBERS = 32  # threads that share a place of dgrid
_CORNER_SECONDS = 2.0  # instructions, against those of a sum


class Plan(NamedTuple):
    """How channels are given to threads, and where in the workspace what lies."""

    problem: GridSample
    offset: str
    lanes: int  # channels of a thread at once
    are_neighbours: bool
    is_channels_inner: bool
    per_thread: int  # channels, forward
    members: int  # threads that share a place, for the gradient by the grid
    places: dict[str, int]
    workspace: int


class PlainGridSample(PlannedAlgorithm[GridSample, Plan, GpuDevice]):
    """A thread for a few channels of a position; sums of gradients in the order of the places."""

    name = "places"
    problem = GridSample
    deterministic = True
    takes_no_epilogue = "sampling takes no epilogue"

    def refusal(self, problem: GridSample, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd_data":
            cells, places = _cells(problem), problem.grid.size // problem.rank
            if max(cells, places) >= 2**31:
                return f"{places} places and {cells} cells of the images: lists number fewer than 2^31"
        return refuse_doubles([problem.dtype], device)

    def plan(self, problem: GridSample, device: GpuDevice, epilogue: Epilogue | None) -> Plan:
        images, channels = problem.x.shape[:2]
        tensors = [problem.x, problem.y]
        lanes = min(lanes_of(tensor) for tensor in tensors)
        are_neighbours = lanes > 1
        if not are_neighbours:
            most = _BY_IMAGE if problem.direction == "bwd_data" else APART
            lanes = max(1, min(most, channels))
        result = problem.x if problem.direction == "bwd_data" else problem.y
        is_inner = are_neighbours or abs(result.strides[1]) < abs(result.strides[-1])
        vectors, wanted = -(-channels // lanes), device.multiprocessors * 2 * 1024
        positions = max(1, images * prod(problem.y.shape[2:]))
        # places are found once for as many channels as leave the device busy
        each = max(1, min(vectors, positions * vectors // wanted, 8)) if not is_inner else 1
        members = 1
        while members * 2 <= min(vectors, _MOST_MEMBERS) and (is_inner or positions * members < wanted):
            members *= 2
        grid = TensorDescriptor(problem.grid.shape[:-1], problem.grid.strides[:-1], problem.dtype)
        places, size = _workspace(problem, lanes)
        return Plan(
            problem, offset_type([*tensors, grid]), lanes, are_neighbours, is_inner, each * lanes, members, places, size
        )  # fmt: skip

    def workspace_of(self, plan: Plan, device: GpuDevice) -> int:
        return plan.workspace

    def seconds_of(self, plan: Plan, device: GpuDevice) -> float:
        problem = plan.problem
        launches = 8 if problem.direction == "bwd_data" else 1
        busy = _CORNER_SECONDS * problem.flops / device.peak_flops("f32")
        moved = 1.5 * problem.bytes + 3 * plan.workspace
        return launches * LAUNCH_SECONDS + busy + moved / device.bandwidth

    def error_of(self, problem: GridSample) -> float:
        computing = UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        # coordinates are rounded in units of the extent, and the weights take that over
        extent = max(problem.x.shape[2:])
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + computing * (
            16.0 + 8.0 * extent + 4.0 * sqrt(terms(problem))
        )

    def kernel_of(self, plan: Plan, device: GpuDevice) -> Kernel:
        problem = plan.problem
        images, channels = problem.x.shape[:2]
        missing, space = AXES - problem.rank, problem.y.shape[2:]
        names = ("depth", "height", "width")
        numbers = {
            "images": images, "channels": channels, "per_thread": plan.per_thread,
            **dict(zip(names, spatial(problem.x.shape, 1), strict=True)),
            **{f"out_{name}": e for name, e in zip(names, spatial(problem.y.shape, 1), strict=True)},
        }  # fmt: skip
        outputs = {operand.name for operand in problem.outputs}
        pointers = []
        for operand in problem.operands:
            name, strides = operand.name, operand.descriptor.strides
            kind = "" if name in outputs else "const "
            pointers.append(f"GLOBAL {kind}{problem.dtype} *{name}")
            if name.endswith("grid"):
                steps = (strides[0], *(0,) * missing, *strides[1:])
                numbers |= dict(
                    zip((f"{name}_{a}" for a in ("n", "d", "h", "w", "axis")), steps, strict=True)
                )
            else:
                steps = (*strides[:2], *spatial(strides, 0))
                numbers |= dict(zip((f"{name}_{a}" for a in "ncdhw"), steps, strict=True))
        numbers |= {f"at_{name}": place for name, place in plan.places.items()}
        signature = f"{', '.join(pointers)}, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, " + ", ".join(
            f"i64 {name}" for name in numbers
        )
        defines = (
            ("SIGNATURE", signature),
            ("X", problem.dtype),
            ("PACKED", int(problem.dtype in PACKED)),
            ("NUMBER", compute_dtype(problem.dtype)),
            ("OFFSET", plan.offset),
            ("RANK", problem.rank),
            ("LINEAR", int(problem.mode == "linear")),
            ("PADDING", PADDINGS.index(problem.padding)),
            ("ALIGN_CORNERS", int(problem.align_corners)),
            ("LANES", plan.lanes),
            ("ARE_NEIGHBOURS", int(plan.are_neighbours)),
            ("CHANNELS_INNER", int(plan.is_channels_inner)),
            ("MEMBERS", plan.members),
            ("FORWARD", int(problem.direction == "fwd")),
            ("BY_GRID", int(problem.direction == "bwd_grid")),
            ("CROWDED", CROWDED),
            ("LONG", LONG),
        )
        files = ["grid_sample.c"]
        if problem.direction == "bwd_data":
            files.append("grid_sample_by_image.c")
        text = read_text("gpu/pooling", "access.c") + "\n" + read_text("gpu/sampling", "lanes.c", *files)
        source = Source("grid_sample", text, defines, spills=True)
        all_places = images * prod(space)
        rows = min(max(1, images), MOST_BLOCKS_OF_IMAGES)

        def blocks(units: int, of: int = THREADS) -> int:
            return max(1, -(-units // of))

        if problem.direction == "fwd":
            units = -(-channels // plan.per_thread) * prod(space)
            launches = [Launch("grid_sample_forward", (blocks(units), rows), THREADS)]
        elif problem.direction == "bwd_grid":
            launches = [Launch("grid_sample_by_grid", blocks(all_places, THREADS // plan.members), THREADS)]
        else:
            cells, vectors = _cells(problem), -(-channels // plan.lanes)
            crowds = all_places // (CROWDED + 1)
            busy = device.multiprocessors * 8
            launches = [
                Launch("clear", blocks(max(cells, 2)), THREADS),
                Launch("count", blocks(all_places), THREADS),
                Launch("begin", blocks(cells), THREADS),
                Launch("fill", blocks(all_places), THREADS),
                Launch("order", blocks(all_places), THREADS),
            ]
            if prod(space) > LONG:
                launches.append(Launch("order_long", max(1, min(crowds, busy)), THREADS))
            if crowds and prod(space) > CROWDED:
                launches.append(Launch("sum_crowded", max(1, min(crowds * vectors, busy)), THREADS))
            units = vectors * prod(problem.x.shape[2:])
            launches.append(Launch("grid_sample_by_image", (blocks(units), rows), THREADS))
        return device.kernel(source, launches, len(pointers), list(numbers.values()))


def _cells(problem: GridSample) -> int:
    """Of all images."""
    return problem.x.shape[0] * prod(e + (problem.mode == "linear") for e in problem.x.shape[2:])


def _workspace(problem: GridSample, lanes: int) -> tuple[dict[str, int], int]:
    """Where the lists of places lie, and how many bytes they take."""
    if problem.direction != "bwd_data":
        return {}, 0
    cells, places = _cells(problem), problem.grid.size // problem.rank
    number, crowds = DTYPES[compute_dtype(problem.dtype)], places // (CROWDED + 1)
    is_linear = problem.mode == "linear"
    sizes = {
        "counts": cells * 4,
        "starts": cells * 4,
        "crowd": cells * 4,
        "crowded_cells": crowds * 4,
        "cell_of": places * 4,
        "before": places * 4,
        "lists": places * 4,
        "from": places * 8,
        "far": places * problem.rank * number if is_linear else 0,
        "sums": crowds * (2**problem.rank if is_linear else 1) * problem.x.shape[1] * number,
    }
    found, end = {}, 64
    for name, size in sizes.items():
        found[name] = end
        end += -(-size // 64) * 64
    return found, end
