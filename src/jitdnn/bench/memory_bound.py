"""Operations that move memory rather than compute: each beside PyTorch's and beside a copy of as many bytes.

All tensors are PyTorch's, in one memory order and of 64 MiB, and results are allocated by every call on both sides;
the C library is told to keep freed memory, so that neither pays for new pages. The copy is the faster one of both
libraries' into memory that is there already."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jitdnn as jd
from jitdnn.bench import provenance
from jitdnn.bench.timing import Method, Neighbours, interleaved, median, ratio
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.settings import settings

BYTES = 64 << 20
SHAPE = (16, 256, 64, 64)  # of 64 MiB in f32
LAYOUTS = ("nchw", "nhwc")
#: What is compared with a copy should take at most this many times as long.
COPY_LIMIT = 1.5
#: Two libraries round differently; larger differences are another result.
BOUND = 1e-4

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One operation: our call and PyTorch's over the same tensors, and the bytes that must be moved.

    `differs` says that results are random and not to be compared; `truth` computes in f64 what ours is compared with
    where PyTorch's own result is not exact enough."""

    name: str
    ours: Call
    theirs: Call
    bytes: int
    differs: bool = False
    truth: Call | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case: seconds of ours, of PyTorch and of a copy of the same bytes."""

    name: str
    layout: str
    threads: int
    seconds: float | None = None
    torch_seconds: float | None = None
    copy_seconds: float | None = None
    ratio: float | None = None
    over_copy: float | None = None
    failure: str | None = None
    neighbours: float | None = None
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""
    commit: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The row as JSON's types."""
        return asdict(self)


def run(
    threads: Sequence[int] = (1, 2),
    layouts: Sequence[str] = LAYOUTS,
    only: Sequence[str] = (),
    method: Method | None = None,
    progress: Callable[[str], None] = lambda label: None,
) -> Iterator[Row]:
    """Measure all cases, or those whose names contain one of `only`. Raises InvalidArgument without PyTorch."""
    try:
        import torch
    except ImportError:
        raise InvalidArgument("PyTorch is not installed; pip install 'jitdnn[bench]' brings it") from None
    _keep_freed_memory()
    method = method or Method()
    versions, commit = provenance.versions(), provenance.commit()
    for count in threads:
        torch.set_num_threads(count)
        with settings(threads=count), Handle() as handle, torch.no_grad():
            for layout in layouts:
                source = _tensor(torch, SHAPE, layout)
                target = torch.empty_like(source)
                for case in cases(torch, layout):
                    if only and not any(part in case.name for part in only):
                        continue
                    progress(f"{case.name} {layout} x{count}")
                    row = _measure(torch, case, source, target, method)
                    yield Row(
                        case.name, layout, count, **row, device=handle.device.name, versions=versions,
                        date=provenance.now(), commit=commit,
                    )  # fmt: skip


def _measure(torch: Any, case: Case, source: Any, target: Any, method: Method) -> dict[str, Any]:
    expected = case.truth or case.theirs
    error = 0.0 if case.differs else _error(torch, case.ours(), expected())
    if not error <= BOUND:
        return {
            "failure": f"another result than {'in f64' if case.truth else 'of PyTorch'}: relative error {error:.3g}"
        }
    neighbours = Neighbours()
    calls = [case.ours, case.theirs, lambda: target.copy_(source), lambda: jd.transform(source, out=target)]
    times = interleaved([lambda _, call=call: call() for call in calls], method)  # type: ignore[misc]
    ours, theirs, *copies = (median(taken) for taken in times)
    fastest = min(range(2, 4), key=lambda i: median(times[i]))
    moved = case.bytes / (2 * BYTES)
    return {
        "seconds": ours, "torch_seconds": theirs, "copy_seconds": min(copies) * moved,
        "ratio": ratio(times[1], times[0]), "over_copy": 1.0 / (ratio(times[fastest], times[0]) * moved),
        "neighbours": neighbours.processors(),
    }  # fmt: skip


