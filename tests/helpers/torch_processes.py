"""What each of two processes does that train a converted model together (process_groups.py)."""

from __future__ import annotations

import contextlib
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
    """`convert_sync_batchnorm` makes torch's own layers, before `convert` or after it and converted again."""
    rank = group.rank
    synchronized = nn.SyncBatchNorm.convert_sync_batchnorm
    behind = synchronized(jt.convert(model(), measure="never"))
    assert type(behind[1]) is nn.SyncBatchNorm
    whole = model()(torch.cat([images(each) for each in range(group.size)]))[3 * rank : 3 * rank + 3]
    for ours in (jt.convert(synchronized(model()), measure="never"), jt.convert(behind, measure="never")):
        assert jt.is_converted(ours[1])
        torch.testing.assert_close(
            ours.eval()(images(rank)), model().eval()(images(rank)), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(ours.train()(images(rank)), whole, rtol=1e-4, atol=1e-5)
        # torch's own refuses processors
        assert type(jt.revert(ours)[1]) is nn.SyncBatchNorm
        assert type(ours) is nn.Sequential
        with contextlib.suppress(ValueError):
            torch.testing.assert_close(ours(images(rank)), whole, rtol=1e-4, atol=1e-5)


# ---- batch normalization of all processes


def _normalized(kind: Any, channels: int, **named: Any) -> nn.SyncBatchNorm:
    torch.manual_seed(1)
    layer = nn.SyncBatchNorm(channels, **named)
    with torch.no_grad():
        for one in (layer.weight, layer.bias, layer.running_mean):
            if one is not None:
                one.normal_()
    return layer.to(kind)


ACTIVATIONS = (
    None, nn.ReLU(inplace=True), nn.ReLU6(), nn.SiLU(), nn.LeakyReLU(0.2), nn.ELU(), nn.GELU(), nn.Mish(),
    nn.Hardswish(), nn.Tanh(), nn.Sigmoid(),
)  # fmt: skip


def sync_layers(group: Any) -> None:
    """Values, gradients and running statistics are those of one process with the whole batch in float64."""
    counts = (4, 1), (0, 5), (2, 2), (3, 6)
    shapes = (7,), (3, 5), (65, 2, 3), (4, 1, 3, 2)
    for number, behind in enumerate(ACTIVATIONS):
        dtype = (torch.float32, torch.float64)[number % 2]
        named = {"momentum": None} if number % 4 == 2 else {"affine": False} if number % 4 == 3 else {}
        place = number % len(shapes)
        _check_sync(group, counts[place], shapes[place], dtype, number % 3 > 0, behind, named, number)


def _check_sync(
    group: Any, rows: Any, shape: Any, dtype: Any, last: bool, behind: Any, named: Any, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn((sum(rows), *shape), generator=generator, dtype=torch.float64) * 3 + 100
    slope = torch.randn(whole.shape, generator=generator, dtype=torch.float64)
    begin = sum(rows[: group.rank])
    own = slice(begin, begin + rows[group.rank])
    layer = _normalized(dtype, shape[0], **named)
    exact = nn.BatchNorm3d(shape[0], **named).double()
    exact._check_input_dim = lambda input: None  # type: ignore[method-assign]
    exact.load_state_dict(layer.state_dict())
    layers = [layer] if behind is None else [layer, copy.deepcopy(behind)]
    ours = jt.convert(nn.Sequential(*layers))
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(whole.dim()) if last else None
    given = whole.to(dtype)
    wanted = given.double().clone().requires_grad_()
    x = given[own].clone(memory_format=form or torch.contiguous_format).requires_grad_()
    for _ in range(2):  # the average of all calls, too
        y = ours(x)
        expected = exact(wanted)
        expected = expected if behind is None else copy.deepcopy(behind)(expected)
    y.backward(slope[own].to(dtype))
    expected.backward(slope.to(dtype).double())
    near = {"rtol": 1e-10, "atol": 1e-9} if dtype is torch.float64 else {"rtol": 1e-4, "atol": 2e-4}
    near["check_dtype"] = False
    assert y.dtype is dtype
    assert y.stride() == torch.empty_like(x).stride()
    torch.testing.assert_close(y, expected[own], **near)
    torch.testing.assert_close(x.grad, wanted.grad[own], **near)
    for name, each in layer.named_parameters():
        total = each.grad.clone()  # of its own rows: whoever trains sums them
        dist.all_reduce(total)
        torch.testing.assert_close(total, exact.get_parameter(name).grad, **near)
    torch.testing.assert_close(dict(layer.named_buffers()), dict(exact.named_buffers()), **near)


def sync_exchanges(group: Any) -> None:
    """One exchange forward and one backward, none in evaluation, and none for an input that wants no gradient."""
    model = jt.convert(nn.Sequential(_normalized(torch.float32, 3), nn.ReLU()))
    x = images(group.rank)[:, :1].expand(-1, 3, -1, -1).contiguous()
    calls: list[str] = []
    kept = {name: getattr(dist, name) for name in ("all_reduce", "all_gather")}
    for name, function in kept.items():
        setattr(
            dist, name, lambda *args, _n=name, _f=function, **named: (calls.append(_n), _f(*args, **named))[1]
        )
    try:
        model(x.clone().requires_grad_()).sum().backward()
        assert calls == ["all_gather", "all_reduce"]
        model(x).sum().backward()
        assert calls[2:] == ["all_gather"]
        model.eval()
        torch.testing.assert_close(model(x), jt.revert(copy.deepcopy(model))(x))
        assert len(calls) == 3
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


def sync_steps(group: Any) -> None:
    """20 steps of DDP with SyncBatchNorm are those of one process with the images of all and ordinary BatchNorm."""
    torch.manual_seed(0)
    blocks = (
        nn.Sequential(nn.Conv2d(c, k, 3, stride, bias=False), nn.BatchNorm2d(k), behind)
        for c, k, stride, behind in ((2, 6, 1, nn.ReLU6(inplace=True)), (6, 8, 2, nn.SiLU()))
    )
    plain = nn.Sequential(*blocks, nn.Flatten(), nn.BatchNorm1d(72), nn.Linear(72, 4)).double()
    x = torch.cat([images(rank).double().repeat(1, 1, 2, 2)[:, :, :9, :9] for rank in range(group.size)])
    labels = torch.arange(len(x)) % 4
    own = slice(3 * group.rank, 3 * group.rank + 3)
    ours = jt.convert(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain)), measure="never")
    assert [jt.is_converted(one) for one in (*ours, ours[0][1], ours[3])] == [
        True,
        True,
        False,
        True,
        True,
        True,
        True,
    ]
    wrapped = nn.parallel.DistributedDataParallel(ours)
    for model, given, wanted in ((plain, x, labels), (wrapped, x[own], labels[own])):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(given), wanted).backward()
            optimizer.step()
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=1e-8, atol=1e-9)
