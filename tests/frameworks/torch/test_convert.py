"""`convert`, `revert` and `use`: what is converted, what is left alone, and that nothing else of a model changes."""

from __future__ import annotations

import copy
import io
import pickle
from threading import Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jitdnn.torch as jt  # noqa: E402
from jitdnn.errors import InvalidArgument, InvalidType  # noqa: E402
from jitdnn.frameworks.torch.modules import CONVERTED  # noqa: E402
from torch_kernels import all_ours, random, watched  # noqa: E402

nn = torch.nn


class Subclass(nn.Conv2d):
    """One that computes something else."""

    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input)


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 5),
    )


def names(model: Any) -> set[str]:
    return {name for name, module in model.named_modules() if jt.is_converted(module)}


def test_only_classes_change() -> None:
    model = small()
    parameters = {name: (id(one), one.data_ptr()) for name, one in model.named_parameters()}
    state = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert jt.convert(model, measure="never") is model
    assert names(model) == {"", "0", "1", "2", "3", "5"}  # itself for its activation behind a normalization
    assert {name: (id(one), one.data_ptr()) for name, one in model.named_parameters()} == parameters
    assert list(model.state_dict()) == list(state)
    with all_ours("forward", "filter", "gradients"):
        model(random(2, 3, 6, 6)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, state["0.weight"])
    model.load_state_dict(state)
    fresh = small()
    fresh.load_state_dict(model.state_dict())
    assert jt.revert(model) is model
    assert not names(model)
    assert [type(one) for one in model] == [type(one) for one in fresh]
    assert set(vars(model[0])) == set(vars(fresh[0]))
    with watched() as seen:
        assert torch.equal(model(random(2, 3, 6, 6)), fresh(random(2, 3, 6, 6)))
    assert not seen


def test_every_class_is_converted_and_reverted() -> None:
    made = {
        **{
            kind: kind(2, 2, 3)
            for kind in CONVERTED
            if "Conv" in kind.__name__ and "Lazy" not in kind.__name__
        },
        **{kind: kind(2, 3) for kind in CONVERTED if "Lazy" in kind.__name__},
        **{
            kind: kind(2)
            for kind in CONVERTED
            if ("Norm" in kind.__name__ or "Pool" in kind.__name__) and kind is not nn.GroupNorm
        },
        **{kind: kind(2, 2) for kind in (nn.Linear, nn.LSTM, nn.GRU, nn.RNN, nn.GroupNorm)},
    }
    for kind in CONVERTED:
        module = made.get(kind) or kind()
        assert type(jt.convert(module)) is CONVERTED[kind]
        # DistributedDataParallel refuses instances of SyncBatchNorm on processors
        assert isinstance(module, kind) is (kind is not nn.SyncBatchNorm)
        assert type(jt.revert(module)) is kind


def test_what_is_said_to_stay_does() -> None:
    from jitdnn.frameworks.torch.left import LEFT

    for name in (name for names in LEFT for name in names):
        assert issubclass(getattr(nn, name), nn.Module)
        assert getattr(nn, name) not in CONVERTED


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["0"], None, {"0"}),
        (None, ["0", "5"], {"", "1", "2", "3"}),
        (None, ["", "0", "5"], {"1", "2", "3"}),
        (nn.Conv2d, None, {"0"}),
        ([nn.Linear, "2"], None, {"2", "5"}),
        (lambda name, module: isinstance(module, nn.Linear), None, {"5"}),
        ([nn.Linear, nn.Conv2d], nn.Linear, {"0"}),
        ([], None, set()),
    ],
)
def test_include_and_exclude(include: Any, exclude: Any, expected: set[str]) -> None:
    assert names(jt.convert(small(), include, exclude)) == expected


def test_names_and_classes_stand_for_what_is_inside() -> None:
    def nested() -> Any:
        shared = nn.Conv2d(3, 3, 1)
        return nn.ModuleDict(
            {"one": nn.Sequential(shared, nn.SiLU()), "two": nn.Sequential(nn.Conv2d(3, 3, 3), shared)}
        )

    assert names(jt.convert(nested(), exclude=["one"])) == {"two.0"}
    assert names(jt.convert(nested(), include="two")) == {
        "one.0",
        "two.0",
    }  # the shared one by its first name
    assert names(jt.convert(nested(), include=["two.1"])) == {"one.0"}
    assert names(jt.convert(nested(), include=nn.ModuleDict, exclude="two.1")) == {"one.1", "two.0"}
    assert names(jt.convert(nested(), include=[""])) == set()


def test_what_does_not_fit_is_refused() -> None:
    for named in ({"include": ["7"]}, {"exclude": ["conv"]}, {"include": 3}):
        with pytest.raises(InvalidArgument):
            jt.convert(small(), **named)
    for options in ({"measure": "always"}, {"speed": 1}, {"threads": 0}, {"math": "guess"}):
        with pytest.raises(InvalidArgument):
            jt.convert(small(), **options)
        with pytest.raises(InvalidArgument):
            jt.use(**options)
    for function in (jt.convert, jt.revert):
        with pytest.raises(InvalidType):
            function(torch.zeros(3))


