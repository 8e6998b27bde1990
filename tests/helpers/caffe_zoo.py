"""Small nets of the kinds that are well known, as programs: the building blocks of the papers at few channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitdnn.caffe import NetParameter
from jitdnn.caffe.pycaffe import NetSpec
from jitdnn.caffe.pycaffe import layers as L  # noqa: N812
from jitdnn.caffe.pycaffe import params as P  # noqa: N812

MSRA = {"type": "msra"}
NOISE = {"type": "gaussian", "std": 0.1}


def image(n: Any, channels: int, height: int, width: int) -> Any:
    n.data = L.Input(shape={"dim": [2, channels, height, width]})
    return n.data


def conv(n: Any, name: str, x: Any, outputs: int, kernel: int = 3, **fields: Any) -> Any:
    """A convolution that keeps the extents at stride 1, with a bias."""
    fields = {"pad": kernel // 2, "bias_filler": NOISE} | fields
    n[name] = L.Convolution(x, num_output=outputs, kernel_size=kernel, weight_filler=MSRA, **fields)
    return n[name]


def relu(n: Any, name: str, x: Any, **fields: Any) -> Any:
    n[name] = L.ReLU(x, in_place=True, **fields)
    return n[name]


def conv_relu(n: Any, name: str, x: Any, outputs: int, kernel: int = 3, **fields: Any) -> Any:
    return relu(n, f"{name}/relu", conv(n, name, x, outputs, kernel, **fields))


def normalized(n: Any, name: str, x: Any, *, in_place: bool = True) -> Any:
    """BatchNorm and Scale."""
    n[f"{name}/bn"] = L.BatchNorm(x, in_place=in_place)
    n[f"{name}/scale"] = L.Scale(n[f"{name}/bn"], in_place=True, bias_term=True)
    return n[f"{name}/scale"]


def conv_norm(n: Any, name: str, x: Any, outputs: int, kernel: int = 3, **fields: Any) -> Any:
    return normalized(n, name, conv(n, name, x, outputs, kernel, bias_term=False, **fields))


def pool(n: Any, name: str, x: Any, kernel: int = 3, stride: int = 2, **fields: Any) -> Any:
    n[name] = L.Pooling(x, kernel_size=kernel, stride=stride, **fields)
    return n[name]


def classes(n: Any, x: Any, count: int = 10) -> Any:
    """The mean of each map, a fully connected layer and probabilities."""
    n.pool = L.Pooling(x, pool=P.Pooling.AVE, global_pooling=True)
    n.fc = L.InnerProduct(n.pool, num_output=count, weight_filler=MSRA, bias_filler=NOISE)
    n.prob = L.Softmax(n.fc)


def resnet(n: Any) -> None:
    """Bottlenecks (He et al. 2015)."""
    x = relu(n, "conv1/relu", conv_norm(n, "conv1", image(n, 3, 33, 33), 8, 7, stride=2))
    x = pool(n, "pool1", x)
    for stage, (width, blocks) in enumerate(((4, 2), (8, 2)), start=2):
        for block in range(blocks):
            name, stride = f"res{stage}{'abc'[block]}", 2 if stage > 2 and block == 0 else 1
            short = x
            if block == 0:
                short = conv_norm(n, f"{name}_branch1", x, 4 * width, 1, stride=stride)
            y = relu(n, f"{name}_a/relu", conv_norm(n, f"{name}_branch2a", x, width, 1, stride=stride))
            y = relu(n, f"{name}_b/relu", conv_norm(n, f"{name}_branch2b", y, width))
            y = conv_norm(n, f"{name}_branch2c", y, 4 * width, 1)
            n[name] = L.Eltwise(short, y)
            x = relu(n, f"{name}/relu", n[name])
    classes(n, x)


def mobilenet(n: Any) -> None:
    """Convolutions of each channel, then of all of them at each place (Howard et al. 2017)."""
    x = relu(n, "conv1/relu", conv_norm(n, "conv1", image(n, 3, 31, 35), 8, stride=2))
    for number, (inputs, outputs, stride) in enumerate(((8, 16, 1), (16, 24, 2), (24, 24, 1)), start=2):
        deep = conv_norm(n, f"conv{number}/dw", x, inputs, stride=stride, group=inputs)
        x = conv_norm(n, f"conv{number}/sep", relu(n, f"relu{number}/dw", deep), outputs, 1)
        x = relu(n, f"relu{number}/sep", x)
    classes(n, x)


def squeezenet(n: Any) -> None:
    """Fire modules and no fully connected layer (Iandola et al. 2016)."""
    x = pool(n, "pool1", conv_relu(n, "conv1", image(n, 3, 39, 39), 12, stride=2, pad=0))
    for number, width in ((2, 4), (3, 6)):
        name = f"fire{number}"
        x = conv_relu(n, f"{name}/squeeze1x1", x, width, 1)
        left = conv_relu(n, f"{name}/expand1x1", x, 2 * width, 1)
        right = conv_relu(n, f"{name}/expand3x3", x, 2 * width)
        n[f"{name}/concat"] = L.Concat(left, right)
        x = n[f"{name}/concat"]
    n.drop = L.Dropout(x, dropout_ratio=0.5, in_place=True)
    n.pool10 = L.Pooling(conv_relu(n, "conv10", n.drop, 10, 1), pool=P.Pooling.AVE, global_pooling=True)
    n.prob = L.Softmax(n.pool10)


def densenet(n: Any) -> None:
    """Each layer sees all before it (Huang et al. 2016)."""
    x = conv(n, "conv1", image(n, 3, 24, 24), 8, bias_term=False)
    for block in (1, 2):
        for layer in (1, 2, 3):
            name = f"conv{block}_{layer}"
            y = relu(n, f"{name}/relu", normalized(n, name, x, in_place=False))
            n[f"concat{block}_{layer}"] = L.Concat(x, conv(n, f"{name}/x", y, 4, bias_term=False))
            x = n[f"concat{block}_{layer}"]
        if block == 1:
            x = conv(
                n,
                "transition",
                relu(n, "transition/relu", normalized(n, "transition", x, in_place=False)),
                10,
                1,
            )
            x = pool(n, "transition/pool", x, 2, 2, pool=P.Pooling.AVE)
    classes(n, relu(n, "last/relu", normalized(n, "last", x, in_place=False)))


def fcn(n: Any) -> None:
    """Scores for every pixel by deconvolutions and crops (Long et al. 2014)."""
    data = image(n, 3, 26, 30)
    first = pool(n, "pool1", conv_relu(n, "conv1", data, 8, pad=10), 2)
    second = pool(n, "pool2", conv_relu(n, "conv2", first, 12), 2)
    conv(n, "score2", second, 5, 1)
    up = {
        "num_output": 5,
        "kernel_size": 4,
        "stride": 2,
        "bias_term": False,
        "weight_filler": {"type": "bilinear"},
        "group": 5,
    }
    n.upscore2 = L.Deconvolution(n.score2, convolution_param=up)
    conv(n, "score1", first, 5, 1)
    n.upscore2c = L.Crop(n.upscore2, n.score1, axis=2, offset=1)
    n.fused = L.Eltwise(n.upscore2c, n.score1, operation=P.Eltwise.SUM)
    n.upscore = L.Deconvolution(n.fused, convolution_param=up | {"weight_filler": MSRA, "group": 1})
    n.score = L.Crop(n.upscore, data, axis=2, offset=10)


def inception(n: Any) -> None:
    """Branches side by side and LRN (Szegedy et al. 2014)."""
    x = pool(n, "pool1", conv_relu(n, "conv1", image(n, 3, 37, 37), 8, 5, stride=2))
    n.norm1 = L.LRN(x, local_size=5, alpha=0.01, beta=0.75)
    x = n.norm1
    for name in ("3a", "3b"):
        name = f"inception_{name}"
        one = conv_relu(n, f"{name}/1x1", x, 4, 1)
        three = conv_relu(n, f"{name}/3x3", conv_relu(n, f"{name}/3x3_reduce", x, 3, 1), 6)
        five = conv_relu(n, f"{name}/5x5", conv_relu(n, f"{name}/5x5_reduce", x, 4, 1), 3, 5)
        pooled = pool(n, f"{name}/pool", x, 3, 1, pad=1)
        n[f"{name}/output"] = L.Concat(one, three, five, conv_relu(n, f"{name}/pool_proj", pooled, 3, 1))
        x = n[f"{name}/output"]
    x = pool(n, "pool4", x, 3, 2, pool=P.Pooling.AVE, pad=1)
    n.norm2 = L.LRN(x, local_size=3, norm_region=P.LRN.WITHIN_CHANNEL, alpha=0.1)
    classes(n, n.norm2)


def openpose(n: Any) -> None:
    """Stages that refine maps, each of which sees the image's features again (Cao et al. 2016)."""
    x = pool(n, "pool1_stage1", conv_relu(n, "conv1_1", image(n, 3, 32, 40), 8), 2)
    features = conv_relu(n, "conv4_4_CPM", x, 12)
    x = features
    for stage in (1, 2):
        branches = []
        for branch, outputs in ((1, 6), (2, 4)):
            name = f"Mconv{{}}_stage{stage}_L{branch}"
            y = x
            for number, kernel in enumerate((3, 7 if stage > 1 else 3), start=1):
                conv(n, name.format(number), y, 8, kernel)
                n[f"prelu{number}_stage{stage}_L{branch}"] = L.PReLU(n[name.format(number)], in_place=True)
                y = n[f"prelu{number}_stage{stage}_L{branch}"]
            branches.append(conv(n, name.format(3), y, outputs, 1))
        n[f"concat_stage{stage + 1}"] = L.Concat(*branches, *([features] if stage == 1 else []))
        x = n[f"concat_stage{stage + 1}"]


