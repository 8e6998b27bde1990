"""The benchmarks of GPUs, as far as they go without one: what is compared, and what they need to begin."""

from __future__ import annotations

import subprocess
import sys

import pytest

import jitdnn
from jitdnn.bench import gpu_cases, gpu_memory_bound
from jitdnn.devices import cuda
from paths import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# jitdnn where llvmlite is not: the machine that has the GPU need not have it
_WITHOUT_LLVMLITE = """
import sys
sys.modules["llvmlite"] = None
import {module}
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_operations_that_move_memory_compute_what_pytorch_does(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very calls that are timed on a GPU, on small tensors of the CPU."""
    monkeypatch.setattr(gpu_cases, "SPACE", 8)
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    nbytes = 2 * gpu_cases.CHANNELS * 8 * 8 * kind.itemsize
    layouts = gpu_cases.LAYOUTS if dtype == "f32" else ("nhwc",)
    names = []
    with torch.no_grad():
        for name, layout, make in gpu_cases.cases(torch, kind, nbytes, layouts, "cpu"):
            error = gpu_memory_bound.error(torch, make())
            assert error <= gpu_memory_bound.BOUND[dtype], f"{name} {layout}"
            names.append((name, layout))
    assert len(names) == len(set(names)) > 30


def test_a_wrong_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cases, "SPACE", 8)
    monkeypatch.setattr(jitdnn, "relu", lambda x, out: out.copy_(x))
    found = list(gpu_cases.cases(torch, torch.float32, 1 << 16, ("nchw",), "cpu", ("relu",)))
    assert [name for name, _, _ in found] == ["relu", "relu backward"]
    assert gpu_memory_bound.error(torch, found[0][2]()) > 0.1
    assert gpu_memory_bound.error(torch, found[1][2]()) == 0.0


@pytest.mark.skipif(bool(cuda.device_count()), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(jitdnn.DeviceError):
        next(gpu_memory_bound.run())


@pytest.mark.parametrize("module", ["jitdnn.cli.bench", "jitdnn.bench.gpu_driver", "jitdnn.ops.call"])
def test_no_compiler_of_cpu_code_is_needed(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_LLVMLITE.format(module=module)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_script_for_gpu_machines_names_its_parts() -> None:
    script = ROOT / "benchmarks" / "gpu.sh"
    done = subprocess.run([script, "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "check, neglected, dense, memory and fuzz" in done.stderr
