"""Well-known nets at their full size as programs, as they answer: batch 1, the layers that their public files have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from caffe_nets import NETS as TRAINED
from jitdnn.caffe import NetParameter, parse
from jitdnn.caffe.pycaffe import NetSpec
from jitdnn.caffe.pycaffe import layers as L  # noqa: N812
from jitdnn.caffe.pycaffe import params as P  # noqa: N812


def image(n: Any, channels: int, height: int, width: int) -> Any:
    n.data = L.Input(shape={"dim": [1, channels, height, width]})
    return n.data


def conv(n: Any, name: str, x: Any, outputs: int, kernel: int = 3, **fields: Any) -> Any:
    """A convolution that keeps the extents at stride 1."""
    size: dict[str, Any] = {"kernel_size": kernel, "pad": kernel // 2}
    if "kernel_h" in fields:
        size = {}
    n[name] = L.Convolution(x, num_output=outputs, **(size | fields))
    return n[name]


def relu(n: Any, x: Any, name: str) -> Any:
    n[f"{name}/relu"] = L.ReLU(x, in_place=True)
    return n[f"{name}/relu"]


def conv_relu(n: Any, name: str, x: Any, outputs: int, kernel: int = 3, **fields: Any) -> Any:
    return relu(n, conv(n, name, x, outputs, kernel, **fields), name)


def norm(n: Any, name: str, x: Any, in_place: bool = True) -> Any:
    n[f"{name}/bn"] = L.BatchNorm(x, in_place=in_place)
    n[f"{name}/scale"] = L.Scale(n[f"{name}/bn"], in_place=True, bias_term=True)
    return n[f"{name}/scale"]


def conv_norm(n: Any, name: str, x: Any, outputs: int, kernel: int = 3, **fields: Any) -> Any:
    return norm(n, name, conv(n, name, x, outputs, kernel, bias_term=False, **fields))


def unit(n: Any, name: str, x: Any, outputs: int, kernel: int = 3, **fields: Any) -> Any:
    """Convolution, normalization, ReLU."""
    return relu(n, conv_norm(n, name, x, outputs, kernel, **fields), name)


def prelu(n: Any, name: str, x: Any) -> Any:
    n[f"{name}/prelu"] = L.PReLU(x, in_place=True)
    return n[f"{name}/prelu"]


def pool(n: Any, name: str, x: Any, kernel: int = 3, stride: int = 2, **fields: Any) -> Any:
    n[name] = L.Pooling(x, kernel_size=kernel, stride=stride, **fields)
    return n[name]


def mean(n: Any, name: str, x: Any) -> Any:
    n[name] = L.Pooling(x, pool=P.Pooling.AVE, global_pooling=True)
    return n[name]


def classes(n: Any, x: Any, count: int = 1000) -> None:
    n.fc = L.InnerProduct(mean(n, "pool_last", x), num_output=count)
    n.prob = L.Softmax(n.fc)


def alexnet(n: Any) -> None:
    """AlexNet: normalization before pooling, where CaffeNet has it behind."""
    x = image(n, 3, 227, 227)
    for number, (outputs, kernel, fields) in enumerate(
        ((96, 11, {"stride": 4, "pad": 0}), (256, 5, {"group": 2})), 1
    ):
        x = conv_relu(n, f"conv{number}", x, outputs, kernel, **fields)
        n[f"norm{number}"] = L.LRN(x, local_size=5, alpha=1e-4, beta=0.75)
        x = pool(n, f"pool{number}", n[f"norm{number}"])
    x = conv_relu(n, "conv3", x, 384)
    x = conv_relu(n, "conv4", x, 384, group=2)
    x = pool(n, "pool5", conv_relu(n, "conv5", x, 256, group=2))
    for name in ("fc6", "fc7"):
        n[name] = L.InnerProduct(x, num_output=4096)
        x = relu(n, n[name], name)
    n.fc8 = L.InnerProduct(x, num_output=1000)
    n.prob = L.Softmax(n.fc8)


def mobilenet(n: Any) -> None:
    """MobileNet 1.0 of 224 (Howard et al. 2017)."""
    x = unit(n, "conv1", image(n, 3, 224, 224), 32, stride=2)
    for number, (outputs, stride) in enumerate(_MOBILE, start=2):
        width = _MOBILE[number - 3][0] if number > 2 else 32
        x = unit(n, f"conv{number}/dw", x, width, stride=stride, group=width)
        x = unit(n, f"conv{number}/sep", x, outputs, 1)
    classes(n, x)


_MOBILE = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *(((512, 1),) * 5),
    (1024, 2),
    (1024, 1),
)


def squeezenet(n: Any) -> None:
    """SqueezeNet 1.1 (Iandola et al. 2016)."""
    x = pool(n, "pool1", conv_relu(n, "conv1", image(n, 3, 227, 227), 64, 3, stride=2, pad=0))
    for number, (squeezed, expanded) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)), start=2
    ):
        small = conv_relu(n, f"fire{number}/squeeze1x1", x, squeezed, 1)
        one = conv_relu(n, f"fire{number}/expand1x1", small, expanded, 1)
        three = conv_relu(n, f"fire{number}/expand3x3", small, expanded, 3)
        n[f"fire{number}/concat"] = L.Concat(one, three)
        x = n[f"fire{number}/concat"]
        if number in (3, 5):
            x = pool(n, f"pool{number}", x)
    n.pool10 = L.Pooling(conv_relu(n, "conv10", x, 1000, 1), pool=P.Pooling.AVE, global_pooling=True)
    n.prob = L.Softmax(n.pool10)


def densenet121(n: Any) -> None:
    """DenseNet-121 (Huang et al. 2016): growth 32, blocks of 6, 12, 24 and 16."""
    x = pool(n, "pool1", unit(n, "conv1", image(n, 3, 224, 224), 64, 7, stride=2), pad=1)
    channels = 64
    for block, layers in enumerate((6, 12, 24, 16), start=2):
        for layer in range(1, layers + 1):
            name = f"conv{block}_{layer}"
            y = relu(n, norm(n, f"{name}/x1", x, in_place=False), f"{name}/x1")
            y = unit(n, f"{name}/x1_conv", y, 128, 1)
            n[f"concat_{block}_{layer}"] = L.Concat(x, conv(n, f"{name}/x2", y, 32, bias_term=False))
            x, channels = n[f"concat_{block}_{layer}"], channels + 32
        x = relu(n, norm(n, f"conv{block}_blk", x, in_place=False), f"conv{block}_blk")
        if block < 5:
            channels //= 2
            x = conv(n, f"conv{block}_blk/t", x, channels, 1, bias_term=False)
            x = pool(n, f"pool{block}", x, 2, 2, pool=P.Pooling.AVE)
    classes(n, x)


def se_resnet50(n: Any) -> None:
    """SE-ResNet-50 (Hu et al. 2017), channels weighted by a Scale of two bottoms."""
    x = pool(n, "pool1", unit(n, "conv1", image(n, 3, 224, 224), 64, 7, stride=2))
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
        for block in range(1, blocks + 1):
            name, stride = f"conv{stage}_{block}", 2 if block == 1 and stage > 2 else 1
            y = unit(n, f"{name}_1x1_reduce", x, width, 1, stride=stride)
            y = unit(n, f"{name}_3x3", y, width)
            y = conv_norm(n, f"{name}_1x1_increase", y, 4 * width, 1)
            gate = mean(n, f"{name}_global_pool", y)
            gate = conv_relu(n, f"{name}_1x1_down", gate, width // 4, 1)
            n[f"{name}_prob"] = L.Sigmoid(conv(n, f"{name}_1x1_up", gate, 4 * width, 1), in_place=True)
            n[f"{name}_flat"] = L.Flatten(n[f"{name}_prob"])
            n[f"{name}_scaled"] = L.Scale(y, n[f"{name}_flat"], axis=0)
            rest = x if block > 1 else conv_norm(n, f"{name}_1x1_proj", x, 4 * width, 1, stride=stride)
            n[name] = L.Eltwise(rest, n[f"{name}_scaled"])
            x = relu(n, n[name], name)
    classes(n, x)


def sphereface20(n: Any) -> None:
    """SphereFace-20 (Liu et al. 2017): PReLU, 512 features of a face of 112 x 96."""
    x = image(n, 3, 112, 96)
    for stage, (width, blocks) in enumerate(((64, 1), (128, 2), (256, 4), (512, 1)), start=1):
        x = prelu(n, f"conv{stage}_1", conv(n, f"conv{stage}_1", x, width, stride=2))
        for block in range(blocks):
            first, second = (f"conv{stage}_{2 * block + number}" for number in (2, 3))
            y = prelu(n, first, conv(n, first, x, width))
            y = prelu(n, second, conv(n, second, y, width))
            n[f"res{stage}_{block + 1}"] = L.Eltwise(x, y)
            x = n[f"res{stage}_{block + 1}"]
    n.fc5 = L.InnerProduct(x, num_output=512)


def _vgg(
    n: Any, x: Any, widths: Sequence[Sequence[int]], pad: int = 1, last_pool: bool = True
) -> dict[str, Any]:
    """The convolutions of VGG-16 (Simonyan and Zisserman 2014) by name."""
    found = {}
    for stage, stack in enumerate(widths, start=1):
        for number, width in enumerate(stack, start=1):
            name = f"conv{stage}_{number}"
            x = found[name] = conv_relu(n, name, x, width, pad=pad if name == "conv1_1" else 1)
        if stage < len(widths) or last_pool:
            x = found[f"pool{stage}"] = pool(n, f"pool{stage}", x, 2, 2)
    return found


VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def fcn8s(n: Any) -> None:
    """FCN-8s on VGG-16 (Long et al. 2014), for an image of 128 x 160."""
    data = image(n, 3, 128, 160)
    found = _vgg(n, data, VGG16, pad=100)
    x = conv_relu(n, "fc6", found["pool5"], 4096, 7, pad=0)
    x = conv_relu(n, "fc7", x, 4096, 1)

    def up(name: str, y: Any, kernel: int, stride: int) -> Any:
        filler = {"type": "bilinear"}
        n[name] = L.Deconvolution(
            y,
            convolution_param={"num_output": 21, "kernel_size": kernel, "stride": stride, "bias_term": False,
                               "group": 21, "weight_filler": filler},
        )  # fmt: skip
        return n[name]

    x = up("upscore2", conv(n, "score_fr", x, 21, 1), 4, 2)
    for number, offset in ((4, 5), (3, 9)):
        score = conv(n, f"score_pool{number}", found[f"pool{number}"], 21, 1)
        n[f"score_pool{number}c"] = L.Crop(score, x, axis=2, offset=offset)
        n[f"fuse_pool{number}"] = L.Eltwise(x, n[f"score_pool{number}c"])
        x = up(
            f"upscore_pool{number}",
            n[f"fuse_pool{number}"],
            4 if number == 4 else 16,
            2 if number == 4 else 8,
        )
    n.score = L.Crop(x, data, axis=2, offset=31)


def ssd300(n: Any) -> None:
    """SSD of 300 on VGG-16 (Liu et al. 2015), 21 classes."""
    data = image(n, 3, 300, 300)
    found = _vgg(n, data, VGG16, last_pool=False)
    x = pool(n, "pool5", found["conv5_3"], 3, 1, pad=1)
    x = conv_relu(n, "fc6", x, 1024, pad=6, dilation=6)
    fc7 = x = conv_relu(n, "fc7", x, 1024, 1)
    n.conv4_3_norm = L.Normalize(
        found["conv4_3"],
        norm_param={"across_spatial": False, "channel_shared": False, "scale_filler": {"value": 20}},
    )
    maps = [("conv4_3_norm", n.conv4_3_norm, 30, 60, (2,)), ("fc7", fc7, 60, 111, (2, 3))]
    extras = ((256, 2, 1, 111), (128, 2, 1, 162), (128, 1, 0, 213), (128, 1, 0, 264))
    for number, (width, stride, pad, least) in enumerate(extras, start=6):
        x = conv_relu(n, f"conv{number}_1", x, width, 1)
        x = conv_relu(n, f"conv{number}_2", x, 2 * width, stride=stride, pad=pad)
        maps.append((f"conv{number}_2", x, least, least + 51, (2, 3) if number < 8 else (2,)))
    parts: dict[str, list[Any]] = {"loc": [], "conf": [], "priorbox": []}
    for name, y, least, most, ratios in maps:
        boxes = 2 + 2 * len(ratios)
        for kind, each in (("loc", 4), ("conf", 21)):
            whole = f"{name}_mbox_{kind}"
            conv(n, whole, y, boxes * each)
            n[f"{whole}_perm"] = L.Permute(n[whole], order=[0, 2, 3, 1])
            n[f"{whole}_flat"] = L.Flatten(n[f"{whole}_perm"], axis=1)
            parts[kind].append(n[f"{whole}_flat"])
        n[f"{name}_mbox_priorbox"] = L.PriorBox(
            y, data, min_size=least, max_size=most, aspect_ratio=list(ratios), flip=True, clip=False,
            variance=[0.1, 0.1, 0.2, 0.2],
        )  # fmt: skip
        parts["priorbox"].append(n[f"{name}_mbox_priorbox"])
    n.mbox_loc = L.Concat(*parts["loc"], axis=1)
    n.mbox_conf = L.Concat(*parts["conf"], axis=1)
    n.mbox_priorbox = L.Concat(*parts["priorbox"], axis=2)
    n.mbox_conf_reshape = L.Reshape(n.mbox_conf, shape={"dim": [0, -1, 21]})
    n.mbox_conf_softmax = L.Softmax(n.mbox_conf_reshape, axis=2)
    n.mbox_conf_flatten = L.Flatten(n.mbox_conf_softmax, axis=1)
    n.detection_out = L.DetectionOutput(
        n.mbox_loc, n.mbox_conf_flatten, n.mbox_priorbox, num_classes=21, share_location=True,
        background_label_id=0, nms_param={"nms_threshold": 0.45, "top_k": 400},
        code_type=P.DetectionOutput.CENTER_SIZE, keep_top_k=200, confidence_threshold=0.3,
    )  # fmt: skip


def _cascade(n: Any, sizes: Sequence[tuple[int, int, int, int]]) -> Any:
    """Convolutions without padding (outputs, kernel), each with PReLU, and a pooling (kernel, stride) behind."""
    x = n.data
    for number, (outputs, kernel, window, stride) in enumerate(sizes, start=1):
        x = prelu(n, f"conv{number}", conv(n, f"conv{number}", x, outputs, kernel, pad=0))
        if window:
            x = pool(n, f"pool{number}", x, window, stride)
    return x


def mtcnn_p(n: Any) -> None:
    """The first net of MTCNN (Zhang et al. 2016), on an image of 160 x 120."""
    image(n, 3, 160, 120)
    x = _cascade(n, ((10, 3, 2, 2), (16, 3, 0, 0), (32, 3, 0, 0)))
    n.prob1 = L.Softmax(conv(n, "conv4-1", x, 2, 1))
    conv(n, "conv4-2", x, 4, 1)


def _mtcnn_end(n: Any, x: Any, number: int, width: int, points: bool) -> None:
    n[f"conv{number}"] = L.InnerProduct(x, num_output=width)
    x = prelu(n, f"conv{number}", n[f"conv{number}"])
    for part, outputs in ((1, 2), (2, 4), (3, 10))[: 3 if points else 2]:
        n[f"conv{number + 1}-{part}"] = L.InnerProduct(x, num_output=outputs)
    n.prob1 = L.Softmax(n[f"conv{number + 1}-1"])


def mtcnn_r(n: Any) -> None:
    """The second net of MTCNN."""
    image(n, 3, 24, 24)
    _mtcnn_end(n, _cascade(n, ((28, 3, 3, 2), (48, 3, 3, 2), (64, 2, 0, 0))), 4, 128, False)


def mtcnn_o(n: Any) -> None:
    """The third net of MTCNN."""
    image(n, 3, 48, 48)
    _mtcnn_end(n, _cascade(n, ((32, 3, 3, 2), (64, 3, 3, 2), (64, 3, 2, 2), (128, 2, 0, 0))), 5, 256, True)


def openpose(n: Any) -> None:
    """OpenPose for COCO (Cao et al. 2016) on an image of 128 x 160: VGG-19's first ten layers and six stages."""
    data = image(n, 3, 128, 160)
    widths = ((64, 64), (128, 128), (256, 256, 256, 256), (512, 512))
    found = _vgg(n, data, widths, last_pool=False)
    features = conv_relu(n, "conv4_4_CPM", conv_relu(n, "conv4_3_CPM", found["conv4_2"], 256), 128)
    x = features
    for stage in range(1, 7):
        ends = []
        for branch, outputs in ((1, 38), (2, 19)):
            kernels = (3, 3, 3, 1) if stage == 1 else (7, 7, 7, 7, 7, 1)
            y = x
            for number, kernel in enumerate(kernels, start=1):
                width = 512 if stage == 1 and kernel == 1 else 128
                y = conv_relu(n, f"conv{number}_stage{stage}_L{branch}", y, width, kernel)
            ends.append(conv(n, f"conv{len(kernels) + 1}_stage{stage}_L{branch}", y, outputs, 1))
        n[f"concat_stage{stage + 1}"] = L.Concat(*ends, *([features] if stage < 6 else []))
        x = n[f"concat_stage{stage + 1}"]


