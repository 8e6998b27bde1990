"""What each of two processes does that train a converted model together (process_groups.py)."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import jitdnn.torch as jt
from jitdnn.frameworks.torch.kinds import observers
from torch_zoo import SMALL, settled


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), nn.Linear(64, 3))


def images(rank: int) -> torch.Tensor:
    return torch.randn((3, 2, 6, 6), generator=torch.Generator().manual_seed(rank))


def expected(size: int) -> list[torch.Tensor]:
    """The gradients of one process that has the others' images too: the mean over all, by torch."""
    grads = []
    for rank in range(size):
        one = model()
        one(images(rank)).square().mean().backward()
        grads.append([parameter.grad for parameter in one.parameters()])
    return [sum(each) / size for each in zip(*grads, strict=True)]


def ddp(group: Any) -> None:
    _check(group, nn.parallel.DistributedDataParallel)


def fsdp(group: Any) -> None:
    _check(group, _sharded)


def _sharded(model: nn.Module) -> Any:
    """FSDP2: the layers of a model by themselves, and what is left."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for child in model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def ddp_steps(group: Any) -> None:
    _check_steps(group, nn.parallel.DistributedDataParallel)


def fsdp_steps(group: Any) -> None:
    _check_steps(group, _sharded)


def _check_steps(group: Any, wrap: Any) -> None:
    """20 steps of a small ResNet, in double precision, where nothing that rounding decides grows: its losses, weights
    and statistics are those of stock's under the same wrapping."""
    torch.manual_seed(0)
    plain = settled(SMALL["resnet18"]()).double().train()
    generator = torch.Generator().manual_seed(group.rank)
    x = torch.randn((4, 3, 32, 32), generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 10, (4,), generator=generator)
    losses, states = [], []
    for model in (copy.deepcopy(plain), jt.convert(copy.deepcopy(plain), measure="never")):
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
        taken = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(wrapped(x), labels)
            loss.backward()
            optimizer.step()
            taken.append(loss.detach())
        losses.append(torch.stack(taken))
        states.append({name: _whole(each.detach()) for name, each in model.state_dict().items()})
    assert losses[0][-1] < losses[0][0] / 2  # it learns: weights have moved
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(states[1], states[0], rtol=1e-8, atol=1e-9)


def _whole(tensor: Any) -> Any:
    """All of a tensor of which each process has a part."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _check(group: Any, wrap: Any) -> None:
    seen: list[Any] = []

    def observe(kind: Any, operands: Any) -> None:
        seen.append(kind)

    ours = jt.convert(model(), measure="never")
    observers.append(observe)
    try:
        wrapped = wrap(ours)  # what reduces gradients lives as long as this
        wrapped(images(group.rank)).square().mean().backward()
    finally:
        observers.remove(observe)
    found = [_whole(parameter.grad) for parameter in ours.parameters()]
    torch.testing.assert_close(found, expected(group.size), rtol=1e-4, atol=1e-5)
    assert seen
    assert all(kind.decision.is_ours for kind in seen)


def sync(group: Any) -> None:
    """Torch's SyncBatchNorm stays torch's, whichever comes first: the statistics of all, or its own refusal."""
    rank = group.rank
    synchronized = nn.SyncBatchNorm.convert_sync_batchnorm
    torch_own = synchronized(model())
    others = [
        synchronized(jt.convert(model(), measure="never")), jt.convert(synchronized(model()), measure="never"),
    ]  # fmt: skip
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
        whole = model()(torch.cat([images(each) for each in range(group.size)]))[3 * rank : 3 * rank + 3]
        for each in found:
            torch.testing.assert_close(each, whole, rtol=1e-4, atol=1e-5)
