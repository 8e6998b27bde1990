"""Nets that a solver trains with their blobs in shared memory: the same results, bit by bit, in less memory; what is
gone is not shown.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from caffe_nets import BRANCHES
from jitdnn.caffe import Solver, events, load_solver, pycaffe, shared_memory
from jitdnn.caffe.events import Event, Iterated
from jitdnn.errors import InvalidArgument

FIXED = (
    'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01 max_iter: 9 random_seed: 5 '
    "snapshot_after_train: false "
)
GAUSSIAN = 'filler { type: "gaussian" std: 1 }'
WEIGHTS = 'weight_filler { type: "xavier" }'


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Blocks are full of NaN, and are so again when what this returns is called."""
    blocks: list[Any] = []
    make = shared_memory._allocated

    def made(*arguments: Any) -> Any:
        blocks.append(make(*arguments))
        fill()
        return blocks[-1]

    def fill() -> None:
        for block in blocks:
            block.fill(255)

    monkeypatch.setattr(shared_memory, "_allocated", made)
    return fill


def layer(name: str, kind: str, bottom: str, top: str | None = None, rest: str = "") -> str:
    bottoms = " ".join(f'bottom: "{one}"' for one in bottom.split())
    tops = " ".join(f'top: "{one}"' for one in (name if top is None else top).split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} {tops} {rest} }}\n'


def source(tops: str, *shapes: tuple[int, ...], filler: str = "") -> str:
    dims = " ".join(f"shape {{ {' '.join(f'dim: {extent}' for extent in shape)} }}" for shape in shapes)
    return layer(f"in {tops}", "DummyData", "", tops, f"dummy_data_param {{ {dims} {filler} }}")


def images(tops: str = "x", *shapes: tuple[int, ...]) -> str:
    return source(tops, *(shapes or ((4, 3, 8, 7),)), filler=f"data_{GAUSSIAN}")


def conv(name: str, bottom: str, rest: str = "", outputs: int = 6) -> str:
    more = f"num_output: {outputs} kernel_size: 3 pad: 1 {WEIGHTS} {rest}"
    return layer(name, "Convolution", bottom, rest=f"convolution_param {{ {more} }}")


def squares(name: str, bottom: str) -> str:
    return layer(name, "Reduction", bottom, rest="loss_weight: 0.02 reduction_param { operation: SUMSQ }")


def between(text: str, top: str = "l") -> str:
    """A net with a layer, or several, behind a convolution `c`, and another convolution behind it."""
    return images() + conv("c", "x") + text + conv("d", top) + squares("loss", "d")


def ends(text: str, top: str = "l") -> str:
    return images() + conv("c", "x") + text + squares("loss", top)


def dense(name: str, bottom: str, outputs: int = 5, rest: str = "") -> str:
    more = f"inner_product_param {{ num_output: {outputs} {WEIGHTS} }}"
    return layer(name, "InnerProduct", bottom, rest=f"{rest} {more}")


def loss(kind: str, labels: str, rest: str = "", classes: int = 5) -> str:
    """A loss of scores by labels, which are numbers of classes, or of the scores' shape."""
    shape = (4,) if labels == "numbers" else (4, classes)
    filler = f'data_filler {{ type: "constant" value: {1 if labels == "numbers" else 0.25} }}'
    return (
        images()
        + source("t", shape, filler=filler)
        + dense("a", "x")
        + layer("r", "Sigmoid", "a")
        + dense("b", "r", classes)
        + layer("loss", kind, "b t", rest=rest)
    )


def same(kind: str, rest: str = "", *, name: str = "", in_place: bool = True) -> dict[str, str]:
    """A layer that may work in place, both ways, and with another one in place on its result."""
    name = name or kind
    found = {name: between(layer("l", kind, "c", rest=rest))}
    found[f"{name}, overwritten"] = between(
        layer("l", kind, "c", rest=rest) + layer("o", "Sigmoid", "l", "l")
    )
    if in_place:
        found[f"{name} in place"] = between(layer("l", kind, "c", "c", rest), "c")
    return found


