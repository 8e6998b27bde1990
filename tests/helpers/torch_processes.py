"""A process of two that train a converted model together: `python torch_processes.py KIND RANK FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import jitdnn.torch as jt
from jitdnn.frameworks.torch.kinds import observers

SIZE = 2


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), nn.Linear(64, 3))


def images(rank: int) -> torch.Tensor:
    return torch.randn((3, 2, 6, 6), generator=torch.Generator().manual_seed(rank))


def expected() -> list[torch.Tensor]:
    """The gradients of one process that has the other's images too: the mean over both, by torch."""
    grads = []
    for rank in range(SIZE):
        one = model()
        one(images(rank)).square().mean().backward()
        grads.append([parameter.grad for parameter in one.parameters()])
    return [(one + other) / SIZE for one, other in zip(*grads, strict=True)]


def main() -> None:
    kind, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    seen = []
    observers.append(lambda kind, operands: seen.append(kind))
    ours = jt.convert(model(), measure="never")
    if kind == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(ours)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        wrapped = fully_shard(ours, mesh=init_device_mesh("cpu", (SIZE,)))
    wrapped(images(rank)).square().mean().backward()
    found = [parameter.grad for parameter in ours.parameters()]
    found = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in found]
    torch.testing.assert_close(found, expected(), rtol=1e-4, atol=1e-5)
    assert seen
    assert all(kind.decision.is_ours for kind in seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
