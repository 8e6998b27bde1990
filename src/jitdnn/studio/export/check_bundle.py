"""Does a trained net answer here as it did where it was exported?   python check.py

Lies in a folder with bundle.json, deploy.prototxt, weights.npz and samples.npz. It needs jitdnn and NumPy alone, and
shows how the net is used: crop the middle of the image, subtract the mean, multiply by the scale, run the net.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn.caffe import load_net


def prepare(folder: Path, images: Any) -> Any:
    """What the net takes for images (N, C, H, W), 0 to 255, channels blue, green, red or one grey one: float32."""
    facts = json.loads((folder / "bundle.json").read_text("utf-8"))
    inputs = np.asarray(images, np.float32)
    mean = (
        np.load(folder / "mean.npy", allow_pickle=False) if facts["mean"] else np.zeros((1, 1, 1), np.float32)
    )
    if crop := facts["crop"]:
        top, left = ((extent - crop) // 2 for extent in inputs.shape[2:])
        inputs = inputs[:, :, top : top + crop, left : left + crop]
        if mean.shape[1:] != (1, 1):
            mean = mean[:, top : top + crop, left : left + crop]
    return (inputs - mean) * np.float32(facts["scale"])


def answers(folder: Path, images: Any) -> Any:
    """What the net says of images (N, C, H, W): for each the probabilities, or the numbers, of its answer."""
    facts = json.loads((folder / "bundle.json").read_text("utf-8"))
    net = load_net(folder / "deploy.prototxt", weights=folder / "weights.npz")
    found = []
    for one in prepare(folder, images):
        found.append(net.forward(**{facts["input"]: one[np.newaxis]})[facts["answer"]][0].copy())
    return np.stack(found)


def check(folder: Path) -> tuple[float, float]:
    """How far the answers are from those that were exported, and how far they may be."""
    facts = json.loads((folder / "bundle.json").read_text("utf-8"))
    with np.load(folder / "samples.npz", allow_pickle=False) as samples:
        images, expected = samples["images"], samples["answers"]
    distance = np.abs(answers(folder, images).astype(np.float64) - expected).max(initial=0.0)
    return float(distance), float(facts["tolerance"] * max(1.0, np.abs(expected).max(initial=0.0)))


def main() -> int:
    distance, allowed = check(Path(__file__).resolve().parent)
    is_good = distance <= allowed  # not where it is NaN
    sys.stdout.write(
        f"{'good' if is_good else 'WRONG'}: the answers differ by up to {distance:.2g}, {allowed:.2g} is allowed\n"
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
