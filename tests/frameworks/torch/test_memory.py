"""Models under a limit on memory give, bit by bit, what they give without one, and stay within it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from torch import Tensor, nn  # noqa: E402

import jitdnn.torch  # noqa: E402
from jitdnn.errors import InvalidArgument, InvalidType  # noqa: E402
from jitdnn.frameworks.torch.memory_meter import MemoryMeter  # noqa: E402


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, input: Tensor) -> Tensor:
        return torch.relu(input + self.conv2(torch.relu(self.norm1(self.conv1(input)))))


def resnet() -> nn.Sequential:
    """In place, views, nested chains, random numbers, running statistics with and without momentum."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Sequential(Block(8), Block(8), nn.Sequential(nn.Dropout2d(0.3), Block(8))),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(8, momentum=None),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.Hardswish(),
        nn.InstanceNorm2d(16, affine=True, track_running_stats=True),
        nn.Dropout(0.5, inplace=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(256, 32)),
        nn.ReLU(),
        nn.Linear(32, 5),
    )


def images() -> Tensor:
    return torch.randn(4, 3, 20, 20, generator=torch.Generator().manual_seed(2))


LABELS = torch.tensor([0, 3, 1, 4])


def loss_of(output: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, LABELS)


def train(
    model: nn.Module, *inputs: Any, passes: int = 2, loss: Callable[..., Any] = loss_of
) -> dict[str, Any]:
    """Everything that training leaves: losses, gradients, buffers, the state of the random numbers."""
    torch.manual_seed(3)
    found: dict[str, Any] = {}
    for number in range(passes):
        value = loss(model(*inputs))
        value.backward()
        found[f"loss {number}"] = value.detach()
    found |= {f"gradient {name}": p.grad.clone() for name, p in model.named_parameters()}
    found |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    found["random"] = torch.get_rng_state()
    model.zero_grad()
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


def measured(model: nn.Module, *inputs: Any, loss: Callable[..., Any] = loss_of) -> int:
    """The peak of the second pass, whose gradients are added to those of the first."""
    with MemoryMeter() as meter:
        loss(model(*inputs)).backward()
        meter.peak = 0
        loss(model(*inputs)).backward()
    model.zero_grad()
    return meter.peak


def limits(model: nn.Module, *inputs: Any, **options: Any) -> list[int]:
    """From what is needed without a limit to the least."""
    most = jitdnn.torch.limit_memory(model, *inputs, memory_limit=None, **options).peak
    fewest = jitdnn.torch.limit_memory(model, *inputs, memory_limit="least", **options).peak
    assert fewest < 0.8 * most
    return [most, most - 1, (most + fewest) // 2, fewest]


def test_results_are_those_without_a_limit_and_memory_stays_within_it() -> None:
    plain = resnet()
    peaks = [measured(copy.deepcopy(plain), images())]
    expected = train(copy.deepcopy(plain), images())
    keys = list(plain.state_dict())
    for limit in limits(copy.deepcopy(plain), images(), loss=loss_of):
        model = copy.deepcopy(plain)
        plan = jitdnn.torch.limit_memory(model, images(), memory_limit=limit, loss=loss_of)
        assert plan.peak <= limit
        assert_same(train(model, images()), expected)
        model.load_state_dict(plain.state_dict())
        peaks.append(measured(model, images()))
        assert peaks[-1] <= limit
        assert list(model.state_dict()) == keys
    assert peaks[0] == peaks[1], "a limit that needs nothing changes nothing"
    assert peaks[-1] < 0.8 * peaks[0]
    assert peaks == sorted(peaks, reverse=True)


def test_the_plan_says_what_is_measured() -> None:
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Conv2d(4, 4, 3, padding=1), nn.Tanh())))
    data = torch.randn(8, 4, 32, 32)

    def loss(output: Tensor) -> Tensor:
        return output.square().mean()

    for limit in limits(model, data, loss=loss):
        plan = jitdnn.torch.limit_memory(model, data, memory_limit=limit, loss=loss)
        assert 0.75 * plan.peak < measured(model, data, loss=loss) <= plan.peak
        assert "again" in plan.explain()
        assert plan.seconds_lost >= 0


class Wide(nn.Module):
    """It takes far more while it runs than it leaves, and saves nothing."""

    def forward(self, input: Tensor) -> Tensor:
        wide = torch.cat([input] * 4, 1)[:, : input.shape[1]]
        return wide + nn.functional.interpolate(input, scale_factor=2)[..., ::2, ::2]


def chain_of(seed: int) -> nn.Sequential:
    random = Random(seed)
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.Conv2d(4, 4, 3, padding=1), lambda: nn.BatchNorm2d(4), nn.ReLU, nn.Sigmoid,
        Wide, lambda: Block(4), lambda: nn.AvgPool2d(3, 1, 1), lambda: nn.Dropout(0.3), nn.Identity,
    ]  # fmt: skip
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 1), *(random.choice(kinds)() for _ in range(random.randint(2, 12))))


