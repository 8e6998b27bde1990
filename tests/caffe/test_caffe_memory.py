"""Nets trained within a limit on memory: the same results, and no more memory than was said."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caffe_nets import BRANCHES as WEIGHTED
from caffe_nets import LENET
from jitdnn.caffe import Net, load_net
from jitdnn.caffe import blob as blobs
from jitdnn.caffe.memory_layout import lay_out
from jitdnn.errors import InvalidArgument
from jitdnn.settings import settings

pytest.importorskip("scipy")

Array = NDArray[Any]


def data(shape: tuple[int, ...]) -> str:
    dims = " ".join(f"dim: {extent}" for extent in shape)
    return (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { ' + dims + " } } }"
        f' layer {{ name: "t" type: "Input" top: "t" input_param {{ shape {{ dim: {shape[0]} }} }} }}'
    )


def conv(
    name: str, bottom: str, outputs: int, kernel: int = 3, more: str = "", top: str | None = None
) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{top or name}" convolution_param {{ '
        f'num_output: {outputs} kernel_size: {kernel} weight_filler {{ type: "xavier" }} {more} }} }}'
    )


def layer(name: str, kind: str, bottom: str, more: str = "", top: str | None = None) -> str:
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{top or name}" {more} }}'


def dense(name: str, bottom: str, outputs: int) -> str:
    more = f'inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }}'
    return layer(name, "InnerProduct", bottom, more)


def loss(name: str, bottom: str, weight: float = 1.0) -> str:
    return layer(name, "SoftmaxWithLoss", f'{bottom}" bottom: "t', f"loss_weight: {weight}")


MAX = "pooling_param { pool: MAX kernel_size: 3 stride: 2 }"
HALF = "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"
LRN = "lrn_param { local_size: 5 alpha: 1e-4 beta: 0.75 }"

# what AlexNet is made of: groups, normalization, overlapping windows, dropout, all in place that can be
ALEXNET = "".join(
    [
        data((4, 3, 51, 51)),
        conv("conv1", "x", 32, 7, "stride: 2"),
        layer("relu1", "ReLU", "conv1", top="conv1"),
        layer("norm1", "LRN", "conv1", LRN),
        layer("pool1", "Pooling", "norm1", MAX),
        conv("conv2", "pool1", 48, 5, "pad: 2 group: 2"),
        layer("relu2", "ReLU", "conv2", top="conv2"),
        layer("norm2", "LRN", "conv2", LRN),
        layer("pool2", "Pooling", "norm2", MAX),
        conv("conv3", "pool2", 64, 3, "pad: 1"),
        layer("relu3", "ReLU", "conv3", top="conv3"),
        conv("conv4", "conv3", 64, 3, "pad: 1 group: 2"),
        layer("relu4", "ReLU", "conv4", top="conv4"),
        layer("pool4", "Pooling", "conv4", MAX),
        dense("fc6", "pool4", 256),
        layer("relu6", "ReLU", "fc6", top="fc6"),
        layer("drop6", "Dropout", "fc6", top="fc6"),
        dense("fc7", "fc6", 128),
        layer("relu7", "ReLU", "fc7"),
        layer("drop7", "Dropout", "relu7"),
        dense("fc8", "drop7", 10),
        loss("loss", "fc8"),
    ]
)

# a chain as VGG's, with other functions between
VGG = "".join(
    [
        data((3, 3, 32, 32)),
        *(
            text
            for block, (count, outputs) in enumerate([(2, 16), (2, 32), (3, 48)])
            for text in (
                *(
                    part
                    for i in range(count)
                    for part in (
                        conv(
                            f"c{block}{i}",
                            f"c{block}{i - 1}" if i else (f"p{block - 1}" if block else "x"),
                            outputs,
                            3,
                            "pad: 1",
                        ),
                        layer(
                            f"a{block}{i}",
                            ("ReLU", "TanH", "PReLU")[i],
                            f"c{block}{i}",
                            top=f"c{block}{i}",
                        ),
                    )
                ),
                layer(f"p{block}", "Pooling", f"c{block}{count - 1}", HALF),
            )
        ),
        dense("fc", "p2", 10),
        loss("loss", "fc"),
    ]
)

# several readers, losses in the middle, a view, shared weights, an output that nobody trains
BRANCHES = "".join(
    [
        data((8, 4, 32, 32)),
        conv("a", "x", 16, 3, "pad: 1"),
        layer("ra", "ReLU", "a", top="a"),
        conv("b", "a", 16, 3, "pad: 1").replace("convolution_param", 'param { name: "w" } convolution_param'),
        layer("sb", "Sigmoid", "b"),
        layer("db", "Dropout", "sb", "dropout_param { dropout_ratio: 0.3 }"),
        conv("c", "db", 16, 3, "pad: 1").replace(
            "convolution_param", 'param { name: "w" } convolution_param'
        ),
        layer("elu", "ELU", "c"),
        layer("pb", "Pooling", "elu", HALF),
        layer("d", "Pooling", "a", "pooling_param { pool: AVE kernel_size: 4 stride: 4 }"),
        layer("e", "Power", "d", "power_param { scale: 2 shift: 0.5 }"),
        layer("f", "Flatten", "e"),
        dense("fe", "f", 10),
        loss("loss1", "fe", 0.3),
        layer("fb", "Flatten", "pb"),
        dense("g", "fb", 10),
        loss("loss2", "g"),
        layer("probability", "Softmax", "g"),
    ]
)
NETS = {"alexnet": ALEXNET, "vgg": VGG, "branches": BRANCHES}


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is taken again is full of NaN."""
    monkeypatch.setattr(blobs, "empty", lambda shape, dtype: np.full(shape, np.nan, dtype))


