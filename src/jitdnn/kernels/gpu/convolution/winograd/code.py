"""Source text, launches and kernels of minimal filtering: the types, tiles and epilogue are compiled in, sizes are
arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.devices.gpu import Kernel as GpuKernel
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.gpu.convolution.winograd.matrix_code import tile_function
from jitdnn.kernels.gpu.convolution.winograd.plan import STAGED_CHANNELS, Place, Plan, matrices
from jitdnn.kernels.gpu.prelude.epilogue import epilogue_source
from jitdnn.kernels.gpu.prelude.types import storage_type
from jitdnn.tensor import DTYPES, TensorDescriptor

_THREADS = 256
_MOST_ROWS = 65535
_POINTERS = 3
SAMPLES = 2048
"""Numbers of an operand by the largest of which the largest of all is guessed: a multiple of a thread block."""
_FEW_BLOCKS = 128
"""Of a transform that is hardly ever done again."""
_WORDS = {2: "u32", 4: "u32x2", 8: "u32x4"}
"""Two elements of so many bytes each."""


@dataclass(frozen=True)
class Places:
    """Where the operands and the products of all points are in the workspace; `is_scaled`: the operands as halves, and
    what they were multiplied by in front. `is_across`: rows of the filter's matrices are terms, not columns of the
    products."""

    data: Place
    other: Place
    products: Place
    is_scaled: bool = False
    is_across: bool = False


@dataclass(frozen=True)
class Composite:
    """Transforms, the product of every point, and what makes results of the products."""

    transforms: GpuKernel
    product: Kernel
    finish: GpuKernel
    operands: tuple[int, int, int]
    """Bytes of the workspace: of a, b and c of the product."""
    inner: int
    """Where the workspace of the product begins."""

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        self.transforms(stream, pointers, alpha, beta, workspace)
        self.product(stream, [workspace + at for at in self.operands], 1.0, 0.0, workspace + self.inner)
        self.finish(stream, pointers, alpha, beta, workspace)


def kernels(
    plan: Plan, places: Places, device: GpuDevice, epilogue: Epilogue | None, workspace: int
) -> tuple[GpuKernel, GpuKernel]:
    """What runs before the product, and behind it.

    Filter gradients in halves, which only sm_90a has, begin early where their workspace stays in the cache.
    """
    numbers = numbers_of(plan, places)
    source = source_of(plan, places.is_scaled, epilogue, tuple(numbers))
    pointers = _POINTERS + (len(epilogue.operands) if epilogue else 0)
    is_early = plan.is_wgrad and places.is_scaled and workspace <= device.cache_bytes
    before, behind = launches_of(plan, places.is_scaled, is_early, places.is_across)
    values = list(numbers.values())
    return device.kernel(source, before, pointers, values), device.kernel(source, behind, pointers, values)


def launches_of(
    plan: Plan, is_scaled: bool, is_early: bool = False, is_across: bool = False
) -> tuple[list[Launch], list[Launch]]:
    """Those before the product, and behind it."""
    problem = plan.problem
    first, second, result = plan.tensors
    rows = min(problem.n * plan.axes[0].tiles, _MOST_ROWS)

    def tiles(function: str, tensor: TensorDescriptor, lanes: int = plan.lanes) -> Launch:
        count, along = tensor.shape[1], plan.axes[1].tiles
        if plan.is_staged(tensor):
            staging = plan.staging
            blocks = -(-along // staging.tiles) * -(-count // STAGED_CHANNELS)
            down = min(-(-problem.n * plan.axes[0].tiles // staging.rows), _MOST_ROWS)
            return Launch(function, (blocks, down), staging.warps * STAGED_CHANNELS, is_early=is_early)
        blocks = -(-along * count // lanes // _THREADS)
        return Launch(function, (blocks, rows), _THREADS, is_early=is_early)

    elements = -(-problem.k * problem.c // problem.groups // _THREADS)
    data = tiles("transform_data", first)
    if plan.is_wgrad:
        other = tiles("transform_dy", second)
        behind = Launch("finish_filter", elements, _THREADS, is_early=is_early)
    else:
        _, *channels = plan.product
        down, across = reversed(channels) if is_across else channels
        blocks = problem.groups * -(-down // 8) * -(-across // (32 * plan.lanes))
        other = Launch("transform_filter", blocks, _THREADS, is_early=is_early)
        behind = tiles("finish_tiles", result, 1)
    if not is_scaled:
        return [data, other], [behind]
    guess = Launch("guess_scales", 2, _THREADS, is_early=is_early)
    return [guess, data, other, _again(data), _again(other)], [behind]


def _again(launch: Launch) -> Launch:
    """The same for what was guessed wrong: two along the last axis of the grid say so."""
    blocks, rows, _ = launch.grid
    if launch.function == "transform_filter":
        return replace(launch, groups=(-(-blocks // 2), 1, 2))
    return replace(launch, groups=(blocks, max(1, min(-(-rows // 2), _FEW_BLOCKS // blocks)), 2))


def source_of(plan: Plan, is_scaled: bool, epilogue: Epilogue | None, parameters: Sequence[str]) -> Source:
    """The text of all kernels of a problem."""
    dtype, lanes = plan.problem.dtype, plan.lanes
    fused = epilogue_source(epilogue, plan.problem.output, plan.real, _POINTERS)
    a, b = plan.axes
    if plan.is_wgrad:  # elements of dy are the taps of the filtering, taps its results
        sizes = [(axis.r, axis.m) for axis in plan.axes]
    else:
        sizes = [(axis.m, axis.r) for axis in plan.axes]
    of_a, of_b = (matrices(*size) for size in sizes)
    functions = [
        tile_function("to_points_of_data", of_a.data, of_b.data),
        tile_function("to_points_of_dy" if plan.is_wgrad else "to_points_of_filter", of_a.other, of_b.other),
        tile_function("to_results", of_a.result, of_b.result),
    ]
    pack = ""
    if lanes > 1:
        size = DTYPES[dtype]
        pack = f"PACK({dtype}, {storage_type(dtype)}, {lanes}, {_WORDS[size]}, 1)\n"
    first, second, result = plan.tensors
    staged = plan.is_staged(first)
    kernels_of_tiles = [_tiles("transform_data", "first", 0, a.alpha, b.alpha, "to_points_of_data", staged)]
    if plan.is_wgrad:
        staged = plan.is_staged(second)
        kernels_of_tiles.append(_tiles("transform_dy", "second", 1, a.m, b.m, "to_points_of_dy", staged))
    else:
        name = "staged_results.c" if plan.is_staged(result) else "results.c"
        kernels_of_tiles.append(read_text("gpu/convolution/winograd", name))
    text = "\n".join(
        (
            read_text("gpu/prelude", "vectors.h") + pack + fused.functions,
            *functions,
            read_text("gpu/convolution/winograd", "winograd.c"),
            *kernels_of_tiles,
        )
    )
    indices = ["image", "channel", "at_a", "at_b"]
    if len(plan.problem.spatial) == 1:
        indices.remove("at_a")
    defines = (
        ("ELEMENT", dtype), ("REAL", plan.real),
        ("NUMBER(x)", "x##f" if plan.real == "f32" else "x"),
        ("LANES", lanes), ("VECTOR", f"pack_{dtype}_{lanes}"), ("LOAD_VECTOR", f"load_{dtype}_{lanes}"),
        ("IS_WGRAD", int(plan.is_wgrad)), ("IS_SCALED", int(is_scaled)), ("SAMPLES", SAMPLES),
        ("IS_PLAIN_FILTER", int(plan.has_plain_filter)),
        *_staging_defines(plan),
        ("M_A", a.m), ("M_B", b.m), ("R_A", a.r), ("R_B", b.r), ("POINTS", plan.points),
        ("PARAMETERS", ", ".join(f"i64 {name}" for name in parameters)),
        ("EPILOGUE_PARAMETERS", fused.parameters), ("EPILOGUE(sum)", fused.apply("sum", indices)),
    )  # fmt: skip
    return Source("winograd_wgrad" if plan.is_wgrad else "winograd", text, defines)


def _staging_defines(plan: Plan) -> Sequence[tuple[str, int]]:
    """Macros of tiles that go through shared memory; none where none do."""
    if not any(map(plan.is_staged, plan.tensors)):
        return ()
    staging = plan.staging
    return (
        ("STAGED_TILES", staging.tiles), ("STAGED_ROWS", staging.rows), ("STAGED_WARPS", staging.warps),
        ("STAGED_CHANNELS", STAGED_CHANNELS), ("STAGED_PITCH", STAGED_CHANNELS + 1),
        ("STAGED_TURNS", -(-STAGED_CHANNELS // staging.warps)),
    )  # fmt: skip


def _tiles(
    name: str, tensor: str, side: int, window_a: int, window_b: int, transform: str, is_staged: bool
) -> str:
    """The kernel of tiles.c, or staged_tiles.c, for one operand."""
    macros = {
        "NAME": name, "TENSOR": tensor, "SIDE": side, "WINDOW_A": window_a, "WINDOW_B": window_b,
        "TRANSFORM": transform, "OF(name)": f"JOIN({tensor}_, name)",
        "PUT(points, place)": f"PUT_POINTS(points, {tensor}, place)",
    }  # fmt: skip
    return "\n".join(
        (
            *(f"#define {name} {value}" for name, value in macros.items()),
            read_text("gpu/convolution/winograd", "staged_tiles.c" if is_staged else "tiles.c"),
            *(f"#undef {name.split('(')[0]}" for name in macros),
        )
    )


def numbers_of(plan: Plan, places: Places) -> dict[str, int]:
    """The integers that every kernel takes, by name."""
    problem, (a, b) = plan.problem, plan.axes
    first, second, result = plan.tensors
    groups = plan.groups
    numbers = {"images": problem.n, "groups": groups}
    for name, axis in (("a", a), ("b", b)):
        numbers |= {
            f"tiles_{name}": axis.tiles, f"steps_{name}": axis.steps, f"dilation_{name}": axis.dilation,
        }  # fmt: skip
    numbers |= _tensor("first", first, plan, (a.offset, b.offset), (a.extent, b.extent))
    numbers |= _extents("first", first)
    numbers |= _place("first", places.data)
    if plan.is_wgrad:
        numbers |= _tensor("second", second, plan, (0, 0), (a.results, b.results))
        filter_tensor = result
    else:
        numbers |= _tensor("result", result, plan, (0, 0), (a.results, b.results))
        filter_tensor = second
        numbers |= _strides("second", second)
    numbers |= _extents("second", second)
    numbers |= _place("second", places.other)
    numbers |= {
        "products": places.products.at, "products_point": places.products.point,
        "products_group": places.products.group, "products_row": places.products.row,
    }  # fmt: skip
    k, c, *space = filter_tensor.strides
    taps = [0] * (2 - len(space)) + space
    is_flipped = (problem.mode == "convolution") != (problem.direction == "bwd_data")
    start = sum((axis.r - 1) * step for axis, step in zip(plan.axes, taps, strict=True)) if is_flipped else 0
    rows, columns, row, column = problem.k // groups, problem.c // groups, k, c
    if (problem.direction == "bwd_data") != places.is_across:
        rows, columns, row, column = columns, rows, c, k
    return numbers | {
        "filter_first": start, "filter_group": problem.k // groups * k, "filter_row": row,
        "filter_column": column, "filter_rows": rows, "filter_columns": columns,
        "filter_h": -taps[0] if is_flipped else taps[0], "filter_w": -taps[1] if is_flipped else taps[1],
    }  # fmt: skip


def _strides(name: str, tensor: TensorDescriptor) -> dict[str, int]:
    n, c, *space = tensor.strides
    h, w = [0] * (2 - len(space)) + space
    return {f"{name}_n": n, f"{name}_c": c, f"{name}_h": h, f"{name}_w": w}


def _tensor(
    name: str, tensor: TensorDescriptor, plan: Plan, offsets: tuple[int, int], extents: tuple[int, int]
) -> dict[str, int]:
    """Of a tensor in tiles."""
    n, c, *space = tensor.strides
    is_vector = c == 1 and not any(stride % plan.lanes for stride in (n, *space))
    return _strides(name, tensor) | {
        f"{name}_channels": tensor.shape[1], f"{name}_group_channels": tensor.shape[1] // plan.groups,
        f"{name}_extent_a": extents[0], f"{name}_extent_b": extents[1],
        f"{name}_offset_a": offsets[0], f"{name}_offset_b": offsets[1], f"{name}_is_vector": int(is_vector),
    }  # fmt: skip


def _extents(name: str, tensor: TensorDescriptor) -> dict[str, int]:
    """For samples of a tensor."""
    _, c, *space = tensor.shape
    h, w = [1] * (2 - len(space)) + space
    return {
        f"{name}_count": tensor.size, f"{name}_dense": int(tensor.is_dense), f"{name}_lowest": tensor.span()[0],
        f"{name}_axis_c": c, f"{name}_axis_h": h, f"{name}_axis_w": w,
    }  # fmt: skip


def _place(name: str, place: Place) -> dict[str, int]:
    return {
        f"{name}_to": place.at, f"{name}_to_point": place.point, f"{name}_to_group": place.group,
        f"{name}_to_row": place.row, f"{name}_between": place.between,
    }  # fmt: skip
