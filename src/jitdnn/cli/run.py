"""`jitdnn run`: a model of ONNX on images and arrays."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn import files
from jitdnn.caffe.arrays import read_npy, read_npz
from jitdnn.caffe.pycaffe.io import load_image, resize_image
from jitdnn.cli.console import print_table, say
from jitdnn.errors import InvalidArgument, InvalidShape

Array = np.ndarray[Any, Any]
_CHANNELS = (1, 3)


def run_model(
    model: Path,
    inputs: Sequence[str],
    output: Path | None,
    profile: Path | None,
    explain: bool,
    size: str | None,
    scale: float,
    mean: str | None,
    std: str | None,
    repeat: int,
    threads: int | None,
    device: str | None,
    math: str | None,
    dtype: str | None,
) -> None:
    """Run a model, print what its outputs are, and write what was asked for."""
    import jitdnn.onnx

    loaded = jitdnn.onnx.load(model, threads=threads, device=device, math=math, dtype=dtype)
    picture = _Picture(_extents(size), scale, _numbers(mean, "--mean", 0.0), _numbers(std, "--std", 1.0))
    given = _given(loaded, inputs, picture)
    results = loaded.run(given)
    if repeat > 1:
        taken = []
        for _ in range(repeat):
            start = time.perf_counter()
            loaded.run(given)
            taken.append(time.perf_counter() - start)
        say(
            f"{1e3 * min(taken):.3f} ms least, {1e3 * sorted(taken)[repeat // 2]:.3f} ms median of {repeat} runs"
        )
    rows = [_row(name, value) for name, value in zip(loaded.outputs, results, strict=True)]
    print_table("", ("output", "shape", "type", "least", "largest", "mean"), rows, "lllrrr")
    if output is not None:
        _write(output, dict(zip(loaded.outputs, results, strict=True)))
    if profile is not None:
        loaded.profile(given, profile)
    if explain:
        say(loaded.explain(given))


def _row(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, np.ndarray):
        return name, f"{len(value)} tensors", type(value).__name__, "", "", ""
    ends = ("", "", "")
    if value.size and value.dtype.kind in "iufb":
        wide = value.astype(np.float64)
        ends = (f"{wide.min():.6g}", f"{wide.max():.6g}", f"{wide.mean():.6g}")
    return name, "x".join(map(str, value.shape)) or "scalar", str(value.dtype), *ends


def _write(path: Path, results: Mapping[str, Any]) -> None:
    """The outputs by name as .npz, or a single one as .npy. Raises InvalidArgument."""
    arrays = {name: value for name, value in results.items() if isinstance(value, np.ndarray)}
    if len(arrays) < len(results):
        missing = ", ".join(name for name in results if name not in arrays)
        raise InvalidArgument(f"{missing}: a sequence of tensors has no place in {path}")
    is_single = path.suffix == ".npy"
    if is_single and len(arrays) != 1:
        raise InvalidArgument(
            f"{path} holds one array, and the model has {len(arrays)} outputs: name a .npz file"
        )

    def write(stream: Any) -> None:
        if is_single:
            np.save(stream, next(iter(arrays.values())), allow_pickle=False)
        else:
            np.savez(stream, **{name.replace("/", "_"): value for name, value in arrays.items()})  # type: ignore[arg-type]

    try:
        files.write_whole(path, write)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror or error}") from error


def _given(model: Any, inputs: Sequence[str], picture: _Picture) -> dict[str, Any]:
    """The inputs by name. Raises InvalidArgument where a file names none, or names those that are not there."""
    given: dict[str, Any] = {}
    left = list(model.inputs)
    for text in inputs:
        name, separator, rest = text.partition("=")
        if not separator or (name not in model.declared and Path(text).exists()):
            name, rest = "", text
        path = Path(rest)
        if path.suffix == ".npz":
            if name:
                raise InvalidArgument(f"{text}: a .npz file has names of its own, without {name}= before it")
            found: dict[str, Any] = read_npz(path)
        else:
            if not name:
                if not left:
                    raise InvalidArgument(
                        f"{path}: the model takes no more inputs than {', '.join(model.inputs)}"
                    )
                name = left[0]
            dtype, dims = model.declared.get(name, (None, None))
            found = {name: read_npy(path) if path.suffix == ".npy" else picture.read(path, name, dtype, dims)}
        given |= found
        left = [each for each in left if each not in found]
    return given


class _Picture:
    """How images become inputs: (pixel * scale - mean) / std, pixels from 0 to 255 in the order red, green, blue."""

    def __init__(
        self, size: tuple[int, int] | None, scale: float, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.size, self.scale, self.mean, self.std = size, scale, mean, std

    def read(self, path: Path, name: str, dtype: Any, dims: Sequence[int | str] | None) -> Array:
        """An image as the input `name`, which is (N, 1 or 3, H, W) or (N, H, W, 1 or 3). Raises InvalidShape."""
        if dims is None or len(dims) != 4:
            kind = "of any shape" if dims is None else f"({', '.join(map(str, dims))})"
            raise InvalidShape(f"{path} is an image, and input {name!r} is {kind}: give an array (.npy)")
        is_last = dims[3] in _CHANNELS and dims[1] not in _CHANNELS
        channels, space = (dims[3], dims[1:3]) if is_last else (dims[1], dims[2:])
        image = load_image(path, color=channels != 1)
        size = self.size or tuple(
            extent if isinstance(extent, int) else own
            for extent, own in zip(space, image.shape[:2], strict=True)
        )
        image = resize_image(image, size) * np.float32(255.0 * self.scale)
        image = (image - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        if not is_last:
            image = image.transpose(2, 0, 1)
        found: Array = np.ascontiguousarray(image[None]).astype(dtype or np.float32)
        return found


def _extents(size: str | None) -> tuple[int, int] | None:
    if size is None:
        return None
    parts = size.replace("x", ",").split(",")
    if len(parts) != 2 or not all(part.isdecimal() and 0 < int(part) <= 1 << 15 for part in parts):
        raise InvalidArgument(f"--size is {size}: height and width, 224,224")
    return int(parts[0]), int(parts[1])


def _numbers(text: str | None, option: str, default: float) -> list[float]:
    """One number, or one for each of three channels. Raises InvalidArgument."""
    if text is None:
        return [default]
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) not in _CHANNELS or not all(np.isfinite(found)) or (option == "--std" and 0.0 in found):
        raise InvalidArgument(f"{option} is {text}: one number, or three, 0.485,0.456,0.406")
    return found
