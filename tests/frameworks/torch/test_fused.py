"""`fuse`: results of the model itself, in every layout, type and kind of input; what it refuses, and says why."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

from jitdnn.errors import InvalidArgument, InvalidType, NotSupported  # noqa: E402
from jitdnn.frameworks.torch import writer  # noqa: E402
from jitdnn.frameworks.torch.fused import FusedModule, fuse  # noqa: E402
from torch_zoo import SMALL, settled  # noqa: E402


def ours(model: nn.Module, **options: Any) -> FusedModule:
    return fuse(model.eval(), **{"measure": "never", **options})


def program(fused: FusedModule) -> Any:
    """The program of the last kind of inputs."""
    (function, _), *_ = fused._functions.values()
    return list(function._programs.young.values())[-1].program


def agrees(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    assert got.shape == wanted.shape
    assert got.stride() == wanted.stride()
    assert got.dtype == wanted.dtype
    scale = max(1e-3, wanted.double().abs().max().item())
    assert (got.double() - wanted.double()).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("name", SMALL)
def test_networks(name: str) -> None:
    model = settled(SMALL[name]())
    fused = ours(model)
    x = torch.randn(3, 3, 32, 32)
    agrees(fused(x), model(x))
    assert not any("convolution" in line for line in program(fused).text.splitlines())
    x = torch.randn(3, 3, 32, 32)  # other values, the same program
    agrees(fused(x), model(x))


def test_a_batch_of_another_size_is_another_program() -> None:
    model = settled(SMALL["resnet18"]())
    fused = ours(model)
    for batch in (1, 3, 1):
        x = torch.randn(batch, 3, 32, 32)
        agrees(fused(x), model(x))


def test_an_input_with_its_channels_last_and_one_that_is_a_view() -> None:
    model = settled(SMALL["mobilenet_v2"]())
    fused = ours(model)
    x = torch.randn(1, 3, 32, 32).to(memory_format=torch.channels_last)
    agrees(fused(x), model(x))
    x = torch.randn(1, 6, 32, 64)[:, ::2, :, ::2]
    agrees(fused(x), model(x))


def test_measured_programs_agree() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 4, 1), nn.Flatten()
    )
    fused = fuse(settled(model))
    x = torch.randn(2, 3, 8, 8)
    agrees(fused(x), model(x))
    assert all(decision.ratio is not None for _, decision in program(fused).decisions)


@pytest.mark.parametrize("is_last", [True, False])
def test_where_torch_is_chosen_its_operators_run(monkeypatch: pytest.MonkeyPatch, is_last: bool) -> None:
    from jitdnn.frameworks.torch import fused as module
    from jitdnn.frameworks.torch import program as programs
    from jitdnn.frameworks.torch.choice import Decision

    monkeypatch.setattr(programs, "decide", lambda *_: Decision(False, "of the test"))
    monkeypatch.setattr(module, "decide", lambda *_: Decision(is_last, "of the test"))
    for name in SMALL:
        model = settled(SMALL[name]())
        x = torch.randn(2, 3, 32, 32)
        agrees(fuse(model)(x), model(x))


_ACTIVATIONS = [
    nn.ReLU(inplace=True), nn.ReLU6(), nn.Hardtanh(-0.5, 0.25), nn.LeakyReLU(0.2), nn.SiLU(inplace=True),
    nn.Hardswish(), nn.Hardsigmoid(), nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.GELU(approximate="tanh"), nn.ELU(0.7),
    nn.Mish(), nn.Softplus(),
]  # fmt: skip


@pytest.mark.parametrize("layer", ["conv", "linear"])
def test_activations(layer: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 3, 1) if layer == "conv" else nn.Linear(2, 3)

        def forward(self, x: Any) -> Any:
            return [act(self.layer(x).clone()) for act in _ACTIVATIONS]

    model = Model()
    x = 8 * torch.randn(1, 2, 4, 4) if layer == "conv" else 8 * torch.randn(5, 2)
    for got, wanted in zip(ours(model)(x), model(x), strict=True):
        agrees(got, wanted)


class Arithmetic(nn.Module):
    """Operands of every kind in the tails of a convolution and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x: Any, gate: Any, *, shift: float) -> dict[str, Any]:
        y = self.conv(x) * self.scale - x
        y = torch.clamp(2.0 / (1.5 + y.abs()) + shift, max=3.0) * gate
        z = self.linear(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        z = self.scale * z + y
        return {"y": y, "z": (z, 3), "same": x}


def test_operands_of_tails_and_structures_of_results() -> None:
    model = Arithmetic()
    fused = ours(model)
    x, gate = torch.randn(2, 4, 5, 5), torch.rand(2, 4, 1, 1)
    for shift in (0.5, -0.5):
        got, wanted = fused(x, gate, shift=shift), model(x, gate, shift=shift)
        assert got.keys() == wanted.keys()
        assert got["z"][1] == 3
        agrees(got["y"], wanted["y"])
        agrees(got["z"][0], wanted["z"][0])
    kernels = [name for name, decision in program(fused).decisions if decision.is_ours]
    assert len(kernels) == 2, "one kernel for each of the convolution and the product"


def test_a_swish_that_is_written_out() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3)

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            return y * torch.sigmoid(y)

    model = Model()
    fused = ours(model)
    x = torch.randn(1, 2, 6, 6)
    agrees(fused(x), model(x))
    assert len(program(fused).decisions) == 1


