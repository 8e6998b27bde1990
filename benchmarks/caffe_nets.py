"""Nets as prototxt text for benchmarks: CaffeNet, GoogLeNet and ResNet-50 as they are trained, on constant images."""

from __future__ import annotations

from collections.abc import Sequence


def _layer(name: str, kind: str, bottom: str | Sequence[str], top: str | None = None, rest: str = "") -> str:
    bottoms = [bottom] if isinstance(bottom, str) else bottom
    given = " ".join(f'bottom: "{one}"' for one in bottoms)
    return f'layer {{ name: "{name}" type: "{kind}" {given} top: "{top or name}" {rest} }}\n'


def _source(batch: int, side: int, classes: int) -> str:
    return (
        'layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param { '
        f"shape {{ dim: {batch} dim: 3 dim: {side} dim: {side} }} shape {{ dim: {batch} }} "
        'data_filler { type: "constant" value: 0.5 } '
        f'data_filler {{ type: "constant" value: {classes // 2} }} }} }}\n'
    )


def _conv(name: str, bottom: str, outputs: int, kernel: int, rest: str = "") -> str:
    parameter = f'num_output: {outputs} kernel_size: {kernel} {rest} weight_filler {{ type: "msra" }}'
    return _layer(name, "Convolution", bottom, rest=f"convolution_param {{ {parameter} }}")


def _relu(name: str, blob: str) -> str:
    return _layer(name, "ReLU", blob, blob)


def _pool(name: str, bottom: str, kernel: int, stride: int, pad: int = 0, how: str = "MAX") -> str:
    rest = f"pooling_param {{ pool: {how} kernel_size: {kernel} stride: {stride} pad: {pad} }}"
    return _layer(name, "Pooling", bottom, rest=rest)


def _product(name: str, bottom: str, outputs: int) -> str:
    parameter = f'num_output: {outputs} weight_filler {{ type: "xavier" }}'
    return _layer(name, "InnerProduct", bottom, rest=f"inner_product_param {{ {parameter} }}")


def _norm(name: str, bottom: str) -> str:
    return _layer(name, "LRN", bottom, rest="lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")


def _dropout(name: str, blob: str, ratio: float) -> str:
    return _layer(name, "Dropout", blob, blob, f"dropout_param {{ dropout_ratio: {ratio} }}")


def _loss(name: str, bottom: str, weight: float = 1) -> str:
    return _layer(name, "SoftmaxWithLoss", [bottom, "label"], rest=f"loss_weight: {weight}")


def caffenet(batch: int) -> str:
    """The reference CaffeNet: 60,965,224 weights."""
    return "".join(
        (
            _source(batch, 227, 1000),
            _conv("conv1", "data", 96, 11, "stride: 4"),
            _relu("relu1", "conv1"),
            _pool("pool1", "conv1", 3, 2),
            _norm("norm1", "pool1"),
            _conv("conv2", "norm1", 256, 5, "pad: 2 group: 2"),
            _relu("relu2", "conv2"),
            _pool("pool2", "conv2", 3, 2),
            _norm("norm2", "pool2"),
            _conv("conv3", "norm2", 384, 3, "pad: 1"),
            _relu("relu3", "conv3"),
            _conv("conv4", "conv3", 384, 3, "pad: 1 group: 2"),
            _relu("relu4", "conv4"),
            _conv("conv5", "conv4", 256, 3, "pad: 1 group: 2"),
            _relu("relu5", "conv5"),
            _pool("pool5", "conv5", 3, 2),
            _product("fc6", "pool5", 4096),
            _relu("relu6", "fc6"),
            _dropout("drop6", "fc6", 0.5),
            _product("fc7", "fc6", 4096),
            _relu("relu7", "fc7"),
            _dropout("drop7", "fc7", 0.5),
            _product("fc8", "fc7", 1000),
            _loss("loss", "fc8"),
        )
    )


def _inception(name: str, bottom: str, sizes: tuple[int, int, int, int, int, int]) -> str:
    one, small3, big3, small5, big5, pooled = sizes
    parts = [
        _conv(f"{name}/1x1", bottom, one, 1),
        _relu(f"{name}/relu_1x1", f"{name}/1x1"),
        _conv(f"{name}/3x3_reduce", bottom, small3, 1),
        _relu(f"{name}/relu_3x3_reduce", f"{name}/3x3_reduce"),
        _conv(f"{name}/3x3", f"{name}/3x3_reduce", big3, 3, "pad: 1"),
        _relu(f"{name}/relu_3x3", f"{name}/3x3"),
        _conv(f"{name}/5x5_reduce", bottom, small5, 1),
        _relu(f"{name}/relu_5x5_reduce", f"{name}/5x5_reduce"),
        _conv(f"{name}/5x5", f"{name}/5x5_reduce", big5, 5, "pad: 2"),
        _relu(f"{name}/relu_5x5", f"{name}/5x5"),
        _pool(f"{name}/pool", bottom, 3, 1, 1),
        _conv(f"{name}/pool_proj", f"{name}/pool", pooled, 1),
        _relu(f"{name}/relu_pool_proj", f"{name}/pool_proj"),
    ]
    ends = [f"{name}/{part}" for part in ("1x1", "3x3", "5x5", "pool_proj")]
    return "".join(parts) + _layer(f"{name}/output", "Concat", ends)


