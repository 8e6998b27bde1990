"""What an export says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitdnn.studio.data import Dataset
from jitdnn.studio.look.trained import Trained

_FILES = {
    "bundle": """| file | what |
| --- | --- |
| `check.py` | `python check.py` runs the net on the samples and compares; needs `pip install jitdnn` |
| `deploy.prototxt`, `weights.npz` | the net for use, and its weights |
| `bundle.json` | names of blobs, classes, and how images are prepared |
| `mean.npy` | what is subtracted, if something is |
| `labels.txt` | the classes, a line each |
| `samples.npz`, `samples/` | images as the data set has them, and the answers to them |

    jitdnn serve THIS.bundle.zip

answers `POST /predict`, with a small page.
""",
    "caffe": """`deploy.prototxt` and `weights.caffemodel` are read by Caffe, OpenCV's `dnn` (below version 5) and

    from jitdnn.caffe import load_net
    net = load_net("deploy.prototxt", weights="weights.caffemodel")
""",
}


def readme(kind: str, trained: Trained, data: Dataset, run: Mapping[str, Any], title: str) -> str:
    """The text of README.md in a bundle or beside Caffe's files."""
    transformer = trained.transformer
    channels, height, width = trained.image_shape
    crop = (
        f"Cut out its middle {transformer.crop} x {transformer.crop} pixels."
        if transformer.crop
        else "It is not cropped."
    )
    steps = [
        f"An image has {height} x {width} pixels, 0 to 255, "
        + ("one grey channel." if channels == 1 else "channels blue, green, red in this order."),
        crop,
        "Nothing is subtracted." if transformer.mean is None else "Subtract the mean.",
        f"Multiply by {float(transformer.parameter.scale):.9g}.",
    ]
    what = {
        "classification": "the probability of each class",
        "multi-label": "for each label the probability that it is there",
        "regression": "the numbers",
        "segmentation": "for each pixel the probability of each class",
        "detection": "boxes",
    }[trained.task]
    classes = _line(", ".join(data.classes[:20])) + (" ..." if len(data.classes) > 20 else "")
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    return f"""# {_line(run["name"])}

A net for {trained.task}, weights: {title}. Classes: {classes}.

## From an image to an answer

{listed}
5. Blob `{trained.input}` takes it, (1, {", ".join(map(str, transformer.shape))}); blob `{trained.answer}` is {what}.

## Files

{_FILES[kind]}"""


def _line(text: object) -> str:
    return " ".join(str(text).split())