def _error(torch: Any, ours: Any, theirs: Any) -> float:
    """The largest relative error of the results that both give."""
    mine = ours if isinstance(ours, (tuple, list)) else (ours,)
    other = theirs if isinstance(theirs, (tuple, list)) else (theirs,)
    worst = 0.0
    for a, b in zip(mine, other, strict=False):
        if a is None or b is None:
            continue
        wide = b.double().reshape(a.shape)
        norm = float(wide.norm())
        worst = max(worst, float((a.double() - wide).norm()) / (norm or 1.0))
    return worst


def _keep_freed_memory() -> None:
    """glibc: no separate mappings for large blocks, and nothing given back; elsewhere nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    m_trim_threshold, m_mmap_max = -1, -4
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)


def _tensor(torch: Any, shape: Sequence[int], layout: str, scale: float = 1.0) -> Any:
    """Normal random numbers in a memory order."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    made = torch.randn(tuple(shape), generator=generator) * scale
    return (
        made.contiguous(memory_format=torch.channels_last) if layout == "nhwc" and len(shape) == 4 else made
    )


def cases(torch: Any, layout: str) -> Iterator[Case]:
    """All operations over tensors in a memory order; made one after the other, so that few are held at once."""
    f = torch.nn.functional
    x, y = (
        _tensor(torch, SHAPE, layout),
        _tensor(torch, SHAPE, layout)
        .flip(0)
        .contiguous(memory_format=torch.channels_last if layout == "nhwc" else torch.contiguous_format),
    )
    n, c, h, w = SHAPE
    per_channel = torch.rand(c) + 0.5
    bias = torch.randn(c)
    wide = per_channel.reshape(c, 1, 1)

    yield Case("relu", lambda: jd.relu(x), lambda: torch.relu(x), 2 * BYTES)
    yield Case("tanh", lambda: jd.tanh(x), lambda: torch.tanh(x), 2 * BYTES)
    yield Case("gelu", lambda: jd.gelu(x), lambda: f.gelu(x), 2 * BYTES)
    yield Case("swish", lambda: jd.swish(x), lambda: f.silu(x), 2 * BYTES)
    yield Case("mish", lambda: jd.mish(x), lambda: f.mish(x), 2 * BYTES)
    yield Case("elu", lambda: jd.elu(x), lambda: f.elu(x), 2 * BYTES)
    yield Case("prelu", lambda: jd.prelu(x, bias), lambda: f.prelu(x, bias), 2 * BYTES)
    yield Case(
        "relu backward",
        lambda: jd.relu_backward(y, x),
        lambda: torch.ops.aten.threshold_backward(y, x, 0),
        3 * BYTES,
    )
    yield Case(
        "gelu backward", lambda: jd.gelu_backward(y, x), lambda: torch.ops.aten.gelu_backward(y, x), 3 * BYTES
    )
    yield Case("add", lambda: jd.add(x, y), lambda: x + y, 3 * BYTES)
    yield Case("multiply by channel", lambda: jd.multiply(x, wide), lambda: x * wide, 2 * BYTES)
    other = torch.contiguous_format if layout == "nhwc" else torch.channels_last
    turned = "nchw" if layout == "nhwc" else "nhwc"
    yield Case(
        "other layout",
        lambda: jd.transform(x, layout=turned),
        lambda: x.contiguous(memory_format=other),
        2 * BYTES,
    )
    yield Case("to bf16", lambda: jd.transform(x, dtype="bf16"), lambda: x.bfloat16(), 3 * BYTES // 2)
    yield Case("pad", lambda: jd.transform(x, pad=(0, 0, 1, 1)), lambda: f.pad(x, (1, 1, 1, 1)), 2 * BYTES)
    yield Case("concat", lambda: jd.concat([x, y]), lambda: torch.cat([x, y], 1), 4 * BYTES)
    yield Case("sum by channel", lambda: jd.reduce(x, "add", (0, 2, 3)), lambda: x.sum((0, 2, 3)), BYTES)
    yield Case("maximum over channels", lambda: jd.reduce(x, "max", 1), lambda: x.amax(1), BYTES)
    # PyTorch's sum of so many squares in f32 is off by 6.5e-4
    yield Case(
        "norm", lambda: jd.reduce(x, "norm2"), lambda: x.norm().reshape(1), BYTES,
        truth=lambda: x.double().norm().reshape(1),
    )  # fmt: skip
    yield Case("softmax", lambda: jd.softmax(x), lambda: x.softmax(1), 2 * BYTES)
    yield Case(
        "softmax backward", lambda: jd.softmax_backward(y, x),
        lambda: torch.ops.aten._softmax_backward_data(y, x, 1, x.dtype), 3 * BYTES,
    )  # fmt: skip
    target = torch.randint(0, c, (n, h, w))
    yield Case(
        "cross entropy", lambda: jd.cross_entropy(x, target), lambda: f.cross_entropy(x, target), BYTES
    )
    yield from _pooling(torch, x, y, layout)
    yield from _normalization(torch, x, y, per_channel, bias)
    yield from _others(torch, x, layout)


def _pooling(torch: Any, x: Any, y: Any, layout: str) -> Iterator[Case]:
    f = torch.nn.functional
    yield Case("max pool 2", lambda: jd.max_pool(x, 2), lambda: f.max_pool2d(x, 2), BYTES + BYTES // 4)
    yield Case(
        "max pool 3 by 2",
        lambda: jd.max_pool(x, 3, 2, 1),
        lambda: f.max_pool2d(x, 3, 2, 1),
        BYTES + BYTES // 4,
    )
    yield Case("average pool 2", lambda: jd.avg_pool(x, 2), lambda: f.avg_pool2d(x, 2), BYTES + BYTES // 4)
    pooled, indices = f.max_pool2d(x, 3, 2, 1, return_indices=True)
    dy = torch.randn_like(pooled)
    back = torch.ops.aten.max_pool2d_with_indices_backward
    yield Case(
        "max pool backward", lambda: jd.max_pool_backward(dy, x, pooled, 3, 2, 1),
        lambda: back(dy, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices), 2 * BYTES + BYTES // 2,
    )  # fmt: skip
    yield Case(
        "global average pool", lambda: jd.global_avg_pool(x), lambda: f.adaptive_avg_pool2d(x, 1), BYTES
    )
    yield Case(
        "local response",
        lambda: jd.lrn(x, k=1.0),
        lambda: f.local_response_norm(x, 5, 1e-4, 0.75, 1.0),
        2 * BYTES,
    )


def _normalization(torch: Any, x: Any, y: Any, weight: Any, bias: Any) -> Iterator[Case]:
    f, aten, c = torch.nn.functional, torch.ops.aten, x.shape[1]
    mean, var = torch.zeros(c), torch.ones(c)
    states = mean.clone(), var.clone()
    yield Case(
        "batch norm training", lambda: jd.batch_norm(x, weight, bias, *states),
        lambda: f.batch_norm(x, mean.clone(), var.clone(), weight, bias, True), 2 * BYTES,
    )  # fmt: skip
    yield Case(
        "batch norm inference", lambda: jd.batch_norm_inference(x, weight, bias, mean, var),
        lambda: f.batch_norm(x, mean, var, weight, bias), 2 * BYTES,
    )  # fmt: skip
    _, saved, inverse = aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    yield Case(
        "batch norm backward", lambda: jd.batch_norm_backward(y, x, weight, saved, inverse, wants_bias=True),
        lambda: aten.native_batch_norm_backward(
            y, x, weight, None, None, saved, inverse, True, 1e-5, [True, True, True]
        ), 3 * BYTES,
    )  # fmt: skip
    yield Case(
        "group norm",
        lambda: jd.group_norm(x, 32, weight, bias),
        lambda: f.group_norm(x, 32, weight, bias),
        2 * BYTES,
    )
    yield Case("instance norm", lambda: jd.instance_norm(x), lambda: f.instance_norm(x), 2 * BYTES)
    rows, dy = x.reshape(-1, 1024), y.reshape(-1, 1024)
    gamma, beta = torch.rand(1024), torch.randn(1024)
    yield Case(
        "layer norm", lambda: jd.layer_norm(rows, gamma, beta), lambda: f.layer_norm(rows, (1024,), gamma, beta),
        2 * BYTES,
    )  # fmt: skip
    yield Case(
        "rms norm",
        lambda: jd.rms_norm(rows, gamma),
        lambda: f.rms_norm(rows, (1024,), gamma, 1e-5),
        2 * BYTES,
    )
    _, mean_, rstd = aten.native_layer_norm(rows, (1024,), gamma, beta, 1e-5)
    yield Case(
        "layer norm backward", lambda: jd.layer_norm_backward(dy, rows, gamma, mean_, rstd, wants_bias=True),
        lambda: aten.native_layer_norm_backward(dy, rows, [1024], mean_, rstd, gamma, beta, [True, True, True]),
        3 * BYTES,
    )  # fmt: skip


def _others(torch: Any, x: Any, layout: str) -> Iterator[Case]:
    f = torch.nn.functional
    state = jd.DropoutState(7)
    yield Case(
        "dropout",
        lambda: jd.dropout(x, 0.5, state)[0],
        lambda: f.dropout(x, 0.5, True),
        2 * BYTES,
        differs=True,
    )
    small = x[:, : x.shape[1] // 4].contiguous(
        memory_format=torch.channels_last if layout == "nhwc" else torch.contiguous_format
    )
    moved = BYTES + BYTES // 4
    yield Case(
        "resize nearest",
        lambda: jd.resize(small, scale=2, mode="nearest", coordinates="asymmetric", rounding="floor"),
        lambda: f.interpolate(small, scale_factor=2), moved,
    )  # fmt: skip
    yield Case(
        "resize bilinear", lambda: jd.resize(small, scale=2),
        lambda: f.interpolate(small, scale_factor=2, mode="bilinear"), moved,
    )  # fmt: skip
    table, places = torch.randn(1 << 16, 256), torch.randint(0, 1 << 16, (1 << 16,))
    yield Case(
        "embedding", lambda: jd.embedding(places, table), lambda: f.embedding(places, table), 2 * BYTES
    )


def formulas() -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    """Five typical elementwise formulas: name, our kernel's function, NumPy's expression, both of (x, y, z)."""
    import numpy as np

    yield "a x + b y", lambda x, y, z: 2.0 * x + 3.0 * y, lambda x, y, z: 2.0 * x + 3.0 * y
    yield (
        "exp(-(x - y)^2)",
        lambda x, y, z: jd.exp(-(x - y) * (x - y)),
        lambda x, y, z: np.exp(-((x - y) ** 2)),
    )
    yield (
        "sqrt(x^2 + y^2 + z^2)", lambda x, y, z: jd.sqrt(x * x + y * y + z * z),
        lambda x, y, z: np.sqrt(x**2 + y**2 + z**2),
    )  # fmt: skip
    yield (
        "z / (1 + exp(-x)) + y", lambda x, y, z: z / (1.0 + jd.exp(-x)) + y,
        lambda x, y, z: z / (1 + np.exp(-x)) + y,
    )  # fmt: skip
    yield (
        "where(x > y, min(x, z), y / 2)", lambda x, y, z: jd.where(x > y, jd.minimum(x, z), 0.5 * y),
        lambda x, y, z: np.where(x > y, np.minimum(x, z), np.float32(0.5) * y),
    )  # fmt: skip


def run_formulas(
    threads: Sequence[int], method: Method | None = None
) -> Iterator[tuple[str, int, float, float, float]]:
    """(formula, threads, our seconds, NumPy's, ratio) over three arrays of 64 MiB."""
    import numpy as np

    _keep_freed_memory()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(BYTES // 4, dtype=np.float32) for _ in range(3)]
    for count in threads:
        with settings(threads=count):
            for name, ours, theirs in formulas():
                kernel = jd.elementwise(ours)
                np.testing.assert_allclose(
                    kernel(*arrays)[:9999], theirs(*arrays)[:9999], rtol=1e-5, atol=1e-6
                )
                calls = [lambda _, k=kernel: k(*arrays), lambda _, t=theirs: t(*arrays)]
                times = interleaved(calls, method or Method())
                yield name, count, median(times[0]), median(times[1]), ratio(times[1], times[0])