def test_converted_again_has_the_new_options() -> None:
    model = jt.convert(small(), measure="never")
    kinds = [type(one) for one in model]
    jt.convert(model, measure="never", math="fp64")
    assert [type(one) for one in model] == kinds
    assert model[0]._jitdnn_options == "measure=never;math=fp64"
    jt.convert(model, include=nn.Conv2d)
    assert model[0]._jitdnn_options == ""
    assert model[5]._jitdnn_options == "measure=never;math=fp64"


def test_a_subclass_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(Subclass(1, 1, 1), nn.Conv2d(1, 1, 1))
    assert names(jt.convert(model)) == {"1"}
    assert any("modules of Subclass stay as they are" in record.message for record in caplog.records)
    assert type(model[0]) is Subclass


def test_parametrizations_are_left_alone() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3)), nn.Conv2d(3, 2, 1))
    assert names(jt.convert(model, measure="never")) == {"1"}
    assert model(random(1, 2, 5, 5)).shape == (1, 2, 3, 3)
    # an older one, by a hook, computes the weight before each call of whichever forward there is
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hooked = nn.utils.weight_norm(nn.Conv2d(2, 3, 3))
    x = random(1, 2, 5, 5)
    before = hooked(x)
    with all_ours("forward"):
        torch.testing.assert_close(jt.convert(hooked, measure="never")(x), before, rtol=1e-4, atol=1e-4)


def test_parametrized_after_conversion() -> None:
    model = jt.convert(nn.Conv2d(2, 3, 3), measure="never")
    x = random(1, 2, 5, 5)
    before = model(x)
    nn.utils.parametrizations.weight_norm(model)
    with all_ours("forward"):
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)


def test_hooks_copies_and_pickles() -> None:
    model = jt.convert(small().eval(), measure="never")
    called = []
    model[0].register_forward_hook(lambda *_: called.append("hook"))
    x = random(2, 3, 6, 6)
    expected = model(x)
    assert called == ["hook"]
    twin = copy.deepcopy(model)
    assert names(twin) == names(model)
    assert twin[0].weight.data_ptr() != model[0].weight.data_ptr()
    model[0]._forward_hooks.clear()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (twin, pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        with all_ours("forward"):
            assert torch.equal(other(x), expected)


def test_dropout_draws_what_it_drew() -> None:
    """The numbers of torch's generator, in torch's order: a seed gives a converted model's step, too."""
    torch.manual_seed(0)
    stock = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Dropout2d(0.5), nn.GELU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 5)
    )
    ours, x = jt.convert(copy.deepcopy(stock), measure="never"), random(4, 3, 6, 6)
    found = []
    for model in (stock, ours):
        torch.manual_seed(5)
        y = model(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even")  # torch's, of its own
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(1, 2), "same", "valid"])
def test_padding_modes(mode: str, padding: Any) -> None:
    stock = nn.Conv2d(2, 3, (3, 2), padding=padding, padding_mode=mode)
    ours = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(1, 2, 5, 6)
    with all_ours("forward"):
        torch.testing.assert_close(ours(x), stock(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(2, 3, 3), (2, 5, 6)),
        (nn.Conv1d(2, 3, 3), (2, 6)),
        (nn.ConvTranspose2d(2, 3, 3), (2, 5, 6)),
        (nn.Linear(6, 3), (6,)),
        (nn.MaxPool2d(2), (2, 5, 6)),
        (nn.AvgPool2d(2), (2, 5, 6)),
        (nn.MaxPool1d(2), (2, 6)),
    ],
)
def test_inputs_without_a_batch(module: Any, shape: Any) -> None:
    x = random(*shape)
    expected = module(x)
    torch.testing.assert_close(jt.convert(module, measure="never")(x), expected, rtol=1e-5, atol=1e-5)


