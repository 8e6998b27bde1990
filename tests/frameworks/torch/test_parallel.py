"""Data in several processes: gradients of converted models are reduced as torch's are (DDP, FSDP2)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SCRIPT = ROOT / "tests" / "helpers" / "torch_processes.py"
SECONDS = 120


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "sync"])
def test_two_processes_have_the_mean_gradients_and_torchs_statistics(kind: str, tmp_path: Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    if kind == "fsdp":
        pytest.importorskip("torch.distributed.fsdp", reason="this PyTorch has no FSDP")
        if not hasattr(torch.distributed.fsdp, "fully_shard"):
            pytest.skip("this PyTorch has no fully_shard")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), kind, str(rank), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(texts)
