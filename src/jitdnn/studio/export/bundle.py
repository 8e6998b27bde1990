"""A bundle that was exported, opened again: whoever made it, nothing in it is believed, and nothing is run but its net.

Only members of known names are unpacked, by those names, into a folder of their own; what they unpack to is counted.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from jitdnn import limits
from jitdnn.caffe import NetParameter
from jitdnn.caffe.arrays import read_npy
from jitdnn.caffe.deployment import SOURCES, Deployment, Output
from jitdnn.caffe.load import parse_file
from jitdnn.caffe.schema_layers import TransformationParameter
from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.settings import check_bytes
from jitdnn.studio.data import MODES
from jitdnn.studio.export.exports import FORMAT
from jitdnn.studio.look.trained import Trained
from jitdnn.studio.tasks import TASKS

NEEDED: Final = ("bundle.json", "deploy.prototxt", "weights.npz")
OPTIONAL: Final = ("mean.npy", "samples.npz", "labels.txt", "README.md")
_TEXT: Final = 16 << 20  # bytes of a member of text
_PIECE: Final = 1 << 20
#: layers that read or write files of their own choice, or run code
_REFUSED: Final = (*SOURCES, "Python", "HDF5Output")


@dataclass(frozen=True)
class Bundle:
    """A net with its weights, ready to answer, what bundle.json says of it, and the folder where it lies."""

    trained: Trained
    facts: dict[str, Any]
    folder: Path
    _scratch: TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Remove what was unpacked."""
        if self._scratch is not None:
            self._scratch.cleanup()


def open_bundle(path: Path) -> Bundle:
    """Open a bundle, a zip file or the folder that it was unpacked to. Raises InvalidArgument, saying what is wrong."""
    if path.is_dir():
        return _opened(path, None, path)
    scratch = TemporaryDirectory(prefix="jitdnn-bundle-")
    try:
        _unpack(path, Path(scratch.name))
        return _opened(Path(scratch.name), scratch, path)
    except BaseException:
        scratch.cleanup()
        raise


def _unpack(path: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(path) as packed:
            names = set(packed.namelist())
            if missing := [name for name in NEEDED if name not in names]:
                raise InvalidArgument(
                    f"{path} has no {', '.join(missing)}: it is no bundle of jitdnn's studio"
                )
            total = 0
            for name in (*NEEDED, *OPTIONAL):
                if name not in names:
                    continue
                with packed.open(name) as source, open(folder / name, "xb") as target:
                    size = 0
                    while piece := source.read(_PIECE):
                        size, total = size + len(piece), total + len(piece)
                        check_bytes(f"what {path} unpacks to", total, InvalidArgument)
                        if size > _TEXT and not name.endswith((".npz", ".npy")):
                            raise InvalidArgument(f"{name} in {path} has more than {_TEXT:,} bytes")
                        target.write(piece)
    except JitdnnError:
        raise
    except Exception as error:  # zipfile may raise anything over damaged bytes
        raise InvalidArgument(f"{path} cannot be read as a bundle: {error}") from None


def _opened(folder: Path, scratch: TemporaryDirectory[str] | None, path: Path) -> Bundle:
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise InvalidArgument(f"{path} has no {', '.join(missing)}: it is no bundle of jitdnn's studio")
    facts = read_facts(folder / "bundle.json")
    net = parse_file(folder / "deploy.prototxt", NetParameter)
    for layer in net.layer:
        if layer.type in _REFUSED:
            raise InvalidArgument(
                f"layer {layer.name!r} ({layer.type}) in {path} reads or writes files, or runs code: a bundle has none"
            )
        if layer.infogain_loss_param.has("source") or layer.detection_output_param.has("save_output_param"):
            raise InvalidArgument(
                f"layer {layer.name!r} ({layer.type}) in {path} names a file: a bundle names none"
            )
    inputs = [top for layer in net.layer if layer.type == "Input" for top in layer.top]
    if inputs != [facts["input"]]:
        raise InvalidArgument(
            f"{path} says that {facts['input']!r} is the net's input: it has {', '.join(inputs) or 'none'}"
        )
    tops = {top for layer in net.layer for top in layer.top}
    for name in ("scores", "answer"):
        if facts[name] not in tops:
            raise InvalidArgument(
                f"{path} says that {facts[name]!r} is the net's {name}: it has no such blob"
            )
    transform = TransformationParameter(scale=facts["scale"], crop_size=facts["crop"])
    if facts["mean"]:
        _subtract(transform, folder / "mean.npy")
    output = Output(facts["answer"], facts["scores"], "values", 1, "")
    shape = tuple(facts["shape"])
    deployed = Deployment(net, facts["input"], (output,), shape, transform, folder)
    trained = Trained(deployed, folder / "weights.npz", folder, facts["task"])
    if trained.one.blobs[trained.input].shape[1:] != trained.transformer.shape:
        raise InvalidArgument(
            f"{path} prepares images to shape {trained.transformer.shape}, and its net takes "
            f"{trained.one.blobs[trained.input].shape[1:]}"
        )
    return Bundle(trained, facts, folder, scratch)


def _subtract(transform: TransformationParameter, path: Path) -> None:
    """Have a mean subtracted: an image's, or a number for each channel."""
    mean = read_npy(path) if path.is_file() else None
    if mean is None or mean.ndim != 3 or mean.dtype.kind not in "uif":
        raise InvalidArgument(
            "bundle.json says that a mean is subtracted, and mean.npy holds none, (C, H, W) or (C, 1, 1)"
        )
    if mean.shape[1:] == (1, 1):
        transform.mean_value = [float(value) for value in mean.reshape(-1)]
    else:
        transform.mean_file = str(path)


def read_facts(path: Path) -> dict[str, Any]:
    """What a bundle says of itself, with all that is needed, each of its kind. Raises InvalidArgument."""
    try:
        found = json.loads(limits.read_bounded(path, _TEXT, "a bundle's facts").decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path.name} of the bundle cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{path.name} of the bundle is a {type(found).__name__}: an object is needed")
    if found.get("format") != FORMAT:
        raise InvalidArgument(
            f"the bundle has format {found.get('format')!r}, and this version of jitdnn reads {FORMAT}: install the "
            f"version that made it ({str(found.get('made_by', 'unknown'))[:60]})"
        )
    for name, (is_good, what) in _CHECKS.items():
        if not is_good(found.get(name)):
            raise InvalidArgument(
                f"bundle.json says {name} is {str(found.get(name))[:60]!r}: {what} is needed"
            )
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 1000


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_CHECKS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "name": (_is_text, "a text"),
    "task": (lambda value: value in TASKS, " or ".join(TASKS)),
    "classes": (
        lambda value: isinstance(value, list) and len(value) <= 100_000 and all(isinstance(x, str) for x in value),
        "a list of names",
    ),
    "shape": (
        lambda value: isinstance(value, list) and len(value) == 3 and all(_is_whole(each, 1, 1 << 20) for each in value)
        and math.prod(value) <= limits.IMAGE_PIXELS,
        "channels, height and width",
    ),
    "mode": (lambda value: value in MODES, " or ".join(MODES)),
    "crop": (lambda value: _is_whole(value, 0, 1 << 20), "a number of pixels, 0 for none,"),
    "scale": (_is_number, "a finite number"),
    "mean": (lambda value: isinstance(value, bool), "true or false"),
    "input": (_is_text, "the name of a blob"),
    "scores": (_is_text, "the name of a blob"),
    "answer": (_is_text, "the name of a blob"),
    "tolerance": (lambda value: _is_number(value) and value >= 0, "a number of 0 or more"),
}  # fmt: skip
