"""Compiled nets: as the net in double precision layer by layer, whatever is fused; the net is left as it is."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from jitdnn.caffe import CompiledNet, Net, NetParameter, NetState, load_deployed, load_net, parse
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported

# of an output's largest value, as for every net
TOLERANCE = 2e-5

#: layers that read `data` (2, 6, 9, 8), `other` of the same shape, `factors` (2, 6) or `small` (2, 6, 5, 4)
TRACED = {
    "AbsVal": "",
    "Axpy": 'bottom: "factors" bottom: "data" bottom: "other"',
    "BNLL": "",
    "BatchNorm": "",
    "Bias": "bias_param { filler { type: 'gaussian' } }",
    "Bias/2": 'bottom: "data" bottom: "factors" bias_param { axis: 0 }',
    "Clip": "clip_param { min: -0.5 max: 0.7 }",
    "Concat": 'bottom: "data" bottom: "other"',
    "Concat/2": 'bottom: "data" bottom: "other" concat_param { axis: -2 }',
    "Convolution": "convolution_param { num_output: 4 kernel_size: 3 pad: 1 stride: 2 group: 2 "
    "weight_filler { type: 'msra' } bias_filler { type: 'gaussian' } }",
    "Convolution/2": "convolution_param { axis: 2 num_output: 3 kernel_size: 3 weight_filler { type: 'msra' } }",
    "Crop": 'bottom: "data" bottom: "small" crop_param { offset: 2 offset: 3 }',
    "Deconvolution": "convolution_param { num_output: 4 kernel_size: 4 pad: 1 stride: 2 group: 2 "
    "weight_filler { type: 'msra' } bias_filler { type: 'gaussian' } }",
    "DepthwiseConvolution": "convolution_param { num_output: 6 kernel_size: 3 pad: 2 dilation: 2 group: 6 "
    "weight_filler { type: 'msra' } }",
    "Dropout": "",
    "ELU": "elu_param { alpha: 0.7 }",
    "Eltwise": 'bottom: "data" bottom: "other" eltwise_param { coeff: 2 coeff: -1 }',
    "Eltwise/2": 'bottom: "data" bottom: "other" eltwise_param { operation: PROD }',
    "Eltwise/3": 'bottom: "data" bottom: "other" bottom: "data" eltwise_param { operation: MAX }',
    "Exp": "exp_param { base: 2 scale: 0.5 shift: 1 }",
    "Flatten": "flatten_param { axis: 2 }",
    "InnerProduct": "inner_product_param { num_output: 7 weight_filler { type: 'xavier' } "
    "bias_filler { type: 'gaussian' } }",
    "InnerProduct/2": "inner_product_param { num_output: 3 axis: 2 transpose: true weight_filler { type: 'xavier' } }",
    "Interp": "interp_param { height: 13 width: 11 pad_beg: -1 }",
    "LRN": "lrn_param { local_size: 3 alpha: 0.5 k: 2 }",
    "LRN/2": "lrn_param { local_size: 3 norm_region: WITHIN_CHANNEL alpha: 0.5 }",
    "Log": "log_param { base: 10 scale: 0.1 shift: 3 }",
    "MVN": "mvn_param { across_channels: true }",
    "MVN/2": "mvn_param { normalize_variance: false }",
    "Normalize": "norm_param { across_spatial: false scale_filler { value: 20 } channel_shared: false }",
    "Normalize/2": "",
    "PReLU": "",
    "PReLU/2": "prelu_param { channel_shared: true }",
    "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }",
    "Pooling": "pooling_param { kernel_size: 3 stride: 2 }",
    "Pooling/2": "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }",
    "Pooling/3": "pooling_param { pool: AVE global_pooling: true }",
    "Pooling/4": "pooling_param { kernel_size: 1 stride: 3 }",
    "Power": "power_param { power: 2 scale: 0.5 shift: 1 }",
    "Power/2": "power_param { scale: 0.5 shift: 1 }",
    "Power/3": "power_param { power: 0 }",
    "ReLU": "relu_param { negative_slope: 0.1 }",
    "ReLU/2": "",
    "ReLU6": "",
    "Reduction": "reduction_param { axis: 2 operation: MEAN coeff: 3 }",
    "Reduction/2": "reduction_param { axis: 1 operation: SUMSQ }",
    "Reduction/3": "reduction_param { operation: ASUM }",
    "Reshape": "reshape_param { shape { dim: 0 dim: -1 dim: 4 } }",
    "Scale": "scale_param { bias_term: true filler { type: 'gaussian' } bias_filler { type: 'gaussian' } }",
    "Scale/2": "scale_param { axis: 1 num_axes: 2 filler { type: 'gaussian' } }",
    "Scale/3": 'bottom: "data" bottom: "factors" scale_param { axis: 0 bias_term: true bias_filler { value: 2 } }',
    "ShuffleChannel": "shuffle_channel_param { group: 3 }",
    "Sigmoid": "",
    "Softmax": "",
    "Softmax/2": "softmax_param { axis: -1 }",
    "Swish": "swish_param { beta: 1.5 }",
    "TanH": "",
    "Threshold": "threshold_param { threshold: 0.2 }",
    "Tile": "tile_param { axis: 2 tiles: 3 }",
}
BY_HOST = {
    "ArgMax": "argmax_param { axis: 1 }",
    "Im2col": "convolution_param { kernel_size: 3 }",
    "SPP": "spp_param { pyramid_height: 2 pool: MAX }",
    "Pooling/5": "pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }",
}


def branches(layers: dict[str, str]) -> str:
    """A net with all those layers side by side, and some that have several tops."""
    shapes = {"data": (2, 6, 9, 8), "other": (2, 6, 9, 8), "factors": (2, 6), "small": (2, 6, 5, 4)}
    text = ""
    for name, shape in shapes.items():
        dims = " ".join(f"dim: {extent}" for extent in shape)
        text += (
            f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'
        )
    for name, rest in layers.items():
        given = "" if "bottom" in rest else 'bottom: "data"'
        rest = rest.replace("'", '"')
        text += f'layer {{ name: "{name}" type: "{name.partition("/")[0]}" top: "{name}" {given} {rest} }}\n'
    return text


SEVERAL = """
layer { name: "cut" type: "Slice" bottom: "data" top: "cut1" top: "cut2" top: "cut3"
        slice_param { slice_point: 1 slice_point: 4 } }
