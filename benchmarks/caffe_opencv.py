"""Well-known nets at their full size against OpenCV's dnn: every layer, from a .caffemodel that is written here.

    python benchmarks/caffe_opencv.py [--net resnet50 ...]

Weights are random, scaled so that what each layer gives is near 1 in size; images are random. OpenCV reads the
prototxt and the .caffemodel (opencv-python-headless 4: version 5 reads no files of Caffe) and computes every blob. For
each net: how many blobs were compared, the largest difference of any, as a part of that blob's largest value, where it
is, and the same for the outputs of the compiled net.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from caffe_deploy_nets import NAMES, deploy_net

from jitdnn.caffe import Net, NetState, to_text

BOUND = 2e-5


def with_weights(net: Net, random: np.random.Generator) -> None:
    """Give every weight a value, and have what convolutions and products make near 1 in size."""
    table = random.standard_normal(1_000_003).astype(np.float32)
    data = net.blobs["data"].data
    data[...] = np.resize(table, data.shape)
    for node in net.nodes:
        layer = node.layer
        for index, blob in enumerate(layer.weights):
            start = int(random.integers(table.size))
            values = np.resize(np.roll(table, start), blob.shape)
            if layer.type == "BatchNorm":
                blob.data[...] = (0.3 * values, 0.5 + np.abs(values), 1.0)[index]
            elif layer.type in ("Scale", "PReLU"):
                blob.data[...] = (
                    1.0 + 0.2 * values if layer.type == "Scale" else 0.25 + 0.1 * values,
                    values,
                )[index]
            elif layer.type != "Normalize" and not _is_bilinear(layer):
                blob.data[...] = values
        layer.forward(node.bottom, node.top)
        if layer.type in ("Convolution", "InnerProduct"):
            size = node.top[0].data.std()
            for blob in layer.weights:
                blob.data[...] /= size
            layer.forward(node.bottom, node.top)


def _is_bilinear(layer: Any) -> bool:
    return (
        layer.type == "Deconvolution" and layer.parameter.convolution_param.weight_filler.type == "bilinear"
    )


def sorted_boxes(rows: Any) -> Any:
    """Detections in an order of their own: OpenCV lists classes in another one."""
    rows = rows.reshape(-1, 7)
    return rows[np.lexsort(rows.T[:3])]


def compare(name: str, cv2: Any) -> bool:
    """Print a line for a net, and tell whether it is within the bound."""
    random = np.random.default_rng(sum(map(ord, name)))
    definition = deploy_net(name)
    net = Net(definition, NetState(phase="TEST"), seed=1)
    with_weights(net, random)
    data = random.standard_normal(net.blobs["data"].shape).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        text, weights = Path(folder) / "net.prototxt", Path(folder) / "net.caffemodel"
        text.write_text(to_text(definition))
        net.save_weights(weights)
        peer = cv2.dnn.readNetFromCaffe(str(text), str(weights))
    peer.enableFusion(False)
    # of layers in place the last one has what the blob holds at the end
    last = {blob: layer.name for layer in definition.layer if layer.type != "Input" for blob in layer.top}
    peer.setInput(data)
    theirs = dict(zip(last, peer.forward(list(last.values())), strict=True))
    outputs = net.forward(data=data)
    compiled = net.compiled().forward(data=data)

    def distance(blob: str, ours: Any) -> float:
        expected = theirs[blob]
        if blob == "detection_out":
            ours, expected = sorted_boxes(ours), sorted_boxes(expected)
        if ours.size != expected.size:
            return float("inf")
        return float(np.abs(ours.reshape(expected.shape) - expected).max() / np.abs(expected).max())

    each = {blob: distance(blob, net.blobs[blob].data) for blob in last}
    worst = max(each, key=lambda blob: each[blob])
    fused = max(distance(blob, compiled[blob]) for blob in outputs)
    print(
        f"| {name} | {net.weight_count:,} | {len(each)} | {each[worst]:.1e} ({worst}) | {fused:.1e} |",
        flush=True,
    )
    return max(each[worst], fused) <= BOUND


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args()
    import cv2

    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        raise SystemExit(
            f"OpenCV {cv2.__version__} reads no files of Caffe: pip install 'opencv-python-headless<5'"
        )
    cv2.setNumThreads(1)
    print("| net | weights | blobs | largest difference of a blob | of the compiled net's outputs |")
    print("| --- | --- | --- | --- | --- |")
    bad = [name for name in options.net if not compare(name, cv2)]
    if bad:
        raise SystemExit(f"beyond {BOUND:g}: {', '.join(bad)}")


if __name__ == "__main__":
    main()
