"""`memory_limit` given to `convert`: planned for an example or at the first step, kept, or refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from torch import Tensor, nn  # noqa: E402

import jitdnn.torch as jt  # noqa: E402
from jitdnn.errors import InvalidArgument, InvalidType, NotSupported  # noqa: E402
from jitdnn.frameworks.torch.memory_meter import MemoryMeter  # noqa: E402


def chain() -> nn.Sequential:
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU()) for _ in range(5)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.Flatten(), nn.Linear(8 * 14 * 14, 5))


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = chain()

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return scale * self.features(x)


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model(x).square().mean().backward()
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    return found


def peak(model: nn.Module, x: Tensor) -> int:
    gradients(model, x)
    with MemoryMeter() as meter:
        gradients(model, x)
    return meter.peak


def first_step(model: nn.Module) -> int:
    """The peak of the very first step, without that of planning it."""
    with MemoryMeter() as meter:
        model.register_forward_pre_hook(lambda *_: setattr(meter, "peak", 0))  # behind the hook that plans
        model(images()).square().mean().backward()
    return meter.peak


def limits(count: int = 4) -> tuple[int, int]:
    """What a step takes without a limit, and something that needs modules to run again."""
    model = jt.convert(chain(), measure="never")
    most = jt.limit_memory(model, images(count), memory_limit=None).peak
    return most, (most + jt.limit_memory(model, images(count), memory_limit="least").peak) // 2


@pytest.mark.parametrize("has_example", [True, False])
def test_the_step_stays_within_the_limit(has_example: bool) -> None:
    _, limit = limits()
    plain = jt.convert(chain(), measure="never")
    model = jt.convert(
        chain(), measure="never", memory_limit=limit, example=(images(),) if has_example else None
    )
    assert first_step(copy.deepcopy(model)) <= limit
    for _ in range(2):
        for one, other in zip(gradients(model, images()), gradients(plain, images()), strict=True):
            assert torch.equal(one, other)
    assert peak(plain, images()) > limit
    assert peak(model, images()) <= limit
    assert list(model.state_dict()) == list(plain.state_dict())


def test_larger_inputs_are_planned_again_and_smaller_ones_are_not() -> None:
    _, limit = limits(8)
    model = jt.convert(chain(), measure="never", memory_limit=limit)
    assert peak(model, images(2)) <= limit
    assert peak(model, images(8)) <= limit
    before = model.__dict__["_jitdnn_memory"]
    gradients(model, images(4))
    assert model.__dict__["_jitdnn_memory"] is before


def test_copies_and_pickles_plan_for_themselves() -> None:
    _, limit = limits()
    model = jt.convert(chain(), measure="never", memory_limit=limit)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert peak(other, images()) <= limit
        assert type(jt.revert(other)) is nn.Sequential
        assert not other._forward_pre_hooks
    assert not model.__dict__["_jitdnn_memory"].segments  # of the one that made no step


def test_evaluation_plans_nothing() -> None:
    model = jt.convert(chain(), measure="never", memory_limit="1 MiB").eval()
    model(images())
    with torch.no_grad():
        model.train()(images())
    assert not model.__dict__["_jitdnn_memory"].segments


def test_a_chain_inside_of_a_model() -> None:
    _, limit = limits()
    model = jt.convert(Wrapped(), measure="never", memory_limit=limit, chain="features")
    gradients(model, images())
    assert type(model.features).__name__ == "LimitedSequential"
    with pytest.raises(InvalidArgument, match=r"'scale'.* by name"):
        model(torch.cat([images(), images()]), scale=2.0)
    jt.convert(model, memory_limit=None)
    assert type(model.features) is nn.Sequential
    model(torch.cat([images(), images()]), scale=2.0)


def test_revert_leaves_a_limit_that_is_not_of_convert() -> None:
    model = jt.convert(chain(), measure="never")
    jt.limit_memory(model, images(), memory_limit=None)
    assert type(jt.revert(model)).__name__ == "LimitedSequential"


def test_a_compiled_model_is_planned_before() -> None:
    _, limit = limits()
    model = jt.convert(chain(), measure="never", memory_limit=limit, example=(images(),))
    expected = gradients(model, images())
    compiled = torch.compile(model, backend="aot_eager")
    for one, other in zip(gradients(compiled, images()), expected, strict=True):
        torch.testing.assert_close(one, other)
    late = jt.convert(chain(), measure="never", memory_limit=limit)
    for one, other in zip(
        gradients(torch.compile(late, backend="aot_eager"), images()), expected, strict=True
    ):
        torch.testing.assert_close(one, other)
    assert late.__dict__["_jitdnn_memory"].segments


def test_too_small_a_limit_is_refused_with_what_would_do() -> None:
    with pytest.raises(InvalidArgument, match=r"needs at least \d+ bytes"):
        jt.convert(chain(), measure="never", memory_limit="1 KiB", example=(images(),))
    late = jt.convert(chain(), measure="never", memory_limit="1 KiB")
    with pytest.raises(InvalidArgument, match=r"needs at least \d+ bytes"):
        late(images())


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"memory_limit": "much"}, InvalidArgument, "much"),
        ({"memory_limit": "1 MiB", "example": images()}, InvalidType, "tuple"),
        ({"memory_limit": "1 MiB", "loss": 3}, InvalidType, "function"),
        ({"memory_limit": "1 MiB", "chain": "nothing"}, InvalidArgument, "no such module"),
        ({"example": (images(),)}, InvalidArgument, "for memory_limit"),
        ({"chain": "features"}, InvalidArgument, "for memory_limit"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        jt.convert(Wrapped(), **given)


class Fickle(Wrapped):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x, scale) if x.sum() > 0 else x


def test_a_model_whose_graph_cannot_be_traced_is_told_which_chains_are_inside() -> None:
    with pytest.raises(InvalidArgument, match=r"features \(8 modules\)"):
        jt.convert(Fickle(), memory_limit="1 MiB", example=(images(),))


def test_calls_have_no_step_to_bound() -> None:
    for refused in (
        lambda: jt.use(memory_limit="1 MiB"),
        lambda: jt.install(memory_limit="1 MiB"),
    ):
        with pytest.raises(NotSupported, match="convert"):
            refused()
