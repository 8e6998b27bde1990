"""What training makes of images before the net gets them: crops and mirrors as they are drawn, to look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitdnn.caffe.transform import Transformer
from jitdnn.errors import JitdnnError
from jitdnn.studio.data import open_dataset
from jitdnn.studio.data.sheets import sheet
from jitdnn.studio.nets.asked import asked_of
from jitdnn.studio.nets.binding import bind
from jitdnn.studio.nets.checks import refused

#: images that are shown, `TIMES` times each; where nothing is random so many images, once each
IMAGES: Final = 2
TIMES: Final = 6


def preview(
    text: str, options: Mapping[str, Any], dataset: Mapping[str, Any], home: str | Path
) -> dict[str, Any]:
    """Some training images as the net would get them, cut and mirrored by the code that training runs: a row each.

    `ok`; then `png`, `shape` (C, H, W) of what the net gets, and `is_random`, whether an image differs from time to
    time. The mean and the scale are left out: they change no picture. Else what `check` says of what is wrong.
    """
    try:
        chosen, facts = asked_of(options, dataset)
        bound = bind(text, chosen, facts, Path(home), Path(home) / "runs" / "0")
        layer = next(each for each in bound.net.layer if each.type == "Data")
        parameter = layer.transform_param.copy()
        for name in ("mean_file", "mean_value", "scale"):
            parameter.clear(name)
        transformer = Transformer(parameter, None, "TRAIN", facts.shape, np.dtype(np.float32))
    except JitdnnError as error:
        return refused(error)
    images = open_dataset(Path(home), dict(dataset)).images("train")
    random = np.random.default_rng(chosen.seed)
    is_random = bool(parameter.mirror or transformer.shape != facts.shape)
    count, times = (IMAGES, TIMES) if is_random else (TIMES, 1)
    places = np.sort(random.choice(len(images), min(count, len(images)), replace=False))
    shown = np.repeat(np.array(images[places]), times, 0).reshape(-1, *facts.shape)
    out = np.empty((len(shown), *transformer.shape), np.float32)
    transformer.apply(shown, out, random)
    made = out.astype(np.uint8) if images.dtype == np.uint8 else out
    return {
        "ok": True,
        "png": sheet(made, TIMES, gap=2),
        "shape": list(transformer.shape),
        "is_random": is_random,
    }
