"""Operations that move memory rather than compute, on GPUs that PyTorch works on, each beside PyTorch's and a copy.

All tensors are PyTorch's, of `nbytes` bytes, several times the cache, and our results go to `out=`. Calls are
captured in CUDA graphs and take turns with a copy on the device. The share of its bandwidth that ours reaches is the
time of a copy of as many bytes as the operation must move over our time. A result that is further from PyTorch's in
f64 (in f32 for the short types) than its type explains has no time, and an operation that is not there yet has its
reason in place of one."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from jitdnn import targets
from jitdnn.bench import provenance
from jitdnn.bench.gpu_cases import LAYOUTS, Case, cases
from jitdnn.bench.gpu_timing import interleaved
from jitdnn.bench.timing import median, ratio
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.settings import settings

BYTES = 256 << 20
DTYPES = ("bf16", "f32")
_TORCH_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
#: Relative errors, in the norm, that the rounding of results and of long sums explains.
BOUND = {"f16": 3e-3, "bf16": 1e-2, "f32": 1e-4, "f64": 1e-10}
#: What moves memory should reach this share of a copy's bandwidth.
SHARE = 0.85
_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case: seconds of ours, of PyTorch and of a copy of as many bytes.

    `bytes`: those that must be moved. `ratio`: PyTorch's time over ours; `share`: the copy's time over ours."""

    name: str
    layout: str
    dtype: str
    bytes: int = 0
    seconds: float | None = None
    torch_seconds: float | None = None
    copy_seconds: float | None = None
    ratio: float | None = None
    share: float | None = None
    error: float | None = None
    failure: str | None = None
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""
    commit: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The row as JSON's types."""
        return asdict(self)


def run(
    dtypes: Sequence[str] = DTYPES,
    layouts: Sequence[str] = LAYOUTS,
    only: Sequence[str] = (),
    nbytes: int = BYTES,
    is_found: bool = False,
    progress: Callable[[str], None] = lambda label: None,
    gpus: str = "cuda",
) -> Iterator[Row]:
    """Measure all cases, or those whose names contain one of `only`, on the first GPU of the target `gpus`.

    `is_found` measures the algorithms first. Raises InvalidArgument without PyTorch or for a type that is not measured,
    DeviceError without a GPU.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise InvalidArgument("PyTorch is not installed; pip install 'jitdnn[bench]' brings it") from None
    unknown = [name for name in dtypes if name not in _TORCH_TYPES]
    if unknown:
        raise InvalidArgument(f"dtype {unknown[0]!r}: there are {', '.join(_TORCH_TYPES)}")
    device = targets.get(gpus).device()
    torch.backends.cudnn.benchmark = True
    blank = Row(
        "", "", "", device=device.name, versions=provenance.versions(("numpy", "torch", "cuda-bindings")),
        commit=provenance.commit(),
    )  # fmt: skip
    choice = {"choice": "find"} if is_found else {}
    with settings(**choice), Handle(device), torch.no_grad():
        for dtype in dtypes:
            kind = getattr(torch, _TORCH_TYPES[dtype])
            source = torch.empty(nbytes // kind.itemsize, dtype=kind, device="cuda").normal_()
            target = torch.empty_like(source)
            for name, layout, make in cases(torch, kind, nbytes, layouts, "cuda", only):
                progress(f"{name} {layout} {dtype}")
                row = replace(blank, name=name, layout=layout, dtype=dtype, date=provenance.now())
                try:
                    yield _measure(row, torch, make(), source, target)
                except Exception as failure:  # whatever one operation dies of, the others are measured
                    yield replace(
                        row, failure=f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
                    )
                torch.cuda.empty_cache()


def _measure(row: Row, torch: Any, case: Case, source: Any, target: Any) -> Row:
    worst = error(torch, case)
    row = replace(row, bytes=case.bytes, error=worst)
    if not worst <= BOUND[row.dtype]:
        return replace(row, failure=f"another result than PyTorch's: relative error {worst:.3g}")
    calls = [
        lambda _: case.ours(), lambda _: case.theirs(*case.inputs), lambda _: target.copy_(source),
    ]  # fmt: skip
    times = interleaved(torch, calls, 1, _ROUNDS, case.is_captured)
    moved = case.bytes / (2 * source.nbytes)
    return replace(
        row, seconds=median(times[0]), torch_seconds=median(times[1]), copy_seconds=median(times[2]) * moved,
        ratio=ratio(times[1], times[0]), share=ratio(times[2], times[0]) * moved,
    )  # fmt: skip


def error(torch: Any, case: Case) -> float:
    """The largest relative error of our results, against PyTorch's of wider inputs; infinite for what is not finite."""
    ours = _listed(case.ours())
    if case.truth is not None:
        expected = _listed(case.truth(*ours))
    else:
        expected = _listed(case.theirs(*_widened(torch, case.inputs)))
    worst = 0.0
    for mine, true in zip(ours, expected, strict=False):
        if mine is None or true is None:
            continue
        true = true.reshape(mine.shape)
        off = float((mine.to(true.dtype) - true).norm()) / max(float(true.norm()), 1e-30)
        worst = max(worst, off if math.isfinite(off) else math.inf)
    return worst


def _listed(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (tuple, list)) else (results,)


def _widened(torch: Any, inputs: Sequence[Any]) -> list[Any]:
    """Tensors of reals in f32 where any has a shorter type, else in f64; everything else as it is."""
    reals = [one for one in inputs if torch.is_tensor(one) and one.is_floating_point()]
    wide = torch.float32 if any(one.dtype.itemsize < 4 for one in reals) else torch.float64
    return [one.to(wide) if any(one is real for real in reals) else one for one in inputs]