def mtcnn(n: Any) -> None:
    """The second and the first of the cascade (Zhang et al. 2016): PReLU, sizes that need rounding up, two results."""
    x = image(n, 3, 24, 24)
    for number, (outputs, kernel) in enumerate(((7, 3), (9, 3), (11, 2)), start=1):
        conv(n, f"conv{number}", x, outputs, kernel, pad=0)
        n[f"prelu{number}"] = L.PReLU(n[f"conv{number}"], in_place=True)
        x = n[f"prelu{number}"]
        if number < 3:
            x = pool(n, f"pool{number}", x)
    n.conv4 = L.InnerProduct(x, num_output=16, weight_filler=MSRA, bias_filler=NOISE)
    n.prelu4 = L.PReLU(n.conv4, in_place=True)
    n["conv5-1"] = L.InnerProduct(n.prelu4, num_output=2, weight_filler=MSRA)
    n["conv5-2"] = L.InnerProduct(n.prelu4, num_output=4, weight_filler=MSRA)
    n.prob1 = L.Softmax(n["conv5-1"])


def shufflenet(n: Any) -> None:
    """Convolutions in groups and channels that change places (Zhang et al. 2017)."""
    x = relu(n, "conv1/relu", conv_norm(n, "conv1", image(n, 3, 27, 28), 12, stride=2))
    for number, stride in ((1, 2), (2, 1)):
        name, width = f"resx{number}", 12 * number
        y = relu(n, f"{name}_conv1/relu", conv_norm(n, f"{name}_conv1", x, width // 2, 1, group=3))
        n[f"shuffle{number}"] = L.ShuffleChannel(y, group=3)
        y = conv_norm(n, f"{name}_conv2", n[f"shuffle{number}"], width // 2, stride=stride, group=width // 2)
        y = conv_norm(n, f"{name}_conv3", y, 12 if stride == 2 else width, 1, group=3)
        if stride == 2:
            n[f"{name}_match"] = L.Pooling(x, pool=P.Pooling.AVE, kernel_size=3, stride=2)
            n[f"{name}_concat"] = L.Concat(n[f"{name}_match"], y)
            x = relu(n, f"{name}/relu", n[f"{name}_concat"])
        else:
            n[f"{name}_sum"] = L.Eltwise(x, y)
            x = relu(n, f"{name}/relu", n[f"{name}_sum"])
    classes(n, x)


def ssd(n: Any) -> None:
    """Boxes and scores from maps of two sizes (Liu et al. 2015)."""
    data = image(n, 3, 40, 48)
    low = pool(n, "pool1", conv_relu(n, "conv1", data, 8), 2)
    low = conv_relu(n, "conv4_3", low, 8)
    high = conv_relu(n, "conv5", pool(n, "pool4", low, 2), 10, dilation=2, pad=2)
    n.conv4_3_norm = L.Normalize(
        low,
        norm_param={
            "across_spatial": False,
            "channel_shared": False,
            "scale_filler": {"type": "constant", "value": 20},
        },
    )
    found: dict[str, list[Any]] = {"loc": [], "conf": [], "priorbox": []}
    for name, x, least in (("conv4_3_norm", n.conv4_3_norm, 8), ("conv5", high, 16)):
        for kind, outputs in (("loc", 4 * 4), ("conf", 4 * 3)):
            whole = f"{name}_mbox_{kind}"
            conv(n, whole, x, outputs)
            n[f"{whole}_perm"] = L.Permute(n[whole], order=[0, 2, 3, 1])
            n[f"{whole}_flat"] = L.Flatten(n[f"{whole}_perm"], axis=1)
            found[kind].append(n[f"{whole}_flat"])
        n[f"{name}_mbox_priorbox"] = L.PriorBox(
            x,
            data,
            min_size=least,
            max_size=2 * least,
            aspect_ratio=2,
            flip=True,
            clip=False,
            variance=[0.1, 0.1, 0.2, 0.2],
        )
        found["priorbox"].append(n[f"{name}_mbox_priorbox"])
    n.mbox_loc = L.Concat(*found["loc"], axis=1)
    n.mbox_conf = L.Concat(*found["conf"], axis=1)
    n.mbox_priorbox = L.Concat(*found["priorbox"], axis=2)
    n.mbox_conf_reshape = L.Reshape(n.mbox_conf, shape={"dim": [0, -1, 3]})
    n.mbox_conf_softmax = L.Softmax(n.mbox_conf_reshape, axis=2)
    n.mbox_conf_flatten = L.Flatten(n.mbox_conf_softmax, axis=1)
    n.detection_out = L.DetectionOutput(
        n.mbox_loc,
        n.mbox_conf_flatten,
        n.mbox_priorbox,
        num_classes=3,
        share_location=True,
        background_label_id=0,
        nms_param={"nms_threshold": 0.45, "top_k": 40},
        code_type=P.DetectionOutput.CENTER_SIZE,
        keep_top_k=12,
        confidence_threshold=0.3,
    )


ZOO: dict[str, Callable[[Any], None]] = {
    build.__name__: build
    for build in (resnet, mobilenet, squeezenet, densenet, fcn, inception, openpose, mtcnn, shufflenet, ssd)
}


def zoo_net(name: str) -> NetParameter:
    """The deploy net of that name."""
    n = NetSpec()
    ZOO[name](n)
    net = n.to_proto()
    net.name = name
    return net