NUMBERS = source("n", (6,), filler='data_filler { type: "constant" value: 2 }')
SHARED = 'param { name: "w" } convolution_param'
LAYERS = {
    **same("ReLU"),
    **same("ReLU", "relu_param { negative_slope: -0.2 }", name="ReLU from x"),
    **same("PReLU"),
    **same("ELU", "elu_param { alpha: -0.5 }"),
    **same("Sigmoid"),
    **same("TanH"),
    **same("BNLL"),
    **same("Power", "power_param { power: 2 shift: 0.1 }"),
    **same("AbsVal", in_place=False),
    **same("Exp", "exp_param { scale: 0.1 }"),
    **same("Dropout"),
    **same("BatchNorm"),
    **same("Scale", f"scale_param {{ bias_term: true {GAUSSIAN} }}"),
    **same("Bias"),
    **same("Softmax", in_place=False),
    **same("LRN", in_place=False),
    **same("LRN", "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 }", name="LRN within", in_place=False),
    **same("MVN", in_place=False),
    **same("Pooling", "pooling_param { kernel_size: 3 stride: 2 }", in_place=False),
    "global": between(layer("l", "BatchNorm", "c", "c", "batch_norm_param { use_global_stats: true eps: 1 }")
        + layer("s", "Scale", "c", "c") + layer("r", "ReLU", "c", "c"), "c"),
    "resnet's": between(layer("l", "BatchNorm", "c", "c") + layer("r", "ReLU", "c", "c"), "c").replace(
        layer("r", "ReLU", "c", "c"),
        layer("s", "Scale", "c", "c", "scale_param { bias_term: true }") + layer("r", "ReLU", "c", "c")),
    "average": between(layer("l", "Pooling", "c", rest="pooling_param { pool: AVE kernel_size: 3 stride: 3 }")),
    "stochastic": between(layer("r", "ReLU", "c", "c") + layer("l", "Pooling", "c",
        rest="pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }")),
    "mask": between(layer("l", "Pooling", "c", "l m", "pooling_param { kernel_size: 2 stride: 2 }")
        + layer("quiet", "Silence", "m", "")),
    **{f"Eltwise {how}": between(layer("e", "TanH", "c") + layer("l", "Eltwise", "c e",
        rest=f"eltwise_param {{ operation: {how} }}")) for how in ("SUM", "PROD", "MAX")},
    "Concat": between(layer("e", "TanH", "c") + layer("l", "Concat", "c e")),
    "Slice": between(layer("e", "Slice", "c", "l m", "slice_param { slice_point: 2 }") + layer("q", "TanH", "m")),
    "Silence": between(layer("q", "Silence", "c", "") + layer("l", "TanH", "c")),
    "Crop": between(layer("l", "Crop", "c small", rest="crop_param { offset: 1 }"))
        .replace(conv("c", "x"), conv("c", "x") + images("small", (4, 6, 5, 5)), 1),
    "Tile": between(layer("l", "Tile", "c", rest="tile_param { tiles: 2 }")),
    "Permute": between(layer("l", "Permute", "c", rest="permute_param { order: 0 order: 2 order: 1 order: 3 }")),
    "Flatten": ends(layer("f", "Flatten", "c") + dense("l", "f")),
    "Reshape": between(layer("l", "Reshape", "c", rest="reshape_param { shape { dim: 0 dim: -1 dim: 4 dim: 7 } }")
        + layer("r", "ReLU", "l", "l")),
    "Deconvolution": ends(layer("l", "Deconvolution", "c",
        rest=f"convolution_param {{ num_output: 2 kernel_size: 2 stride: 2 {WEIGHTS} }}")),
    "Im2col": ends(layer("i", "Im2col", "c", rest="convolution_param { kernel_size: 2 }")
        + layer("l", "InnerProduct", "i", rest=f"inner_product_param {{ num_output: 2 {WEIGHTS} }}")),
    "Interp": between(layer("l", "Interp", "c", rest="interp_param { height: 11 width: 9 }")),
    "Normalize": between(layer("l", "Normalize", "c")),
    "ShuffleChannel": between(layer("l", "ShuffleChannel", "c", rest="shuffle_channel_param { group: 2 }")),
    "Axpy": between(layer("p", "Pooling", "c", rest="pooling_param { pool: AVE global_pooling: true }")
        + layer("e", "TanH", "c") + layer("l", "Axpy", "p c e")),
    "SPP": ends(layer("p", "SPP", "c", rest="spp_param { pyramid_height: 2 }") + dense("l", "p")),
    "Reduction": ends(layer("l", "Reduction", "c", rest="reduction_param { operation: ASUM axis: 2 }")),
    "ArgMax": between(layer("l", "TanH", "c") + layer("top", "ArgMax", "c")),
    "BatchReindex": between(layer("l", "BatchReindex", "c n")).replace(conv("c", "x"), conv("c", "x") + NUMBERS, 1),
    "LSTM": ends(layer("s", "Reshape", "c", rest="reshape_param { shape { dim: 4 dim: 6 dim: -1 } }")
        + source("cont", (4, 6)) + layer("m", "LSTM", "s cont", rest=f"recurrent_param {{ num_output: 5 {WEIGHTS} }}")
        + layer("l", "RNN", "m cont", rest=f"recurrent_param {{ num_output: 3 {WEIGHTS} }}")),
    "Embed": source("n", (4, 3), filler='data_filler { type: "constant" value: 2 }')
        + layer("e", "Embed", "n", rest=f"embed_param {{ num_output: 5 input_dim: 4 {WEIGHTS} }}")
        + dense("l", "e") + squares("loss", "l"),
    "Parameter": images() + layer("w", "Parameter", "", rest="parameter_param { shape { dim: 3 } }")
        + layer("l", "Bias", "x w", rest="bias_param { axis: 1 }") + conv("d", "l") + squares("loss", "d"),
    "SoftmaxWithLoss": loss("SoftmaxWithLoss", "numbers"),
    "EuclideanLoss": loss("EuclideanLoss", "scores"),
    "SigmoidCrossEntropyLoss": loss("SigmoidCrossEntropyLoss", "scores"),
    "HingeLoss": loss("HingeLoss", "numbers"),
    "loss and accuracy": loss("SoftmaxWithLoss", "numbers") + layer("accuracy", "Accuracy", "b t")
        + layer("probability", "Softmax", "b"),
    "shared weights": images() + conv("c", "x", outputs=3).replace("convolution_param", SHARED)
        + layer("r", "TanH", "c") + conv("d", "r", outputs=3).replace("convolution_param", SHARED)
        + squares("loss", "d"),
    "frozen": images() + conv("c", "x").replace("convolution_param", "param { lr_mult: 0 } convolution_param")
        + conv("d", "c") + squares("loss", "d"),
    "no loss below": images() + conv("c", "x") + conv("d", "x") + squares("loss", "d"),
    "losses in the middle": images() + conv("c", "x") + squares("loss1", "c") + layer("r", "ReLU", "c") + conv("d", "r")
        + squares("loss2", "d"),
}  # fmt: skip