layer { name: "halves" type: "Slice" bottom: "other" top: "half1" top: "half2" slice_param { axis: -1 } }
layer { name: "masked" type: "Pooling" bottom: "data" top: "greatest" top: "mask" pooling_param { kernel_size: 2 } }
"""


def values(net: Net, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(net.blobs[name].shape).astype(np.float32) for name in net.inputs}


def statistics(net: Net) -> None:
    """As after a training."""
    random = np.random.default_rng(5)
    for layer in net.layers:
        if layer.type == "BatchNorm":
            means, variances, weight = layer.weights
            means.data[...] = random.normal(size=means.shape)
            variances.data[...] = random.uniform(0.5, 2, variances.shape)
            weight.data[...] = 4.0


def reference(net: Net, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs in double precision, nothing fused."""
    exact = Net(net.parameter, net.state, seed=0, dtype="f64", fuse=False)
    for name, blobs in exact.weights.items():
        for blob, other in zip(blobs, net.weights[name], strict=True):
            blob.data[...] = other.data
    exact.reshape(**{name: array.shape for name, array in inputs.items()})
    return {name: array.copy() for name, array in exact.forward(**inputs).items()}


def close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        assert found[name].dtype == np.float32, name
        assert np.abs(found[name] - array).max() <= TOLERANCE * np.abs(array).max(), name


def test_layers_that_are_traced() -> None:
    net = load_net(branches(TRACED) + SEVERAL, seed=2)
    statistics(net)
    compiled, inputs = net.compiled(), values(net, 1)
    found = compiled.forward(**inputs)
    close(found, reference(net, inputs))
    assert " 0 functions of the host" in compiled.explain(measure=False, **inputs)