@pytest.mark.parametrize("seed", range(12))
def test_random_chains(seed: int) -> None:
    plain = nn.Sequential(*chain_of(seed), Wide(), nn.ReLU(inplace=True)) if seed % 3 == 0 else chain_of(seed)

    def loss(output: Tensor) -> Tensor:
        return output.square().mean()

    expected = train(copy.deepcopy(plain), images(), loss=loss)
    most = jitdnn.torch.limit_memory(copy.deepcopy(plain), images(), memory_limit=None, loss=loss).peak
    for limit in ("least", None, most - 1000):
        model = copy.deepcopy(plain)
        try:
            plan = jitdnn.torch.limit_memory(model, images(), memory_limit=limit, loss=loss)
        except InvalidArgument:
            continue  # nothing can be saved
        assert_same(train(model, images(), loss=loss), expected)
        assert measured(model, images(), loss=loss) <= plan.peak


def test_the_last_result_is_made_again_beside_the_one_that_the_caller_has() -> None:
    model = nn.Sequential(nn.PixelShuffle(2), nn.Conv2d(1, 4, 3, 2, 1), Wide(), nn.ReLU(inplace=True))
    data = torch.randn(2, 4, 16, 16)

    def loss(output: Tensor) -> Tensor:
        return output.square().mean()

    most = jitdnn.torch.limit_memory(model, data, memory_limit=None, loss=loss).peak
    for limit in ("least", most - 1, most - 3000):
        plan = jitdnn.torch.limit_memory(model, data, memory_limit=limit, loss=loss)
        assert measured(model, data, loss=loss) <= plan.peak


def test_profiling_leaves_no_trace() -> None:
    model = resnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = images()
    kept = data.clone()
    random = torch.get_rng_state()
    jitdnn.torch.limit_memory(model, data, memory_limit="least", loss=loss_of)
    assert torch.equal(torch.get_rng_state(), random)
    assert_same(dict(model.state_dict()), before)
    assert torch.equal(data, kept)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("limit", ["1 kB", 0, 1000])
def test_too_small_a_limit_is_refused_with_what_would_do(limit: Any) -> None:
    model = resnet()
    with pytest.raises(InvalidArgument, match=r"needs at least (\d+) bytes") as raised:
        jitdnn.torch.limit_memory(model, images(), memory_limit=limit, loss=loss_of)
    assert type(model) is nn.Sequential
    enough = int(str(raised.value).split("needs at least ")[1].split()[0])
    assert jitdnn.torch.limit_memory(model, images(), memory_limit=enough, loss=loss_of).peak <= enough


def test_unlimit_brings_the_model_back() -> None:
    model = resnet()
    attributes = set(model.__dict__)
    jitdnn.torch.limit_memory(model, images(), memory_limit="least")
    assert type(model) is not nn.Sequential
    assert jitdnn.torch.unlimit_memory(model) is model
    assert type(model) is nn.Sequential
    assert set(model.__dict__) == attributes
    jitdnn.torch.unlimit_memory(model)


def test_copies_and_pickles_are_limited_too() -> None:
    model = resnet()
    expected = train(copy.deepcopy(model), images())
    plan = jitdnn.torch.limit_memory(model, images(), memory_limit="least", loss=loss_of)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 4, 3))
    jitdnn.torch.limit_memory(plain, images(), memory_limit="least")
    for limited in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert limited.__dict__["_jitdnn_memory"] == plain.__dict__["_jitdnn_memory"]
        assert measured(limited, images(), loss=torch.sum) == measured(plain, images(), loss=torch.sum)
    stream = io.BytesIO()
    torch.save(plain, stream)
    stream.seek(0)
    assert type(torch.load(stream, weights_only=False)) is type(plain)
    twin = copy.deepcopy(model)  # spectral_norm refuses to be pickled
    assert_same(train(twin, images()), expected)
    assert measured(twin, images()) <= plan.peak


def test_evaluation_and_passes_without_gradients() -> None:
    plain = resnet()
    train(plain, images())
    model = copy.deepcopy(plain)
    jitdnn.torch.limit_memory(model, images(), memory_limit="least", loss=loss_of)
    for mode in (plain.eval(), plain):
        model.train(mode.training)
        assert_same(train(model, images()), train(plain, images()))
    model.eval(), plain.eval()
    with torch.no_grad():
        assert torch.equal(model(images()), plain(images()))
    with torch.inference_mode():
        assert torch.equal(model(images()), plain(images()))
    model.train(), plain.train()
    with torch.no_grad():
        torch.manual_seed(4)
        expected = plain(images())
        torch.manual_seed(4)
        assert torch.equal(model(images()), expected)
    assert_same(dict(model.state_dict()), dict(plain.state_dict()))


def test_a_second_backward_pass_runs_again_too() -> None:
    plain = resnet()
    model = copy.deepcopy(plain)
    jitdnn.torch.limit_memory(model, images(), memory_limit="least", loss=loss_of)
    for one in (plain, model):
        torch.manual_seed(5)
        value = loss_of(one(images()))
        value.backward(retain_graph=True)
        value.backward()
    assert all(
        torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), model.parameters(), strict=True)
    )
    assert_same(dict(model.state_dict()), dict(plain.state_dict()))