def residual(number: int) -> str:
    """A residual block on blob `e<number>` that makes the next one."""
    x, y, z = f"e{number}", f"p{number}", f"q{number}"
    return (
        conv(y, x)
        + layer(f"n{y}", "BatchNorm", y, y)
        + layer(f"s{y}", "Scale", y, y, "scale_param { bias_term: true }")
        + layer(f"r{y}", "ReLU", y, y)
        + conv(z, y)
        + layer(f"n{z}", "BatchNorm", z, z)
        + layer(f"e{number + 1}", "Eltwise", f"{x} {z}")
        + layer(f"r{z}", "ReLU", f"e{number + 1}", f"e{number + 1}")
    )


RESIDUAL = images() + conv("e0", "x") + "".join(map(residual, range(4))) + squares("loss", "e4")


def solver(text: str, more: str = "", **options: Any) -> Solver:
    return load_solver(f"net_param {{ {text} }} {FIXED} {more}", **options)


def trained(made: Solver, poison: Callable[[], None], steps: int = 3) -> tuple[list[Any], list[Any]]:
    """Losses, and weights and histories with what other layers keep in weights."""
    losses = []
    made.listener = lambda event: losses.append(float(event.loss)) if isinstance(event, Iterated) else None
    for _ in range(steps):
        poison()
        made.step(1)
    arrays = [blob.data for blobs in made.net.weights.values() for blob in blobs]
    return losses, [*arrays, *made.method.history.values()]


