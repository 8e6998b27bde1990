"""Plans of CUDA that another process made: the same launches of the same code, and nobody is asked again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jitdnn as jd
from jitdnn import targets
from jitdnn.devices import cuda_compile
from jitdnn.devices.cuda_kernel import CudaKernel
from jitdnn.handle import Handle
from jitdnn.kernels.cuda.convolution.half_precision.copied import Copied
from jitdnn.kernels.cuda.gemm.code import ByAddress, Reordered
from jitdnn.kernels.cuda.gemm.packing import Packed
from jitdnn.kernels.gpu.convolution.winograd.code import Composite
from jitdnn.planner import choose, kept_plans
from jitdnn.planner.gpu_kernel_records import record_of
from jitdnn.planner.plan import Request
from jitdnn.problems import parse
from jitdnn.rtcg.cache import CodeCache
from jitdnn.settings import current

pytest.importorskip("cuda.bindings.nvrtc")

PROBLEMS = {
    "depthwise": "conv_fwd n2 c8 h9 w8 k8 r3 s3 pad1 g8 bf16 nhwc",
    "by_warpgroups": "conv_fwd n2 c64 h9 w8 k64 r3 s3 pad1 bf16 nhwc",
    "packed": "conv_bwd_filter n2 c64 h9 w8 k64 r3 s3 pad1 f32 nchw",
    "few_channels": "conv_fwd n2 c3 h32 w32 k32 r3 s3 pad1 stride2 bf16 nhwc",
    "copied_around": "conv_fwd n8 c512 h1 w499 k512 r1 s31 pad0x15 g512 bf16 nchw",
    "patches_copied": "conv_fwd n8 c512 h1 w1999 k512 r1 s2 stride1x2 bf16 nchw",
    "winograd": "conv_fwd n32 c256 h56 w56 k256 r3 s3 pad1 f32 nchw",
    "winograd_filter": "conv_bwd_filter n32 c256 h56 w56 k256 r3 s3 pad1 f32 nchw",
    "product": "matmul m64 n48 k32 f32",
    "product_not_turned": "matmul m48 n64 k32 f32",
    "pool": "pool_fwd max n2 c3 h8 w8 window2 stride2",
}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, and a compiler that says what it was given: nothing of this runs."""
    monkeypatch.setattr(cuda_compile, "_compile", lambda source, text, arch: f"{arch} {text}".encode())
    with jd.settings(keep_plans=True, cache_dir=tmp_path, math="tf32", log="off"):
        yield


def handle(arch: str = "sm_90a") -> Handle:
    return Handle(targets.on_paper(arch))  # type: ignore[arg-type]


def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the planner asked the algorithms")

    monkeypatch.setattr(choose, "survey", refuse)


def state(kernel: Any) -> dict[str, Any]:
    """All that a kernel launches with."""
    if isinstance(kernel, ByAddress):
        return {"alignments": kernel.alignments, "mask": kernel._mask, **state(kernel.aligned)}
    if isinstance(kernel, Reordered):
        return {"order": kernel.order, **state(kernel.kernel)}
    if isinstance(kernel, Packed):
        packs = [(state(pack), operand) for pack, operand in kernel.packs]
        return {"packs": packs, **state(kernel.kernel)}
    if isinstance(kernel, Copied):
        parts = [one and state(one) for one in (kernel.before, kernel.inner, kernel.behind)]
        return {"copied": parts, "rooms": (kernel.first_room, kernel.result_room)}
    if isinstance(kernel, Composite):
        parts = [state(one) for one in (kernel.transforms, kernel.product, kernel.finish)]
        return {"winograd": parts, "rooms": (kernel.operands, kernel.inner)}
    assert type(kernel) is CudaKernel
    names = ("_index", "_code", "_launches", "_numbers", "_count", "_tables")
    return {"head": kernel._head.format, "name": kernel._source.name} | {n: getattr(kernel, n) for n in names}