def test_a_result_that_is_read_twice_and_shared_weights() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(2, 2, 3, padding=1)
            self.two = nn.Conv2d(2, 2, 3, padding=1)
            self.two.weight = self.one.weight

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.one(x))
            return self.two(y) + y, y.mean((2, 3)), self.one(torch.nn.functional.max_pool2d(y, 2)), y[:, 1:]

    model = Model()
    x = torch.randn(1, 2, 6, 6)
    for got, wanted in zip(ours(model)(x), model(x), strict=True):
        agrees(got, wanted)


def test_other_convolutions_and_operators_stay_torchs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.line = nn.ConvTranspose2d(2, 2, 2, 2), nn.Conv1d(2, 3, 3)
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Any) -> Any:
            y = self.up(x).flatten(2)
            a, b = self.norm(self.line(y)).chunk(2, 2)
            return torch.cat([a, b.flip(2)], 2).cumsum(2), a.argmax(2), torch.softmax(b, 1)

    model = settled(Model())
    x = torch.randn(2, 2, 4, 4)
    got, wanted = ours(model)(x), model(x)
    agrees(got[0], wanted[0])
    assert torch.equal(got[1], wanted[1])
    agrees(got[2], wanted[2])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 3e-2)])
def test_types(dtype: Any, tolerance: float) -> None:
    model = settled(SMALL["resnet18"]()).to(dtype)
    x = torch.randn(1, 3, 32, 32, dtype=dtype)
    agrees(ours(model)(x), model(x), tolerance)


def test_weights_that_change_are_prepared_again() -> None:
    model = settled(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()))
    fused = ours(model)
    x = torch.randn(1, 2, 5, 5)
    agrees(fused(x), model(x))
    before = program(fused)
    fused(x)
    assert program(fused) is before
    with torch.no_grad():
        model[0].weight.mul_(2.0)
        model[1].running_mean.add_(1.0)
    agrees(fused(x), model(x))
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))
    agrees(fused(x), model(x))
    model.load_state_dict({name: torch.rand_like(held.float()) for name, held in model.state_dict().items()})
    agrees(fused(x), model(x))
    model.double()
    agrees(fused(x.double()), model(x.double()))


def test_results_are_not_overwritten_by_later_calls_and_inputs_are_not_written() -> None:
    model = settled(SMALL["resnet18"]())
    fused = ours(model)
    x = torch.randn(1, 3, 32, 32)
    first, kept = fused(x), x.clone()
    copied = first.clone()
    fused(torch.randn(1, 3, 32, 32))
    assert torch.equal(first, copied)
    assert torch.equal(x, kept)