def assert_same(text: str, poison: Callable[[], None], more: str = "", **options: Any) -> Solver:
    expected = trained(solver(text, more, keep_blobs=True, **options), poison)
    made = solver(text, more, **options)
    found = trained(made, poison)
    assert np.isfinite(found[0]).all()
    assert found[0] == expected[0]
    assert len(found[1]) == len(expected[1]) > 0
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_array_equal(one, other)
    assert made.net.shared is not None
    assert made.net.shared.refusal is None
    assert made.net.shared.bytes > 0
    return made


@pytest.mark.parametrize("name", LAYERS)
def test_results_are_those_of_blobs_that_are_kept(name: str, poison: Callable[[], None]) -> None:
    made = assert_same(LAYERS[name], poison)
    assert not np.array_equal(
        made.net.parameters[-1].blob.data, solver(LAYERS[name]).net.parameters[-1].blob.data
    )


TWO = images() + dense("c", "x", 7) + layer("r", "TanH", "c") + dense("d", "r") + squares("loss", "d")
TYPES = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_solver(kind: str, poison: Callable[[], None]) -> None:
    momentum = {"AdaGrad": "momentum: 0", "RMSProp": "momentum: 0 rms_decay: 0.9"}.get(kind, "")
    text = FIXED.replace("momentum: 0.9", momentum) if momentum else FIXED
    results = []
    for keep in (True, False):
        made = load_solver(f'net_param {{ {TWO} }} {text} type: "{kind}" delta: 1e-4', keep_blobs=keep)
        results.append(trained(made, poison))
    assert results[0][0] == results[1][0]
    for one, other in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "more", ["clip_gradients: 0.01", "iter_size: 3", 'regularization_type: "L1"', "ema_decay: 0.9"]
)
def test_updates_that_need_all_gradients_and_others(more: str, poison: Callable[[], None]) -> None:
    assert_same(TWO, poison, more, dtype="f64")


def test_gradients_that_others_read_are_kept(poison: Callable[[], None], tmp_path: Any) -> None:
    made = assert_same(TWO, poison, f'snapshot_diff: true snapshot_prefix: "{tmp_path / "s"}"')
    assert all(each.blob.diff.any() for each in made.net.parameters)
    told = solver(TWO, "debug_info: true display: 1")
    told.step(2)
    assert told.net.shared is None
    assert told.net.blobs["c"].diff.any()


def test_two_that_are_needed_at_a_time_do_not_overlap(poison: Callable[[], None]) -> None:
    made = assert_same(RESIDUAL, poison, "iter_size: 2")
    assert made.net.shared is not None
    lent = made.net.shared._lent
    assert lent
    assert made.net.shared.bytes < 0.6 * sum(tenant.blob.nbytes for tenant, _ in lent)
    places = [(memory.__array_interface__["data"][0], tenant) for tenant, memory in lent]
    for (one, a), (other, b) in combinations(places, 2):
        if a.need.first <= b.need.last and b.need.first <= a.need.last:
            assert one + a.blob.nbytes <= other or other + b.blob.nbytes <= one, (a.blob, b.blob)
    assert len({id(tenant.blob) for tenant, _ in lent}) > 20
    assert len({place for place, _ in places}) < len(places)
    apart = sum(blob.nbytes for blob in made.net.blobs.values() if blob.has_data)
    assert 0 < apart == shared_memory.passes_bytes(made.net) - made.net.shared.bytes


