"""Data in several processes: gradients of converted models are reduced as torch's are (DDP, FSDP2)."""

from __future__ import annotations

import pytest

from process_groups import Ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize(
    "kind", ["ddp", "fsdp", "ddp_steps", "fsdp_steps", "sync", "sync_layers", "sync_exchanges", "sync_steps"]
)
def test_two_processes_have_gradients_steps_and_statistics_of_torchs(kind: str, ranks: Ranks) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    if kind.startswith("fsdp"):
        pytest.importorskip("torch.distributed.fsdp", reason="this PyTorch has no FSDP")
        if not hasattr(torch.distributed.fsdp, "fully_shard"):
            pytest.skip("this PyTorch has no fully_shard")
    ranks(f"torch_processes.{kind}")