def test_layers_that_the_host_runs() -> None:
    net = load_net(branches(BY_HOST), seed=2)
    inputs = {name: np.abs(array) for name, array in values(net, 1).items()}
    compiled = net.compiled()
    close(compiled.forward(**{n: inputs[n] for n in compiled.inputs}), reference(net, inputs))
    told = compiled.explain(measure=False, **{n: inputs[n] for n in compiled.inputs})
    assert f" {len(BY_HOST)} functions of the host" in told
    assert "ArgMax" in told


CHAIN = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: 4 kernel_size: 3 pad: 1
        weight_filler { type: "msra" } bias_filler { type: "gaussian" } } }
layer { name: "bn" type: "BatchNorm" bottom: "c" top: "c" }
layer { name: "scale" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true filler { type: "gaussian" } } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "d" type: "Convolution" bottom: "c" top: "d" convolution_param { num_output: 4 kernel_size: 1
        weight_filler { type: "msra" } } }
layer { name: "sum" type: "Eltwise" bottom: "c" bottom: "d" top: "sum" }
layer { name: "relu2" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "pool" type: "Pooling" bottom: "sum" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 5
        weight_filler { type: "msra" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


@pytest.fixture(scope="module")
def chain() -> tuple[Net, CompiledNet]:
    net = load_net(CHAIN, seed=4)
    statistics(net)
    return net, net.compiled()


def test_all_that_can_be_is_fused(chain: tuple[Net, CompiledNet]) -> None:
    net, compiled = chain
    inputs = values(net, 3)
    close(compiled.forward(**inputs), reference(net, inputs))
    # two convolutions with all behind them, pooling, product, softmax
    assert compiled.explain(measure=False, **inputs).startswith("5 kernels")


@pytest.mark.parametrize("shape", [(3, 3, 8, 8), (1, 3, 7, 11)])
def test_other_shapes_need_no_reshape(chain: tuple[Net, CompiledNet], shape: tuple[int, ...]) -> None:
    net, compiled = chain
    x = np.random.default_rng(1).standard_normal(shape)
    close(compiled.forward(data=x), reference(net, {"data": x}))
    assert net.blobs["data"].shape == (1, 3, 8, 8)


def test_the_net_stays_as_it_is(chain: tuple[Net, CompiledNet]) -> None:
    net, compiled = chain
    first, second = values(net, 1)["data"], values(net, 2)["data"]
    net.forward(data=first)
    before = {name: blob.data.copy() for name, blob in net.blobs.items()}
    kept = compiled.forward(data=second)["prob"]
    again = compiled.forward(data=second)["prob"]
    assert not np.shares_memory(kept, again)
    assert (kept == again).all()
    for name, blob in net.blobs.items():
        assert (blob.data == before[name]).all(), name
    # an input that is not given is what the blob holds
    assert (compiled.forward()["prob"] == compiled.forward(data=first)["prob"]).all()


def test_outputs_that_are_asked_for(chain: tuple[Net, CompiledNet]) -> None:
    net, _ = chain
    inputs = values(net, 1)
    found = net.compiled(["sum", "c"]).forward(**inputs)
    net.forward(**inputs)
    # in place layers included, as the blobs have it
    close(found, {name: net.blobs[name].data for name in ("sum", "c")})


def test_threads_share_it(chain: tuple[Net, CompiledNet]) -> None:
    net, compiled = chain
    inputs = [values(net, seed) for seed in range(4)]
    expected = [compiled.forward(**one)["prob"] for one in inputs]
    wrong: list[int] = []

    def run(number: int) -> None:
        for _ in range(50):
            if (compiled.forward(**inputs[number])["prob"] != expected[number]).any():
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_state_goes_on_in_recurrent_layers() -> None:
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 2 dim: 4 } } }
    layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 3 dim: 2 } } }
    layer { name: "half" type: "Power" bottom: "x" top: "half" power_param { scale: 0.5 } }
    layer { name: "lstm" type: "LSTM" bottom: "half" bottom: "cont" top: "lstm" recurrent_param { num_output: 3
            weight_filler { type: "uniform" min: -0.5 max: 0.5 } } }
    layer { name: "y" type: "TanH" bottom: "lstm" top: "y" }
    """
    net = load_net(text, seed=1)
    compiled = net.compiled()
    x = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    for cont in (0.0, 1.0, 1.0):
        inputs = {"x": x, "cont": np.full((3, 2), cont, np.float32)}
        close(compiled.forward(**inputs), {k: v.copy() for k, v in net.forward(**inputs).items()})


def test_shapes_that_the_forward_pass_makes() -> None:
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
    layer { name: "which" type: "Input" top: "which" input_param { shape { dim: 4 } } }
    layer { name: "double" type: "Power" bottom: "x" top: "double" power_param { scale: 2 } }
    layer { name: "some" type: "Filter" bottom: "double" bottom: "which" top: "some" }
    layer { name: "y" type: "TanH" bottom: "some" top: "y" }
    """
    net = load_net(text)
    compiled = net.compiled()
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    for which in ((1, 0, 0, 1), (1, 1, 1, 0), (0, 0, 1, 0)):
        found = compiled.forward(x=x, which=np.array(which, np.float32))["y"]
        assert np.allclose(found, np.tanh(2 * x[np.array(which) > 0].astype(np.float64)), atol=1e-6)