def test_nan_goes_where_it_goes_in_torch() -> None:
    model = settled(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU6(), nn.MaxPool2d(2), nn.Hardswish())
    )
    x = torch.randn(1, 1, 10, 10)
    x[0, 0, 4, 4] = torch.nan
    fused = ours(model)
    fused(torch.randn(1, 1, 10, 10))
    assert torch.equal(fused(x).isnan(), model(x).isnan())


def test_an_input_that_requires_its_gradient_runs_the_model() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3))
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    y = ours(model)(x)
    y.sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        assert not ours(model)(x).requires_grad


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_transforms_and_derivatives_taken_forward_run_the_model() -> None:
    model = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
        .eval()
        .requires_grad_(False)
    )
    fused, x, tangent = ours(model), torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5)
    agrees(fused(x), model(x))
    for take in (
        lambda one: torch.func.vmap(one)(torch.stack([x, tangent])),
        lambda one: torch.func.jvp(one, (x,), (tangent,))[1],
        lambda one: torch.func.jacfwd(one)(x[:1]),
        lambda one: torch.func.jacrev(one)(x[:1]),
    ):
        agrees(take(fused), take(model))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        agrees(forward_ad.unpack_dual(fused(dual)).tangent, forward_ad.unpack_dual(model(dual)).tangent)
    agrees(fused(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_torch_compile_leaves_fused_calls_fused() -> None:
    """Dynamo asks for transforms, too, and breaks the graph at the call."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval().requires_grad_(False)
    fused, x = ours(model), torch.randn(2, 3, 5, 5)
    run = torch.compile(lambda x: fused(x) + 1, backend="eager")
    try:
        agrees(run(x), model(x) + 1)
        assert len(fused._functions) == 1
        agrees(torch.func.vmap(run)(torch.stack([x, -x])), torch.stack([model(x), model(-x)]) + 1)
    finally:
        torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_and_sparse_inputs_run_the_model() -> None:
    model = nn.Linear(4, 4).eval()
    fused, parts = ours(model), [torch.randn(2, 4), torch.randn(3, 4)]
    with torch.no_grad():
        for layout in (torch.jagged, torch.strided):
            x = torch.nested.nested_tensor(parts, layout=layout)
            for got, wanted in zip(fused(x).unbind(), model(x).unbind(), strict=True):
                assert torch.equal(got, wanted)
        x = torch.randn(4, 4).to_sparse()
        assert torch.equal(fused(x), model(x))


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITDNN_DISABLE", "1")
    model = nn.Sequential(nn.Conv2d(1, 1, 3)).eval()
    fused = ours(model)
    x = torch.randn(1, 1, 4, 4)
    assert torch.equal(fused(x), model(x))
    assert not fused._functions


def test_a_fused_module_can_be_forgotten() -> None:
    import weakref

    fused = ours(nn.Sequential(nn.Conv2d(1, 1, 3)))
    fused(torch.randn(1, 1, 4, 4))
    gone = weakref.ref(fused)
    del fused
    gc.collect()
    assert gone() is None


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


def test_what_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Dropout())
    with pytest.raises(NotSupported, match=r"training mode.*call model.eval"):
        fuse(model.train())
    fused = ours(model)
    model[1].train()
    with pytest.raises(NotSupported, match="Dropout 1 is in training mode"):
        fused(torch.randn(1, 1, 4, 4))
    with pytest.raises(NotSupported, match=r"module '1' raised GuardOnDataDependent"):
        ours(nn.Sequential(nn.Conv2d(1, 1, 3), Branch()))(torch.randn(1, 1, 4, 4))
    with pytest.raises(InvalidType, match=r"must be a torch\.nn\.Module"):
        fuse(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="there is no option"):
        fuse(nn.ReLU().eval(), speed="high")


def test_a_module_that_counts_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * 2

    with pytest.raises(NotSupported, match="writes to its inputs, parameters or buffers"):
        ours(Counting())(torch.randn(2))


def test_random_numbers_are_drawn_at_every_call() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.rand(100)

    fused = ours(Noisy())
    x = torch.zeros(100)
    assert not torch.equal(fused(x), fused(x))


def test_an_example_prepares_and_copies_work() -> None:
    model = settled(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()))
    x = torch.randn(1, 1, 4, 4)
    fused = fuse(model, example=(x,), measure="never")
    assert fused._functions
    agrees(copy.deepcopy(fused)(x), model(x))


def test_programs_of_several_shapes_share_what_is_prepared_of_weights() -> None:
    model = settled(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(2), nn.Linear(16, 2)))
    fused = ours(model)
    for batch in (1, 2, 3):
        x = torch.randn(batch, 2, 6, 6)
        agrees(fused(x), model(x))
    ((function, _),) = fused._functions.values()
    assert len(function._programs) == 3
    assert len(function._shared) == 3, "the folded weights, and two filters"


def test_a_tensor_that_is_no_buffer_and_a_module_that_is_replaced() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.shift = nn.Linear(2, 2), torch.ones(2)

        def forward(self, x: Any) -> Any:
            return self.layer(x) + self.shift

    model = Model()
    fused = ours(model)
    x = torch.randn(3, 2)
    agrees(fused(x), model(x))
    model.shift.add_(1.0)
    agrees(fused(x), model(x))
    model.layer = nn.Linear(2, 2).eval()
    agrees(fused(x), model(x))
    with torch.no_grad():
        one, other = model.layer.weight[0].clone(), model.layer.weight[1].clone()
        model.layer.weight.data = torch.stack([other, one])
    agrees(fused(x), model(x))


def test_operators_that_write_to_their_own_results() -> None:
    """`rms_norm` and products of one row are made of such."""
    model = nn.Sequential(nn.RMSNorm(7), nn.Linear(7, 5), nn.ReLU())
    fused = ours(model)
    for x in (torch.randn(3, 7), torch.randn(7)):
        agrees(fused(x), model(x))


class Residuals(nn.Module):
    """Sums whose first terms nobody reads afterwards, but for one that is read again at the end."""

    def __init__(self, is_read_again: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 24, 1)
        self.inner = nn.ModuleList(nn.Conv2d(24, 24, taps, padding=taps // 2) for taps in (1, 3, 1))
        self.last = nn.Conv2d(24, 8, 1)
        self.is_read_again = is_read_again

    def forward(self, x: Any) -> Any:
        y = first = torch.relu(self.first(x))
        for layer in self.inner:
            y = torch.relu(layer(y) + y) if layer.kernel_size == (3, 3) else y * torch.sigmoid(layer(y) + y)
        return self.last(y + first if self.is_read_again else y)


@pytest.mark.parametrize("is_read_again", [False, True])
def test_results_lie_over_what_nobody_reads_any_more(
    is_read_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution reads all of its input for each result: only other operands are overwritten."""
    monkeypatch.setattr(writer, "LEAST_OVER", 0)
    model = Residuals(is_read_again)
    x = torch.randn(2, 8, 9, 11)
    with torch.no_grad():
        wanted = model.double()(x.double()).float()
        fused = ours(model.float())
        for _ in range(2):
            agrees(fused(x), wanted)


class Parallel(nn.Module):
    """Two convolutions of one input; the sum of their results lies over the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = (
            nn.Conv2d(8, 32, 1),
            nn.Conv2d(8, 32, 3, padding=1),
            nn.Conv2d(32, 8, 1),
        )

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.other(x) + self.one(x)))


def test_a_sum_lies_over_its_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LEAST_OVER", 0)
    model, x = Parallel(), torch.randn(2, 8, 12, 12)
    with torch.no_grad():
        wanted = model.double()(x.double()).float()
        fused = ours(model.float())
        agrees(fused(x), wanted)
    assert program(fused).nbytes == 2 * 32 * 12 * 12 * 4  # of one result, where each with its own took two