def test_a_converted_model() -> None:
    plain = jitdnn.torch.convert(resnet(), measure="never")
    model = copy.deepcopy(plain)
    limit = limits(model, images(), loss=loss_of)[2]
    jitdnn.torch.limit_memory(model, images(), memory_limit=limit, loss=loss_of)
    state = copy.deepcopy(plain.state_dict())
    train(
        plain, images()
    )  # the first calls of a kind choose kernels, and update running statistics by other ones
    plain.load_state_dict(state)
    assert_same(train(model, images()), train(plain, images()))
    assert measured(model, images()) <= limit
    jitdnn.torch.revert(model)
    assert any(type(module) is nn.Conv2d for module in model.modules())


class Transformer(nn.Module):
    """A list of modules that a loop runs, each with a mask, between others."""

    def __init__(self, order: Any = None, **names: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.2) for _ in range(6)
        )
        self.head = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 5))
        self.order = order

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        value = self.embedding(words)
        for layer in self.layers if self.order is None else [self.layers[i] for i in self.order]:
            value = layer(value, src_mask=mask)
        return self.head(value.mean(1))


def words() -> Tensor:
    return torch.randint(20, (4, 24), generator=torch.Generator().manual_seed(2))


def test_a_chain_inside_of_a_model() -> None:
    plain = Transformer()
    without = measured(plain, words())
    expected = train(copy.deepcopy(plain), words())
    peaks = []
    for limit in limits(copy.deepcopy(plain), words(), chain="layers"):
        model = copy.deepcopy(plain)
        plan = jitdnn.torch.limit_memory(model, words(), memory_limit=limit, chain="layers")
        assert_same(train(model, words()), expected)
        peaks.append(measured(model, words()))
        assert len(model.layers) == 6
        assert list(model.state_dict()) == list(plain.state_dict())
        assert plan.chain.gradients[0].bytes, "what is before the chain needs gradients"
    assert peaks[0] == without
    assert peaks[-1] < 0.6 * without
    # another chain of the same model
    jitdnn.torch.limit_memory(model, words(), memory_limit="least", chain="head")
    assert_same(train(model, words()), expected)
    jitdnn.torch.unlimit_memory(model)
    assert measured(model, words()) == without


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [0, 2, 1, 3, 4, 5], [0, 1, 2, 3, 4, 5, 5]])
def test_what_is_no_chain_is_refused(order: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="is no part of a chain"):
        jitdnn.torch.limit_memory(Transformer(order), words(), memory_limit="least", chain="layers")


def test_wrong_arguments() -> None:
    model = resnet()
    with pytest.raises(InvalidType, match=r"must be a torch.nn.Module"):
        jitdnn.torch.limit_memory([model], images(), memory_limit="least")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"must be a torch.nn.Module"):
        jitdnn.torch.unlimit_memory(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"is a torch.nn.ModuleList: name it by chain"):
        jitdnn.torch.limit_memory(nn.ModuleList([nn.Linear(3, 3)]), torch.zeros(3), memory_limit="least")
    with pytest.raises(InvalidArgument, match="no such module"):
        jitdnn.torch.limit_memory(model, images(), memory_limit="least", chain="features")
    with pytest.raises(InvalidArgument, match="has no modules"):
        jitdnn.torch.limit_memory(nn.Sequential(), images(), memory_limit="least")
    with pytest.raises(InvalidArgument, match="takes 1 input"):
        jitdnn.torch.limit_memory(model, images(), images(), memory_limit="least")


def test_a_chain_that_changed_is_refused() -> None:
    model = resnet()
    jitdnn.torch.limit_memory(model, images(), memory_limit="least")
    model.append(nn.ReLU())
    with pytest.raises(InvalidArgument, match="have changed since limit_memory"):
        model(images())
    with torch.no_grad():
        model(images())
    assert type(model[:3](images())) is Tensor, "a part of it runs plainly"
    jitdnn.torch.limit_memory(model, images(), memory_limit="least")
    model(images())


def test_frozen_modules_and_an_input_that_the_first_changes() -> None:
    plain = resnet()
    plain[0].requires_grad_(False)
    plain[1].eval()
    model = nn.Sequential(nn.Hardswish(inplace=True), *plain)
    expected = None
    for limit in (None, "least"):
        twin = copy.deepcopy(model)
        jitdnn.torch.limit_memory(twin, images(), memory_limit=limit, loss=loss_of)
        torch.manual_seed(3)
        loss_of(twin(images())).backward()
        found = {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}
        assert "1.weight" not in found
        assert "2.weight" in found
        expected = expected or found
        assert_same(found, expected)


def test_torch_compile() -> None:
    plain = nn.Sequential(
        *(part for _ in range(4) for part in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh()))
    )
    model = copy.deepcopy(plain)
    jitdnn.torch.limit_memory(model, images(), memory_limit="least")
    compiled = torch.compile(model, backend="aot_eager")
    expected, found = train(plain, images(), loss=torch.sum), train(compiled, images(), loss=torch.sum)
    for (name, one), other in zip(expected.items(), found.values(), strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=1e-4, atol=1e-4), name
