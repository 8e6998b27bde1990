"""The devices that tests of GPU kernels run on: those that there are, PoCL and an emulator of CUDA among them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jitdnn.devices import cuda, cuda_compile, opencl
from jitdnn.ops import multi_tensor

sys.path.insert(0, str(Path(__file__).parent))  # harness, emulation, memory_lock

# JAX takes three quarters of a GPU at its first use, unless told not to before it is imported
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100", "sm_120")
#: the first with tensor cores that kernels are for, and that with the most instructions of its own: most kernels are
#: compiled for these two, since what differs between the others is in `instructions.cuh`, which is compiled for all
ENDS = ("sm_80", "sm_90a")

#: whether emulated kernels are run under the race detector (emulation/races.h), those in plain C, too
RACES = bool(os.environ.get("JITDNN_TESTS_RACES"))


def _emulated() -> Any:
    emulation = pytest.importorskip("emulation.device", reason="the emulator of CUDA is not here")
    reason = emulation.missing()
    if reason:
        pytest.skip(reason)
    return emulation.EmulatedCudaDevice()


def _opencl() -> Any:
    if not opencl.device_count():
        pytest.skip("no OpenCL device: Debian's pocl-opencl-icd is one")
    return opencl.device()


def _cuda() -> Any:
    if not cuda.device_count():
        pytest.skip("no NVIDIA GPU")
    return cuda.device()


DEVICES: dict[str, Callable[[], Any]] = {"opencl": _opencl, "cuda": _cuda, "cuda-emulated": _emulated}


@pytest.fixture(autouse=True, scope="session")
def _no_spills() -> None:
    """Registers that spill unexpectedly are an error by the compiler that is installed for the tests; where there is a
    GPU, whose own compiler may allocate them otherwise, kernels are taken as they are."""
    cuda_compile.refuses_spills = not cuda.device_count()


@pytest.fixture(autouse=True)
def _share_of_memory() -> Iterator[None]:
    """Tests in other processes that need most of a real GPU's memory wait for this one, and it for them."""
    if not cuda.device_count():
        yield
        return
    from memory_lock import beside_others_on_the_gpu

    with beside_others_on_the_gpu():
        yield


@pytest.fixture(params=["opencl", "cuda", *["cuda-emulated"] * RACES])
def device(request: pytest.FixtureRequest) -> Any:
    """A device for kernels in plain C."""
    return DEVICES[request.param]()


@pytest.fixture(params=["cuda-emulated", "cuda"])
def cuda_device(request: pytest.FixtureRequest) -> Any:
    """A device for kernels in CUDA C++. Of the emulated one only small problems may be asked."""
    if request.param == "cuda-emulated" and cuda.device_count():
        pytest.skip("there is a real GPU")
    return DEVICES[request.param]()


@pytest.fixture
def hopper(cuda_device: Any) -> Any:
    """A device for kernels of the "hopper" dialect."""
    if cuda_device.arch != "sm_90a":
        pytest.skip("needs a GPU of compute capability 9.0")
    return cuda_device


@pytest.fixture(params=ENDS)
def architecture(request: pytest.FixtureRequest) -> Any:
    """A CUDA device on paper, which compiles and launches nothing."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    return cuda.offline(request.param)


@pytest.fixture(params=ARCHITECTURES)
def any_architecture(request: pytest.FixtureRequest) -> Any:
    """Every one of them on paper."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    return cuda.offline(request.param)


@pytest.fixture
def name(device: Any) -> str:
    """A device for kernels in plain C, as it is given by name."""
    target, index = device.device_id
    return f"{target}:{index}"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All devices follow addresses in memory, which of those of OpenCL only processors are known to do."""
    monkeypatch.setattr(multi_tensor, "reads_addresses", lambda gpu: True)