def test_what_is_gone_is_not_shown() -> None:
    made = solver(TWO)
    made.step(1)
    for read in (
        lambda: made.net.blobs["c"].data,
        lambda: made.net.blobs["c"].values,
        lambda: made.net.blobs["c"].read(),
        lambda: made.net.blobs["r"].diff,
        lambda: made.net.blobs["r"].gradient,
        lambda: made.net.parameters[0].blob.diff,
    ):
        with pytest.raises(InvalidArgument, match=r"keep_blobs=True"):
            read()
    assert np.isfinite(made.net.blobs["loss"].data)
    assert made.net.blobs["x"].data.any()


def test_who_asks_has_all_from_the_next_iteration_on() -> None:
    made, kept = solver(TWO), solver(TWO, keep_blobs=True)
    for each in (made, kept):
        each.step(2)
    with pytest.raises(InvalidArgument, match="blob 'c' has no values now"):
        _ = made.net.blobs["c"].data
    for each in (made, kept):
        each.step(1)
    for name, blob in kept.net.blobs.items():
        np.testing.assert_array_equal(made.net.blobs[name].data, blob.data)
        np.testing.assert_array_equal(made.net.blobs[name].diff, blob.diff)
    for one, other in zip(made.net.parameters, kept.net.parameters, strict=True):
        np.testing.assert_array_equal(one.blob.diff, other.blob.diff)
    assert "asked for values" in made.net.shared.refusal  # type: ignore[union-attr,operator]


def test_passes_of_a_program_have_their_blobs_to_themselves(poison: Callable[[], None]) -> None:
    made, kept = solver(TWO), solver(TWO, keep_blobs=True)
    for _ in range(2):
        for each in (made, kept):
            poison()
            each.step(2)
            each.net.clear_gradients()
            each.net.forward()
            each.net.backward()
        for name, blob in kept.net.blobs.items():
            np.testing.assert_array_equal(made.net.blobs[name].data, blob.data)
            np.testing.assert_array_equal(made.net.blobs[name].diff, blob.diff)
        for one, other in zip(made.net.parameters, kept.net.parameters, strict=True):
            np.testing.assert_array_equal(one.blob.data, other.blob.data)
            np.testing.assert_array_equal(one.blob.diff, other.blob.diff)
    assert made.net.shared.refusal is None  # type: ignore[union-attr]


@pytest.mark.parametrize("run", [lambda net: net.backward(), lambda net: net.forward_layers(2)])
def test_a_pass_cannot_begin_with_what_is_gone(run: Callable[[Any], Any]) -> None:
    made = solver(TWO)
    made.step(1)
    with pytest.raises(InvalidArgument, match="begins with values of the one before"):
        run(made.net)
    made.step(1)
    run(made.net)


def test_an_observer_sees_all() -> None:
    made = solver(TWO)
    made.step(1)
    seen: list[Any] = []

    def observe(layer: Any, direction: str, seconds: float) -> None:
        seen.append(made.net.blobs["c"].data.copy())

    made.net.observer = observe
    made.step(1)
    assert len(seen) > 8
    assert seen[-1].any()
    np.testing.assert_array_equal(seen[-1], seen[4])
    made.net.observer = None
    made.step(1)
    with pytest.raises(InvalidArgument, match="no values now"):
        _ = made.net.blobs["c"].data


def test_other_shapes_are_planned_anew(poison: Callable[[], None]) -> None:
    text = TWO.replace(
        images(), layer("x", "Input", "", rest="input_param { shape { dim: 4 dim: 3 dim: 8 dim: 7 } }")
    )
    results = []
    for keep in (True, False):
        made = solver(text, keep_blobs=keep)
        for shape in ((4, 3, 8, 7), (7, 3, 8, 7), (2, 3, 8, 7)):
            made.net.reshape(x=shape)
            made.net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal(shape)
            poison()
            made.step(2)
        results.append([each.blob.data.copy() for each in made.net.parameters])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_limit_takes_its_place() -> None:
    pytest.importorskip("scipy")
    made = solver(TWO)
    made.step(1)
    made.net.limit_memory("1 GiB")
    with pytest.raises(InvalidArgument, match="under a limit on memory"):
        _ = made.net.blobs["c"].data
    made.step(1)
    made.net.limit_memory(None)
    made.step(1)
    assert made.net.blobs["c"].data.any()