def test_layers_of_data_run_first(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (6, 1, 4, 4), np.uint8)
    np.savez(tmp_path / "images.npz", data=images, label=np.arange(6) % 3)
    text = f"""
    layer {{ name: "d" type: "Data" top: "data" top: "label" transform_param {{ scale: 0.01 }}
            data_param {{ source: "{tmp_path}/images.npz" batch_size: 2 }} }}
    layer {{ name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
            inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" }}
    layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }}
    """
    net, other = load_net(text, seed=1), load_net(text, seed=1)
    compiled = net.compiled()
    assert compiled.inputs == ()
    for _ in range(4):  # around the end
        close(compiled.forward(), {k: v.copy() for k, v in other.forward().items()})


def test_loaded_from_files(chain: tuple[Net, CompiledNet], tmp_path: Path) -> None:
    net, _compiled = chain
    (tmp_path / "net.prototxt").write_text(CHAIN)
    net.save_weights(tmp_path / "net.caffemodel")
    loaded = load_deployed(tmp_path / "net.prototxt", tmp_path / "net.caffemodel", outputs=["fc"], threads=1)
    x = values(net, 1)["data"]
    assert np.allclose(loaded.forward(data=x)["fc"], net.compiled(["fc"]).forward(data=x)["fc"])
    assert loaded.inputs == ("data",)
    assert "fc" in repr(loaded)


def test_what_is_refused(chain: tuple[Net, CompiledNet]) -> None:
    net, compiled = chain
    with pytest.raises(InvalidArgument, match="phase TEST"):
        Net(parse(CHAIN, NetParameter), NetState(phase="TRAIN")).compiled()
    with pytest.raises(InvalidArgument, match="shapes_only"):
        load_net(CHAIN, shapes_only=True).compiled()
    with pytest.raises(NotSupported, match="algorithm='direct'"):
        load_net(CHAIN, algorithm="direct").compiled()
    with pytest.raises(InvalidArgument, match="no blob 'nothing'"):
        net.compiled(["nothing"])
    with pytest.raises(InvalidArgument, match="'image' is no input"):
        compiled.forward(image=np.zeros((1, 3, 8, 8)))
    with pytest.raises(InvalidShape, match="4 axes"):
        compiled.forward(data=np.zeros((3, 8, 8)))
    with pytest.raises((InvalidShape, InvalidArgument), match=r"channels|4"):
        compiled.forward(data=np.zeros((1, 4, 8, 8)))
