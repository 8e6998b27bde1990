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


def synchronized(rank: int) -> None:
    """Torch's SyncBatchNorm stays torch's, whichever comes first: the statistics of all, or its own refusal."""
    sync = nn.SyncBatchNorm.convert_sync_batchnorm
    torch_own = sync(model())
    others = [sync(jt.convert(model(), measure="never")), jt.convert(sync(model()), measure="never")]
    for ours in others:
        assert type(ours[1]) is nn.SyncBatchNorm
        torch.testing.assert_close(
            ours.eval()(images(rank)), model().eval()(images(rank)), rtol=1e-4, atol=1e-5
        )
    found = []
    for each in (torch_own, *others):
        try:
            found.append(each.train()(images(rank)))
        except ValueError as error:
            found.append(str(error))
    if isinstance(found[0], str):
        assert "GPU" in found[0]
        assert found[1:] == [found[0]] * 2
    else:
        whole = model()(torch.cat([images(each) for each in range(SIZE)]))[3 * rank : 3 * rank + 3]
        for each in found:
            torch.testing.assert_close(each, whole, rtol=1e-4, atol=1e-5)


def main() -> None:
    kind, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    seen = []
    observers.append(lambda kind, operands: seen.append(kind))
    if kind == "sync":
        synchronized(rank)
        dist.destroy_process_group()
        return
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