def test_pycaffe_shows_all(tmp_path: Any) -> None:
    file = tmp_path / "solver.prototxt"
    file.write_text(f'net_param {{ {TWO} }} {FIXED} snapshot_prefix: "{tmp_path / "s"}"')
    made = pycaffe.get_solver(str(file))
    made.step(1)
    assert made.net.blobs["c"].data.any()
    assert made.net.blobs["c"].diff.any()
    assert made.net.params["c"][0].diff.any()


def test_nets_that_keep_their_blobs() -> None:
    filtered = source("s", (4, 1), filler='data_filler { type: "constant" value: 1 }') + TWO.replace(
        'bottom: "r"', 'bottom: "f"'
    ).replace('layer { name: "d"', layer("f", "Filter", "r s", "f") + 'layer { name: "d"')
    for text, reason in (("force_backward: true " + TWO, "force_backward"), (filtered, "shapes may change")):
        made = solver(text)
        made.step(1)
        assert reason in made.net.shared.refusal  # type: ignore[union-attr,operator]
        assert made.net.blobs["c"].diff.any()


def test_a_loss_is_displayed_at_the_end(tmp_path: Any) -> None:
    told: list[list[Event]] = []
    for keep in (True, False):
        found: list[Event] = []
        made = solver(TWO, "display: 3", keep_blobs=keep, listener=found.append)
        made.solve()
        told.append([event for event in found if isinstance(event, events.Displayed)])
    assert [event.loss for event in told[0]] == [event.loss for event in told[1]]  # type: ignore[attr-defined]
    assert len(told[0]) == 4


@pytest.mark.parametrize("images_tested", [2, 50])
def test_nets_that_test_lie_in_the_same_block(images_tested: int, poison: Callable[[], None]) -> None:
    """Whichever needs more memory, and whichever runs first."""
    text = "".join(
        source + "include { phase: PHASE } }\n".replace("PHASE", phase)
        for phase, count in (("TRAIN", 4), ("TEST", images_tested))
        for source in [images("x", (count, 3, 8, 7)).rstrip()[:-1]]
    ) + TWO.replace(images(), "")
    text += layer("quiet", "TanH", "d") + layer("out", "Reduction", "quiet")
    more = "test_iter: 2 test_interval: 2 test_compute_loss: true"
    results = []
    for keep in (True, False):
        made = solver(text, more, keep_blobs=keep)
        told: list[Any] = []
        made.listener = told.append
        for _ in range(5):
            poison()
            made.step(1)
        tests = [event for event in told if isinstance(event, events.Tested)]
        results.append((tests, [float(e.loss) for e in told if isinstance(e, Iterated)]))
    assert len(results[0][0]) == 3
    assert str(results[0]) == str(results[1])
    train, test = made.net.shared, made.test_nets[0].shared
    assert train is not None
    assert test is not None
    assert 0 < test.bytes != train.bytes > 0
    assert test._block.bytes == max(test.bytes, train.bytes)
    with pytest.raises(InvalidArgument, match="keep_blobs=True"):
        _ = made.test_nets[0].blobs["c"].data
    assert made.test_nets[0].blobs["out"].data.any()
    made.test_nets[0].forward()
    assert made.test_nets[0].blobs["c"].data.any()


def test_losses_with_gradients_that_the_file_weights(poison: Callable[[], None]) -> None:
    """Several readers, a loss weight on a blob that others read, and inputs."""
    results = []
    for keep in (True, False):
        made = solver(BRANCHES, dtype="f64", keep_blobs=keep)
        for name in made.net.inputs:
            blob = made.net.blobs[name]
            blob.data[...] = np.random.default_rng(2).integers(0, 2, blob.shape)
        results.append(trained(made, poison))
    assert results[0][0] == results[1][0]
    for one, other in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(one, other)