def test_the_shape_that_a_transposed_convolution_is_asked_for() -> None:
    stock = nn.ConvTranspose2d(2, 3, 3, stride=2)
    ours = jt.convert(copy.deepcopy(stock), measure="never")
    x = random(1, 2, 4, 4)
    with all_ours("forward"):
        torch.testing.assert_close(
            ours(x, output_size=[10, 9]), stock(x, output_size=[10, 9]), rtol=1e-5, atol=1e-5
        )


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("kind", [nn.LazyConv2d, nn.LazyConvTranspose2d])
def test_lazy_modules(kind: Any) -> None:
    model = jt.convert(kind(3, 3), measure="never")
    with all_ours("forward"):
        y = model(random(1, 2, 5, 5))
    assert type(model) in {CONVERTED[nn.Conv2d], CONVERTED[nn.ConvTranspose2d]}
    assert model.weight.shape in {(3, 2, 3, 3), (2, 3, 3, 3)}
    assert torch.equal(model(random(1, 2, 5, 5)), y)
    assert type(jt.revert(model)) in {nn.Conv2d, nn.ConvTranspose2d}
    untouched = jt.revert(jt.convert(kind(3, 3)))
    assert type(untouched) is kind
    assert type(untouched.cls_to_become(2, 3, 3)) in {nn.Conv2d, nn.ConvTranspose2d}


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITDNN_DISABLE", "1")
    assert not names(jt.convert(small()))
    with watched() as seen, jt.use(measure="never"):
        nn.functional.conv2d(random(1, 2, 5, 5), random(3, 2, 3, 3))
    assert not seen
    monkeypatch.delenv("JITDNN_DISABLE")
    model = jt.convert(nn.Conv2d(2, 3, 3), measure="never")
    monkeypatch.setenv("JITDNN_DISABLE", "1")
    with watched() as seen:
        model(random(1, 2, 5, 5))
    assert ["JITDNN_DISABLE" in kind.decision.reason for kind in seen] == [True]
    with pytest.raises(InvalidArgument):
        jt.convert(small(), speed=1)


@pytest.mark.parametrize(
    ("text", "is_converted"), [("0", True), ("false", True), ("off", True), ("on", False), ("true", False)]
)
def test_the_environment_takes_the_words_of_other_switches(
    monkeypatch: pytest.MonkeyPatch, text: str, is_converted: bool
) -> None:
    monkeypatch.setenv("JITDNN_DISABLE", text)
    assert bool(names(jt.convert(small()))) == is_converted


def test_a_word_that_is_no_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITDNN_DISABLE", "maybe")
    with pytest.raises(InvalidArgument, match=r"JITDNN_DISABLE='maybe': must be one of 1, true"):
        jt.convert(small())


def test_use() -> None:
    x, w = random(1, 2, 5, 5).requires_grad_(), random(3, 2, 3, 3).requires_grad_()
    expected = nn.functional.conv2d(x, w)
    with watched() as seen:
        with jt.use(measure="never"):
            y = torch.conv2d(x, w)
            assert len(seen) == 1
            with jt.use(measure="never", math="fp64"):
                nn.functional.conv2d(x, w)
            assert len(seen) == 2
        nn.functional.conv2d(x, w)
        assert len(seen) == 2
        y.sum().backward()  # after the block
    assert [kind.name for kind in seen[2:]] == ["data", "filter"]
    assert all(kind.decision.is_ours for kind in seen)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    mode = jt.use(measure="never")
    for _ in range(2):  # entered again
        with mode, all_ours("forward"):
            torch.conv2d(x, w)


def test_use_holds_in_its_own_thread() -> None:
    x, w = random(1, 2, 5, 5), random(3, 2, 3, 3)
    counts = {}

    def other() -> None:
        with watched() as seen:
            torch.conv2d(x, w)
        counts["outside"] = len(seen)
        with watched() as seen, jt.use(measure="never"):
            torch.conv2d(x, w)
        counts["inside"] = len(seen)

    with jt.use(measure="never"):
        thread = Thread(target=other)
        thread.start()
        thread.join()
    assert counts == {"outside": 0, "inside": 1}
    with watched() as seen:
        torch.conv2d(x, w)
    assert not seen


def test_synchronized_normalization_alone_is_batch_normalization() -> None:
    from jitdnn.frameworks.torch.batch_norm_modules import Sequential, SyncBatchNorm

    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.BatchNorm2d(4))
    stock = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(made))
    model = jt.convert(copy.deepcopy(stock), measure="never")
    assert [type(one) is SyncBatchNorm for one in model] == [False, True, False, True]
    assert type(model) is Sequential
    assert type(model[:2]) is Sequential
    for _ in range(2):  # in training, then in evaluation
        x = random(2, 3, 6, 6)
        y, wanted = model(x), made(x)
        torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-6)
        y.square().sum().backward()
        wanted.square().sum().backward()
        model.eval()
        made.eval()
    for one, other in zip(model.parameters(), made.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.state_dict(), made.state_dict(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(jt.fuse(model)(x), made(x), rtol=1e-5, atol=1e-5)
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again(x), made(x), rtol=1e-5, atol=1e-5)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), made(x), rtol=1e-5, atol=1e-5)
    assert type(jt.revert(model)) is nn.Sequential
    assert [type(one) for one in model] == [type(one) for one in stock]
    # nothing to gain where no normalization has an activation behind it that is joined to it
    assert type(jt.convert(nn.Sequential(nn.BatchNorm2d(4), nn.Tanh()))) is nn.Sequential


def test_an_activation_that_somebody_watches_runs_by_itself() -> None:
    model = jt.convert(nn.Sequential(nn.SyncBatchNorm(4), nn.ReLU(), nn.ReLU()))
    seen = []
    model[0].register_forward_hook(lambda module, given, result: seen.append(result.detach().clone()))
    y = model(random(2, 4, 3, 3))
    assert (seen[0] < 0).any()
    assert torch.equal(y, seen[0].relu())