@pytest.fixture(autouse=True)
def undivided(request: pytest.FixtureRequest) -> Iterator[None]:
    """Divisions take long to look for."""
    with settings(division=getattr(request, "param", "undivided")):
        yield


def make(text: str, **options: Any) -> Net:
    return load_net(text, "TRAIN", seed=7, **options)


def inputs(net: Net, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    x = random.standard_normal(net.blobs["x"].shape)
    return {"x": x, "t": random.integers(0, 10, net.blobs["t"].shape)}


def iterate(net: Net, count: int = 3) -> tuple[list[float], list[Array], list[Array]]:
    """Losses, outputs and gradients of some iterations, with a step down between."""
    losses, outputs, gradients = [], [], []
    for number in range(count):
        net.clear_gradients()
        found = net.forward(**(inputs(net, number) if net.inputs else {}))
        losses.append(net.loss)
        outputs += [values.copy() for values in found.values()]
        net.backward()
        for parameter in net.parameters:
            gradients.append(parameter.blob.diff.copy())
            parameter.blob.data[...] -= 0.01 * parameter.blob.diff
    return losses, outputs, gradients


def assert_same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert found[0] == expected[0]
    for one, other in zip((*found[1], *found[2]), (*expected[1], *expected[2]), strict=True):
        np.testing.assert_array_equal(one, other)


def measured_peak(net: Net) -> int:
    """The most bytes that an iteration takes beside those that are always there."""
    plan = net.memory_plan
    assert plan is not None
    values = inputs(net, 0) if net.inputs else {}
    for _ in range(2):
        net.forward(**values)
        net.backward()
    tracemalloc.start()
    try:
        # the scratch memory and whatever else was there before tracing began is not seen: it is given back
        assert net._memory is not None
        net._memory.handle.trim()
        net.forward(**values)
        net.backward()
        net._memory.handle.trim()
        base, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(2):
            net.forward(**values)
            net.backward()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most - base


@pytest.mark.parametrize("name", [*NETS, "lenet"])
def test_the_peak_is_what_was_predicted(name: str) -> None:
    text = NETS.get(name, LENET)
    largest = make(text).limit_memory("1 TiB")
    assert largest is not None
    smallest = make(text).limit_memory("least")
    assert smallest is not None
    assert smallest.peak < largest.peak
    for part in (0.0, 0.3, 0.7, 1.0):
        limit = round(smallest.peak + part * (largest.peak - smallest.peak) * 1.02) + 64
        net = make(text)
        try:
            plan = net.limit_memory(limit)
        except InvalidArgument:
            # timings of another run led to another front; the least is as said, but for a few bytes
            assert part == 0.0
            continue
        assert plan is not None
        assert plan.peak <= limit
        found = measured_peak(net)
        predicted = plan.peak - plan.chain.constant
        assert abs(found - predicted) <= 0.05 * predicted, (name, part, found, predicted)


@pytest.mark.parametrize("name", NETS)
def test_results_are_those_without_a_limit(name: str) -> None:
    """One algorithm for all, so that whatever else is chosen all bits must agree."""
    options = {"algorithm": "direct"}
    expected = iterate(make(NETS[name], **options))
    net = make(NETS[name], **options)
    smallest = net.limit_memory("least")
    assert smallest is not None
    assert smallest.rerun
    assert_same(iterate(net), expected)
    largest = make(NETS[name], **options).limit_memory("1 TiB")
    assert largest is not None
    assert not largest.rerun
    for part in (0.25, 0.6, 1.0):
        net = make(NETS[name], **options)
        net.limit_memory(round(smallest.peak * 1.01 + part * (largest.peak - smallest.peak)))
        assert_same(iterate(net), expected)


@pytest.mark.parametrize("name", NETS)
def test_with_enough_memory_the_fastest_algorithms_run(name: str) -> None:
    expected = iterate(make(NETS[name]), 2)
    net = make(NETS[name])
    plan = net.limit_memory("1 TiB")
    assert plan is not None
    assert not plan.rerun
    assert_same(iterate(net, 2), expected)


def test_a_net_is_planned_alike_each_time() -> None:
    """So training that goes on from a snapshot goes on exactly."""
    largest = make(ALEXNET).limit_memory("1 TiB")
    assert largest is not None
    one, two = (make(ALEXNET).limit_memory(round(0.8 * largest.peak)) for _ in range(2))
    assert one is not None
    assert two is not None
    assert one.segments == two.segments
    assert [p.workspace for p in one.forward] == [p.workspace for p in two.forward]
    assert [[p.workspace for p in points] for points in one.backward] == [
        [p.workspace for p in points] for points in two.backward
    ]


@pytest.mark.parametrize("more", ["", "force_backward: true"])
def test_loss_weights_in_the_middle_views_and_splits(more: str) -> None:
    x = np.random.default_rng(4).standard_normal((2, 3))
    results = []
    for limit in (None, "least"):
        net = load_net(more + WEIGHTED, "TRAIN", dtype="f64", seed=3)
        net.limit_memory(limit)
        for _ in range(2):
            net.forward(x=x)
            net.backward()
        results.append([net.loss, net.blobs["x"].diff, *(p.blob.diff for p in net.parameters)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_measured_times_may_be_planned_by() -> None:
    net, other = make(VGG, algorithm="direct"), make(VGG, algorithm="direct")
    plan = net.limit_memory("1 TiB", is_timed=True)
    assert plan is not None
    assert plan.seconds > 0
    assert_same(iterate(net, 1), iterate(other, 1))


def test_less_workspace_gives_almost_the_same() -> None:
    expected = iterate(make(ALEXNET), 1)
    net = make(ALEXNET)
    net.limit_memory("least")
    found = iterate(net, 1)
    for one, other in zip(found[2], expected[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4 * np.abs(other).max())


@pytest.mark.parametrize("undivided", ["power_of_two"], indirect=True)
def test_convolutions_are_divided_where_that_saves_time(tmp_path: Path) -> None:
    # a store of its own: times that others measured may change what is fast
    with settings(cache_dir=tmp_path):
        largest = make(LENET).limit_memory("1 TiB")
        assert largest is not None
        with settings(division="undivided"):
            least = make(LENET).limit_memory("least")
            assert least is not None
            limit = round(0.8 * least.peak + 0.2 * largest.peak)
            slower = make(LENET).limit_memory(limit)
        net, expected = make(LENET), iterate(make(LENET), 1)
        plan = net.limit_memory(limit)
    assert slower is not None
    assert plan is not None
    assert largest.seconds < plan.seconds < slower.seconds
    assert plan.peak <= limit
    found = iterate(net, 1)
    for one, other in zip(found[2], expected[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4 * np.abs(other).max())


def test_a_net_that_only_runs_forward() -> None:
    net = make(VGG)
    expected = net.forward(**inputs(net, 0))["loss"].copy()
    plan = net.limit_memory("least", is_trained=False)
    assert plan is not None
    assert not plan.rerun
    np.testing.assert_allclose(net.forward(**inputs(net, 0))["loss"], expected, rtol=1e-5)
    with pytest.raises(InvalidArgument, match="for forward passes only"):
        net.backward()


def test_too_small_a_limit_leaves_the_net_as_it_was() -> None:
    net, other = make(ALEXNET), make(ALEXNET)
    with pytest.raises(InvalidArgument, match="needs at least") as error:
        net.limit_memory("2 MiB")
    assert "2 MiB" in str(error.value)
    assert net.memory_plan is None
    assert_same(iterate(net, 2), iterate(other, 2))


def test_the_limit_can_be_changed_and_lifted() -> None:
    net, other = make(BRANCHES), make(BRANCHES)
    net.limit_memory("least")
    net.limit_memory("1 TiB")
    first = iterate(net, 2)
    net.limit_memory(None)
    assert net.memory_plan is None
    second = iterate(net, 1)
    expected = iterate(other, 2), iterate(other, 1)
    assert_same(first, expected[0])
    assert_same(second, expected[1])
    assert net.blobs["sb"].data.any()


def test_released_blobs_say_so() -> None:
    net = make(BRANCHES)
    net.limit_memory("least")
    net.forward(**inputs(net, 0))
    net.backward()
    with pytest.raises(InvalidArgument, match="limit on memory"):
        _ = net.blobs["sb"].data
    assert net.blobs["sb"].shape == (8, 16, 32, 32)
    with pytest.raises(InvalidArgument, match="needs a forward pass"):
        net.backward()
    np.testing.assert_array_equal(net.blobs["x"].data, inputs(net, 0)["x"].astype(np.float32))
    assert set(net.outputs) == {"loss1", "loss2", "probability"}
    assert np.isfinite(net.blobs["probability"].data).all()


def test_other_shapes_are_planned_anew() -> None:
    options = {"algorithm": "direct"}
    net, other = make(VGG, **options), make(VGG, **options)
    first = net.limit_memory("least")
    assert first is not None
    for each in (net, other):
        each.reshape(x=(2, 3, 32, 32), t=(2,))
    assert_same(iterate(net), iterate(other))
    second = net.memory_plan
    assert second is not None
    assert second.peak < first.peak
    net.limit_memory(first.peak)
    net.reshape(x=(64, 3, 32, 32), t=(64,))
    with pytest.raises(InvalidArgument, match="needs at least"):
        net.forward(**inputs(net, 0))
    net.reshape(x=(2, 3, 32, 32), t=(2,))
    assert_same(iterate(net), iterate(other))


def test_gradients_of_inputs_stay() -> None:
    net, other = make("force_backward: true " + VGG), make("force_backward: true " + VGG)
    net.limit_memory("1 TiB")
    iterate(net, 1)
    iterate(other, 1)
    np.testing.assert_array_equal(net.blobs["x"].diff, other.blobs["x"].diff)
    assert net.blobs["x"].diff.any()


def test_planning_leaves_weights_gradients_and_random_numbers_alone() -> None:
    net, other = make(ALEXNET), make(ALEXNET)
    for each in (net, other):
        iterate(each, 1)
    net.limit_memory("1 TiB")
    for one, two in zip(net.parameters, other.parameters, strict=True):
        np.testing.assert_array_equal(one.blob.data, two.blob.data)
        np.testing.assert_array_equal(one.blob.diff, two.blob.diff)
    assert_same(iterate(net, 1), iterate(other, 1))


def test_layers_in_place_are_one_step() -> None:
    net = make(ALEXNET)
    layout = lay_out(net)
    names = ["+".join(net.layers[i].name for i in step) for step in layout.steps]
    assert "conv1+relu1" in names
    assert "fc6+relu6+drop6" in names
    assert "relu7" in names
    by_name = {buffer.name: buffer for buffer in layout.buffers}
    at = {name: step for step, name in enumerate(names)}
    # relu1 reads its own result in the backward pass, and norm1 its bottom
    assert by_name["conv1"].needed == (at["conv1+relu1"], at["norm1"])
    # fc7 reads its bottom; what relu6 and drop6 need they keep beside it
    assert by_name["fc6"].needed == (at["fc7"],)
    assert by_name["relu6/output"].needed == (at["fc6+relu6+drop6"],)
    assert "drop6/mask" not in by_name
    assert by_name["relu6/output"].bytes == by_name["fc6"].bytes
