"""CTC losses, grid sampling and affine grids on a GPU beside PyTorch's and cuDNN's: errors, and times in turns.

    python benchmarks/gpu_ctc_sampling.py [ctc] [sampling] [affine]        (all of them by default)

Times are of kernels that follow each other on one stream, into memory that is there, medians of turns; PyTorch's are
those of its functions and of `torch.autograd.grad`, which allocate their results.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from jitdnn.bench.gpu_timing import interleaved
from jitdnn.devices import cuda
from jitdnn.kernels.tables import algorithms
from jitdnn.problems import GridSample, Problem, parse
from jitdnn.problems.spatial_transformer import SAMPLE_DIRECTIONS

_TURNS = 9
# T, N, A, S
CTC = (
    (150, 32, 29, 30),
    (500, 16, 29, 100),
    (1000, 32, 64, 200),
    (200, 64, 6000, 30),
    (100, 256, 40, 20),
    (1500, 8, 100, 600),
)
# x, output, dtype, layout, where the places are
SAMPLING = (
    ((8, 64, 56, 56), (56, 56), "f32", "nchw", "affine"),
    ((8, 64, 56, 56), (56, 56), "f32", "nhwc", "affine"),
    ((32, 3, 224, 224), (224, 224), "f32", "nchw", "affine"),
    ((4, 32, 512, 512), (512, 512), "f32", "nchw", "flow"),
    ((4, 32, 512, 512), (512, 512), "f16", "nhwc", "flow"),
    ((16, 256, 32, 32), (64, 64), "f16", "nchw", "affine"),
    ((2, 64, 32, 32), (512, 512), "f32", "nchw", "affine"),
    ((8, 64, 100, 100), (100, 100), "f32", "nchw", "random"),
    ((8, 16, 128, 128), (256, 256), "f32", "nchw", "border"),
)
AFFINE = ((8, 56, 56), (32, 224, 224), (1, 1024, 1024))
DTYPES = {"f32": torch.float32, "f16": torch.float16}


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def kernel(problem: Problem) -> Callable[..., None]:
    """The best algorithm's kernel, over tensors."""
    device = cuda.device()
    algorithm = algorithms(problem, "cuda")[0]
    room = torch.empty(algorithm.workspace(problem, device) + 256, dtype=torch.uint8, device="cuda")
    made, stream = algorithm.build(problem, device), torch.cuda.current_stream().cuda_stream
    return lambda *tensors: made(stream, [t.data_ptr() for t in tensors], 1.0, 0.0, room.data_ptr())


def turns(**sides: Callable[[], Any]) -> str:
    """The microseconds of each side, measured in turns."""
    calls = [lambda _, run=run: run() for run in sides.values()]
    taken = interleaved(torch, calls, 1, _TURNS, is_captured=False)
    medians = zip(sides, map(statistics.median, taken), strict=True)
    return "  ".join(f"{name} {1e6 * median:.1f}" for name, median in medians)


def apart(found: torch.Tensor, wanted: torch.Tensor) -> str:
    """The relative error by norms."""
    return f"{((found.double() - wanted.double()).norm() / wanted.double().norm()).item():.0e}"


