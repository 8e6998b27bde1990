"""`fuse` within a limit on memory: what is kept and needed stays below it, results stay what they are."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import Tensor, nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.errors import InvalidArgument, JitdnnError, NotSupported  # noqa: E402
from jitdnn.frameworks.torch import program as programs  # noqa: E402
from jitdnn.frameworks.torch.choice import Decision  # noqa: E402
from jitdnn.frameworks.torch.fused_memory import Listing, Way  # noqa: E402
from jitdnn.frameworks.torch.memory_meter import MemoryMeter  # noqa: E402
from jitdnn.ops.kept_filter import KeptFilter  # noqa: E402
from jitdnn.planner.plan import Request  # noqa: E402
from torch_zoo import settled  # noqa: E402


class Block(nn.Module):
    """Two normalized convolutions, a residual and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.Conv2d(32, 32, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(32), nn.BatchNorm2d(32)])

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.one(x)))
        return nn.functional.max_pool2d(torch.relu(self.norms[1](self.two(y)) + x), 3, 2, 1)


def model() -> nn.Module:
    return settled(
        nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.SiLU(), Block(), nn.Flatten(), nn.Linear(1568, 40)
        )
    )


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 15, 15, generator=torch.Generator().manual_seed(count))


def agrees(fused: nn.Module, net: nn.Module, x: Tensor) -> None:
    wanted = copy.deepcopy(net).double()(x.double())
    got = fused(x)
    assert got.dtype == torch.float32
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def kept(fused: jt.FusedModule) -> int:
    """Bytes of the filters that are prepared now."""
    ((function, _),) = fused._functions.values()
    return sum(one.nbytes for one in function._shared.values() if isinstance(one, KeptFilter))


def test_footprints_stay_within_limits_and_results_are_the_model_s() -> None:
    net, x = model(), images()
    least = jt.fuse(net, measure="never", memory_limit="least").footprint(x)
    assert least.filters == 0
    whole = jt.fuse(net, measure="never").footprint(x)
    assert whole.filters > 0
    limits = [least.bytes, (least.bytes + whole.bytes) // 2, whole.bytes + (1 << 20), None]
    found = []
    for limit in limits:
        fused = jt.fuse(net, measure="never", memory_limit=limit)
        agrees(fused, net, x)
        footprint = fused.footprint(x)
        assert limit is None or footprint.bytes <= limit
        if limit is not None:
            assert kept(fused) == footprint.filters
        found.append(footprint)
    assert [one.filters > 0 for one in found] == [False, True, True, True]
    assert "of prepared filters" in str(found[0])


def test_too_small_a_limit_is_refused_with_what_would_do() -> None:
    net, x = model(), images()
    with pytest.raises(
        InvalidArgument, match=r"takes at least .*\((\d+) bytes\).*memory_limit is 1 KiB"
    ) as caught:
        jt.fuse(net, measure="never", memory_limit="1 KiB", example=(x,))
    needed = int(str(caught.value).split("(")[1].split(" bytes")[0])
    fused = jt.fuse(net, measure="never", memory_limit=needed)
    assert fused.footprint(x).bytes <= needed
    agrees(fused, net, x)
    with pytest.raises(InvalidArgument, match="takes at least"):
        jt.fuse(net, measure="never", memory_limit=needed)(images(64))  # each kind by itself
    agrees(fused, net, x)


@pytest.mark.parametrize("limit", ["much", -1, 1.5, b"1 MiB", [], "1 furlong"])
def test_what_is_no_limit_is_refused(limit: Any) -> None:
    with pytest.raises(JitdnnError, match=r"size|unit"):
        jt.fuse(model(), memory_limit=limit)


def test_weights_state_and_copies() -> None:
    net, x = model(), images()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    fused = jt.fuse(net, measure="never", memory_limit="least")
    agrees(fused, net, x)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        agrees(other, net, x)
        assert other.footprint(x).filters == 0
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.75)
    agrees(fused, net, x)
    net.train()
    with pytest.raises(NotSupported, match="training mode"):
        fused.footprint(x)
    net.eval()
    with pytest.raises(NotSupported, match="requires its gradient"):
        fused.footprint(x.clone().requires_grad_())


def test_results_of_torch_s_operators_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "decide", lambda *_: Decision(False, "of the test"))
    net, x = model(), images()
    fused = jt.fuse(net, measure="never", memory_limit="1 MiB")
    agrees(fused, net, x)
    footprint = fused.footprint(x)
    assert (footprint.filters, footprint.arena, footprint.workspace) == (0, 0, 0)
    with MemoryMeter() as meter:
        fused(x)
    assert 0 < meter.peak <= footprint.results
    with pytest.raises(InvalidArgument, match="takes at least"):
        jt.fuse(net, measure="never", memory_limit=footprint.bytes - 1)(x)


_WAYS = st.lists(
    st.tuples(st.integers(1, 100), st.integers(0, 50), st.booleans()).map(
        lambda t: Way(float(t[0]), t[1] + 1 if t[2] else 0, 0 if t[2] else t[1], Request())
    ),
    min_size=1,
    max_size=5,
)


@given(st.lists(_WAYS, min_size=1, max_size=6), st.integers(0, 300))
def test_a_budget_is_kept_and_no_slower_than_the_least(groups: list[list[Way]], room: int) -> None:
    least = Way(101.0, 0, 3, Request())  # every product runs without a kept filter
    listing = Listing({f"n{number}": [least, *own] for number, own in enumerate(groups)})

    def seconds(scratch: int, kept: dict[str, int]) -> float:
        return sum(
            min(w.seconds for w in own if w.kept <= kept[name] and (w.kept or w.scratch <= scratch))
            for name, own in listing.ways.items()
        )

    budget = listing.budget(room)
    assert budget.scratch + sum(budget.kept.values()) <= max(room, listing.least)
    nothing = dict.fromkeys(listing.ways, 0)
    assert seconds(budget.scratch, dict(budget.kept)) <= seconds(listing.least, nothing)
    rich = listing.budget(10**6)
    fastest = sum(min(way.seconds for way in own) for own in listing.ways.values())
    assert seconds(rich.scratch, dict(rich.kept)) == fastest