def inception_v3(n: Any) -> None:
    """Inception v3 (Szegedy et al. 2015) of 299: its stem, a block of each kind and both reductions."""
    x = unit(n, "conv", image(n, 3, 299, 299), 32, stride=2, pad=0)
    x = unit(n, "conv_2", unit(n, "conv_1", x, 32, pad=0), 64)
    x = pool(n, "pool", x)
    x = pool(n, "pool_1", unit(n, "conv_4", unit(n, "conv_3", x, 80, 1), 192, pad=0))

    def branch(name: str, y: Any, *steps: tuple[int, int, int]) -> Any:
        for number, (outputs, tall, wide) in enumerate(steps):
            window = {"kernel_h": tall, "kernel_w": wide, "pad_h": tall // 2, "pad_w": wide // 2}
            y = unit(n, f"{name}_{number}", y, outputs, **window)
        return y

    def joined(name: str, *parts: Any) -> Any:
        n[name] = L.Concat(*parts)
        return n[name]

    def averaged(name: str, y: Any) -> Any:
        return pool(n, f"{name}_pool", y, 3, 1, pad=1, pool=P.Pooling.AVE)

    for name, pooled in (("mixed", 32), ("mixed_1", 64), ("mixed_2", 64)):
        x = joined(
            name, branch(f"{name}_a", x, (64, 1, 1)), branch(f"{name}_b", x, (48, 1, 1), (64, 5, 5)),
            branch(f"{name}_c", x, (64, 1, 1), (96, 3, 3), (96, 3, 3)),
            branch(f"{name}_d", averaged(name, x), (pooled, 1, 1)),
        )  # fmt: skip
    x = joined(
        "mixed_3", unit(n, "mixed_3_a", x, 384, stride=2, pad=0),
        unit(n, "mixed_3_c", branch("mixed_3_b", x, (64, 1, 1), (96, 3, 3)), 96, stride=2, pad=0),
        pool(n, "mixed_3_pool", x),
    )  # fmt: skip
    for name, width in (("mixed_4", 128), ("mixed_5", 160), ("mixed_6", 192)):
        x = joined(
            name, branch(f"{name}_a", x, (192, 1, 1)),
            branch(f"{name}_b", x, (width, 1, 1), (width, 1, 7), (192, 7, 1)),
            branch(f"{name}_c", x, (width, 1, 1), (width, 7, 1), (width, 1, 7), (width, 7, 1), (192, 1, 7)),
            branch(f"{name}_d", averaged(name, x), (192, 1, 1)),
        )  # fmt: skip
    x = joined(
        "mixed_8", unit(n, "mixed_8_a", branch("mixed_8_aa", x, (192, 1, 1)), 320, stride=2, pad=0),
        unit(n, "mixed_8_b", branch("mixed_8_bb", x, (192, 1, 1), (192, 1, 7), (192, 7, 1)), 192, stride=2, pad=0),
        pool(n, "mixed_8_pool", x),
    )  # fmt: skip
    for name in ("mixed_9", "mixed_10"):
        b, c = branch(f"{name}_b", x, (384, 1, 1)), branch(f"{name}_c", x, (448, 1, 1), (384, 3, 3))
        x = joined(
            name, branch(f"{name}_a", x, (320, 1, 1)), branch(f"{name}_ba", b, (384, 1, 3)),
            branch(f"{name}_bb", b, (384, 3, 1)), branch(f"{name}_ca", c, (384, 1, 3)),
            branch(f"{name}_cb", c, (384, 3, 1)), branch(f"{name}_d", averaged(name, x), (192, 1, 1)),
        )  # fmt: skip
    classes(n, x)


PROGRAMS: dict[str, Callable[[Any], None]] = {
    build.__name__: build
    for build in (
        alexnet, mobilenet, squeezenet, densenet121, se_resnet50, sphereface20, ssd300, fcn8s, mtcnn_p, mtcnn_r,
        mtcnn_o, openpose, inception_v3,
    )
}  # fmt: skip
NAMES = (*PROGRAMS, *TRAINED)


def deploy_net(name: str) -> NetParameter:
    """The net of that name for one image. The weights of its file are what the fillers say: 0."""
    if name in PROGRAMS:
        n = NetSpec()
        PROGRAMS[name](n)
        net = n.to_proto()
    else:
        net = parse(TRAINED[name](1), NetParameter)
        side = net.layer[0].dummy_data_param.shape[0].dim[2]
        data = parse(
            f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 1 dim: 3 dim: {side} '
            f"dim: {side} }} }} }}",
            NetParameter,
        )
        kept = [layer for layer in net.layer[1:] if not layer.name.startswith(("loss1", "loss2"))]
        for layer in kept:
            if layer.type == "SoftmaxWithLoss":
                layer.type, layer.bottom, layer.loss_weight = "Softmax", layer.bottom[:1], []
            for holder in ("convolution_param", "inner_product_param"):
                if layer.has(holder):
                    getattr(layer, holder).clear("weight_filler")
        net.layer = [data.layer[0], *kept]
    net.name = name
    return net