def _side_loss(name: str, bottom: str) -> str:
    return "".join(
        (
            _pool(f"{name}/ave_pool", bottom, 5, 3, 0, "AVE"),
            _conv(f"{name}/conv", f"{name}/ave_pool", 128, 1),
            _relu(f"{name}/relu_conv", f"{name}/conv"),
            _product(f"{name}/fc", f"{name}/conv", 1024),
            _relu(f"{name}/relu_fc", f"{name}/fc"),
            _dropout(f"{name}/drop_fc", f"{name}/fc", 0.7),
            _product(f"{name}/classifier", f"{name}/fc", 1000),
            _loss(f"{name}/loss", f"{name}/classifier", 0.3),
        )
    )


_SIZES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(batch: int) -> str:
    """GoogLeNet with its two side losses: 13,378,280 weights."""
    parts = [
        _source(batch, 224, 1000),
        _conv("conv1", "data", 64, 7, "pad: 3 stride: 2"),
        _relu("relu1", "conv1"),
        _pool("pool1", "conv1", 3, 2),
        _norm("norm1", "pool1"),
        _conv("conv2_reduce", "norm1", 64, 1),
        _relu("relu2_reduce", "conv2_reduce"),
        _conv("conv2", "conv2_reduce", 192, 3, "pad: 1"),
        _relu("relu2", "conv2"),
        _norm("norm2", "conv2"),
        _pool("pool2", "norm2", 3, 2),
    ]
    blob = "pool2"
    for name, sizes in _SIZES.items():
        if name in ("4a", "5a"):
            parts.append(_pool(f"pool{int(name[0]) - 1}", blob, 3, 2))
            blob = f"pool{int(name[0]) - 1}"
        parts.append(_inception(f"inception_{name}", blob, sizes))
        blob = f"inception_{name}/output"
        if name in ("4a", "4d"):
            parts.append(_side_loss("loss1" if name == "4a" else "loss2", blob))
    parts += [
        _pool("pool5", blob, 7, 1, 0, "AVE"),
        _dropout("drop5", "pool5", 0.4),
        _product("classifier", "pool5", 1000),
        _loss("loss3", "classifier"),
    ]
    return "".join(parts)


def _normalized(name: str, bottom: str, outputs: int, kernel: int, rest: str, is_rectified: bool) -> str:
    parts = [
        _conv(name, bottom, outputs, kernel, f"bias_term: false {rest}"),
        _layer(f"bn_{name}", "BatchNorm", name, name),
        _layer(f"scale_{name}", "Scale", name, name, "scale_param { bias_term: true }"),
    ]
    return "".join(parts) + (_relu(f"relu_{name}", name) if is_rectified else "")


def resnet50(batch: int) -> str:
    """ResNet-50 with the strides in the first convolution of a block, as its authors' file: 25,557,032 weights that a
    solver trains."""
    parts = [
        _source(batch, 224, 1000),
        _normalized("conv1", "data", 64, 7, "pad: 3 stride: 2", True),
        _pool("pool1", "conv1", 3, 2),
    ]
    blob = "pool1"
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
        for block in range(blocks):
            name = f"res{stage}{'abcdef'[block]}"
            stride = "stride: 2" if block == 0 and stage > 2 else ""
            shortcut = blob
            if block == 0:
                shortcut = f"{name}_branch1"
                parts.append(_normalized(shortcut, blob, 4 * width, 1, stride, False))
            parts += [
                _normalized(f"{name}_branch2a", blob, width, 1, stride, True),
                _normalized(f"{name}_branch2b", f"{name}_branch2a", width, 3, "pad: 1", True),
                _normalized(f"{name}_branch2c", f"{name}_branch2b", 4 * width, 1, "", False),
                _layer(name, "Eltwise", [shortcut, f"{name}_branch2c"]),
                _relu(f"{name}_relu", name),
            ]
            blob = name
    parts += [
        _pool("pool5", blob, 7, 1, 0, "AVE"),
        _product("fc1000", "pool5", 1000),
        _loss("loss", "fc1000"),
    ]
    return "".join(parts)


NETS = {"caffenet": caffenet, "googlenet": googlenet, "resnet50": resnet50}
