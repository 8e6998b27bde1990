"""Results of warpgroups that threads store leave as 8 or 16 bytes: the compiler takes assignments of vectors apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from convolution_cases import convolution
from jitdnn.devices import cuda, cuda_compile
from jitdnn.devices.cuda import CudaDevice
from jitdnn.devices.gpu import Launch, Source
from jitdnn.errors import DeviceError
from jitdnn.kernels.tables import algorithms

# algorithm, problem, direction, kernel: one whose results threads store, wherever beta is one or zero
STORING = (
    ("implicit_gemm_wgmma", "n2 c128 h16 w16 k64 r1 s1 stride2 bf16 nhwc", "bwd_data", "multiply"),
    ("implicit_gemm_3xf16", "n2 c128 h16 w16 k64 r3 s3 pad1 stride2 f32 nhwc", "bwd_data", "multiply"),
    ("implicit_gemm_wgmma_in_lines", "n2 c64 h32 w32 k64 r3 s3 pad1 bf16 nhwc", "fwd", "multiply"),
)


@pytest.mark.parametrize(("name", "words", "direction", "kernel"), STORING)
def test_no_vector_is_taken_apart(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str, direction: str, kernel: str
) -> None:
    try:
        cuda_compile.compiler_version()
    except (DeviceError, ImportError, RuntimeError) as error:
        pytest.skip(str(error))
    found: list[Source] = []

    def noted(_: CudaDevice, source: Source, launches: Sequence[Launch], *__: Any, **___: Any) -> Any:
        found.append(source)
        return lambda *_: None

    monkeypatch.setattr(CudaDevice, "kernel", noted)
    device, problem = cuda.offline("sm_90a"), convolution(words, direction)
    algorithm = next(one for one in algorithms(problem, "cuda") if one.name == name)
    assert algorithm.refuse(problem, device) is None
    algorithm.build(problem, device)
    (body,) = (
        entry
        for source in found
        for entry in cuda_compile.ptx(source, device.arch).split(".entry ")
        if re.match(rf"{kernel}\b", entry)
    )
    stores = re.findall(r"st\.global\.(v[24]|\w+)", body)
    assert any(one in ("v2", "v4") for one in stores)
    # the exact products of what is not finite are stored one by one
    assert len([one for one in stores if one in ("u32", "b32", "f32")]) <= 1