def ctc(times: int, batch: int, symbols: int, labels: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(times, batch, symbols, device="cuda").log_softmax(2).requires_grad_()
    targets = torch.randint(1, symbols, (batch, labels))
    lengths, counts = torch.full((batch,), times), torch.full((batch,), labels)
    slope, loss, dx = torch.ones(batch, device="cuda"), torch.empty(batch, device="cuda"), torch.empty_like(x)
    words = f"none log_probs t{times} n{batch} a{symbols} s{labels} f32"
    forward, backward = (kernel(parse(f"ctc_loss_{way} {words}")) for way in ("fwd", "bwd"))
    there = [tensor.cuda() for tensor in (targets, lengths, counts)]

    def torch_loss(given: torch.Tensor, *numbers: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(given, *numbers, reduction="none")

    def ours() -> None:
        forward(x, *there, loss)
        backward(slope, x, *there, dx)

    ours()
    exact_x = x.detach().double().requires_grad_()
    exact = torch_loss(exact_x, targets, lengths, counts)
    (exact_dx,) = torch.autograd.grad(exact, exact_x, slope.double())
    # all lengths are T, so that cuDNN takes targets in int32 on the host
    packed = [tensor.int() for tensor in (targets.reshape(-1), lengths, counts)]
    (torch_dx,) = torch.autograd.grad(torch_loss(x, targets, lengths, counts), x, slope)
    sides = {
        "ours": ours,
        "torch": lambda: torch.autograd.grad(torch_loss(x, targets, lengths, counts), x, slope),
    }
    if "Cudnn" in torch_loss(x, *packed).grad_fn.name():
        sides["cudnn"] = lambda: torch.autograd.grad(torch_loss(x, *packed), x, slope)
    say(
        f"T{times} N{batch} A{symbols} S{labels}: error of dx {apart(dx, exact_dx)}, "
        f"torch's {apart(torch_dx, exact_dx)};",
        turns(
            **sides,
            forward=lambda: forward(x, *there, loss),
            torch_forward=lambda: torch_loss(x.detach(), *there),
        ),
    )


def places(shape: tuple[int, ...], size: tuple[int, ...], kind: str) -> torch.Tensor:
    batch = shape[0]
    scale = 3.0 if kind == "border" else 0.9
    theta = scale * torch.eye(2, 3, device="cuda").repeat(batch, 1, 1) + 0.1 * torch.randn(
        batch, 2, 3, device="cuda"
    )
    grid = F.affine_grid(theta, [*shape[:2], *size], align_corners=False)
    if kind == "flow":
        return grid + 0.01 * torch.randn_like(grid)
    return torch.rand_like(grid) * 2 - 1 if kind == "random" else grid


def sampling(shape: tuple[int, ...], size: tuple[int, ...], dtype: str, layout: str, kind: str) -> None:
    torch.manual_seed(0)
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    padding = "border" if kind == "border" else "zeros"
    x, dy = (
        torch.randn(extents, device="cuda").to(DTYPES[dtype]).contiguous(memory_format=form)
        for extents in (shape, (*shape[:2], *size))
    )
    grid = places(shape, size, kind).to(DTYPES[dtype])
    y, dx, dgrid = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(grid)
    forward, by_image, by_grid = (
        kernel(GridSample.make(direction, shape, size, "linear", padding, False, dtype, layout))
        for direction in SAMPLE_DIRECTIONS
    )

    def backward() -> None:
        by_image(dy, grid, dx)
        by_grid(dy, x, grid, dgrid)

    def torch_forward(given: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(given, at, "bilinear", padding, align_corners=False)

    forward(x, grid, y)
    backward()
    before = dx.clone()
    backward()
    exact_x, exact_grid = x.double().requires_grad_(), grid.double().requires_grad_()
    exact = torch_forward(exact_x, exact_grid)
    gradients = torch.autograd.grad(exact, (exact_x, exact_grid), dy.double())
    own_x, own_grid = x.clone().requires_grad_(), grid.clone().requires_grad_()
    out = torch_forward(own_x, own_grid)
    torchs = torch.autograd.grad(out, (own_x, own_grid), dy, retain_graph=True)
    errors = [f"{apart(one, exact)} ({apart(other, exact)})" for one, other, exact in zip(
        (y, dx, dgrid), (out, *torchs), (exact, *gradients), strict=True)]  # fmt: skip
    del exact, exact_x, exact_grid, gradients
    say(
        f"x {shape} at {size} {dtype} {layout} {kind}: errors (torch's) {', '.join(errors)};",
        f"the same again: {torch.equal(before, dx)}",
    )
    with torch.no_grad():
        say("   forward:", turns(ours=lambda: forward(x, grid, y), torch=lambda: torch_forward(x, grid)))
    say(
        "   backward:",
        turns(
            ours=backward,
            torch=lambda: torch.autograd.grad(out, (own_x, own_grid), dy, retain_graph=True),
            by_image=lambda: by_image(dy, grid, dx),
            by_grid=lambda: by_grid(dy, x, grid, dgrid),
        ),
    )


def affine(batch: int, height: int, width: int) -> None:
    theta = torch.randn(batch, 2, 3, device="cuda", requires_grad=True)
    size = [batch, 1, height, width]
    out = F.affine_grid(theta, size, align_corners=False)
    grid, dgrid, dtheta = torch.empty_like(out), torch.randn_like(out), torch.empty_like(theta)
    words = f"shape{batch}x{height}x{width} f32"
    forward, backward = (kernel(parse(f"affine_grid_{way} {words}")) for way in ("fwd", "bwd"))
    forward(theta, grid)
    backward(dgrid, dtheta)
    (wanted,) = torch.autograd.grad(out, theta, dgrid, retain_graph=True)
    say(
        f"affine {words}: apart {apart(grid, out)}, {apart(dtheta, wanted)};",
        turns(
            ours=lambda: forward(theta, grid),
            torch=lambda: F.affine_grid(theta, size, align_corners=False),
            ours_backward=lambda: backward(dgrid, dtheta),
            torch_backward=lambda: torch.autograd.grad(out, theta, dgrid, retain_graph=True),
        ),
    )


LISTS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    "ctc": (ctc, CTC),
    "sampling": (sampling, SAMPLING),
    "affine": (affine, AFFINE),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or LISTS:
        run, cases = LISTS[name]
        for case in cases:
            run(*case)