@pytest.mark.parametrize("words", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_the_same_launches_without_asking(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = handle().plan(parse(words))
    forbidden(monkeypatch)
    again = handle().plan(parse(words))
    assert again is not first
    assert state(again.run) == state(first.run)
    assert again.candidates == first.candidates
    assert (again.algorithm, again.workspace, again.seconds) == (
        first.algorithm,
        first.workspace,
        first.seconds,
    )
    assert again.device_id == first.device_id
    # a kept plan is kept again as it was
    assert record_of(again.run, again.device) == record_of(first.run, first.device)  # type: ignore[arg-type]


def test_operands_packed_by_kernels_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse("conv_fwd n8 c64 h20 w20 k64 r3 s3 pad1 f32 nchw")
    first = handle("sm_80").plan(problem)
    assert isinstance(first.run, Packed)
    with monkeypatch.context() as patch:
        forbidden(patch)
        again = handle("sm_80").plan(problem)
    assert state(again.run) == state(first.run)
    assert len(state(again.run)["packs"]) == 2
    # where the code of one of them is gone, the algorithm makes all of them again
    key = first.run.packs[0][0].record("sm_80")["key"]  # type: ignore[attr-defined]
    monkeypatch.setattr(CudaKernel, "from_record", _without(key, CudaKernel.from_record))
    assert state(handle("sm_80").plan(problem).run) == state(first.run)


def _without(key: str, from_record: Any) -> Any:
    """`from_record` where there is no code of this key."""
    return lambda index, record: None if record["key"] == key else from_record(index, record)


def test_other_addresses_are_for_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse(PROBLEMS["depthwise"])
    first = handle().plan(problem).run
    again = handle().plan(problem).run
    assert isinstance(first, ByAddress)
    assert isinstance(again, ByAddress)
    other = again.make_other()
    assert isinstance(other, ByAddress)
    assert state(other.make_other()) == state(first.make_other())
    assert state(other) == state(first)


@pytest.mark.parametrize("name", ["copied_around", "patches_copied"])
def test_copies_around_a_kernel_are_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse(PROBLEMS[name])
    first, again = handle().plan(problem).run, handle().plan(problem).run
    assert isinstance(first, Copied)
    assert isinstance(again, Copied)
    if isinstance(first.inner, ByAddress):
        assert isinstance(again.inner, ByAddress)
        other = again.inner.make_other()  # the algorithm's own, which knows what other addresses take
        assert isinstance(other, ByAddress)
        assert state(other.make_other()) == state(first.inner.make_other())
    # where the code of one of them is gone, the algorithm makes all of them again
    key = (first.before or first.behind).record("sm_90a")["key"]  # type: ignore[union-attr]
    monkeypatch.setattr(CudaKernel, "from_record", _without(key, CudaKernel.from_record))
    assert state(handle().plan(problem).run) == state(first)


@pytest.mark.parametrize("name", ["winograd", "winograd_filter"])
def test_winograds_transforms_are_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with jd.settings(math="fp32"):
        problem = parse(PROBLEMS[name])
        first = handle().plan(problem)
        assert isinstance(first.run, Composite)
        forbidden(monkeypatch)
        assert state(handle().plan(problem).run) == state(first.run)


@pytest.mark.parametrize("setting", [{"math": "fp32"}, {"workspace_limit": 0}, {"deterministic": True}])
def test_another_request_is_planned(setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse(PROBLEMS["by_warpgroups"])
    plan = handle().plan(problem)
    with jd.settings(**setting):
        assert not kept_plans.is_kept(problem, plan.device, Request.of(current()), None)


def test_another_device_is_planned() -> None:
    problem = parse(PROBLEMS["pool"])
    plan = handle().plan(problem)
    assert kept_plans.is_kept(problem, plan.device, plan.request, None)
    other = targets.on_paper("sm_80")
    assert not kept_plans.is_kept(problem, other, plan.request, None)  # type: ignore[arg-type]
    # the second of two equal GPUs is no other one
    second = replace(plan.device, index=1)  # type: ignore[type-var]
    found = kept_plans.recall(problem, second, plan.request, None)
    assert found is not None
    assert found.device_id == ("cuda", 1)


def _kept_files() -> list[str]:
    cache = CodeCache.default()
    entries = {key: cache.entry(key) for key in sorted(cache.keys())}
    return [key for key, entry in entries.items() if entry and entry.content.startswith(b'{"algor')]


def test_lost_code_is_compiled_again(tmp_path: Path) -> None:
    problem = parse(PROBLEMS["pool"])
    first = handle().plan(problem)
    (kept,) = _kept_files()
    for file in (tmp_path / "code").glob("*.bin"):
        if file.stem != kept:
            file.unlink()
    assert state(handle().plan(problem).run) == state(first.run)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept.pop("kernel"),
        lambda kept: kept["kernel"].pop("launches"),
        lambda kept: kept["kernel"].update(kind="nothing"),
        lambda kept: kept["kernel"].update(launches=[["one"]]),
        lambda kept: kept["kernel"].update(tables={"maps": [{}], "numbers": []}),
        lambda kept: kept.update(candidates=[]),
    ],
)
def test_what_is_no_record_is_planned_again(damage: Any) -> None:
    problem = parse(PROBLEMS["pool"])
    first = handle().plan(problem)
    (key,) = _kept_files()
    kept = json.loads(CodeCache.default().get(key) or b"")
    damage(kept)
    CodeCache.default().put(key, json.dumps(kept).encode())
    assert state(handle().plan(problem).run) == state(first.run)
