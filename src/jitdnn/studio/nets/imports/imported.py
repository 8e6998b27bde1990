"""What comes in, and what is told of it: text, weights and a report line by line."""

from __future__ import annotations

import io
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

from jitdnn.caffe import NetParameter, parse
from jitdnn.errors import InvalidArgument
from jitdnn.studio.nets.imports.code import read_code
from jitdnn.studio.nets.imports.onnx_models import read_onnx
from jitdnn.studio.nets.imports.torch_programs import read_program
from jitdnn.studio.nets.imports.writing import NetWriter
from jitdnn.studio.nets.weights import keep_weights

MOST_BYTES: Final = 1 << 30
_READERS: Final = {".onnx": read_onnx, ".pt2": read_program}


def import_file(content: bytes, name: str, home: Path) -> dict[str, Any]:
    """The net of a file: .onnx, or .pt2 of torch.export.

    `ok` (everything was taken over), `name`, `text` (prototxt), `weights` (the value of that option, for weights which
    are kept in the home, "" where something is missing), and `report`, a row each for what was given: where, what,
    became, is_ok. Raises InvalidArgument for what is no such file.
    """
    suffix = PurePath(name).suffix.lower()
    if len(content) > MOST_BYTES:
        raise InvalidArgument(f"{name[:80]!r} has {len(content):,} bytes: {MOST_BYTES:,} are read")
    if suffix in (".py", ".txt"):
        return import_code(content.decode("utf-8", "replace"))
    if suffix not in _READERS:
        what = " (a pickle, which could run code)" if suffix in (".pt", ".pth", ".pkl") else ""
        raise InvalidArgument(
            f"{name[:80]!r}{what} is not read: .onnx, .pt2 of torch.export.save, or .py that lists layers"
        )
    stem = PurePath(name).stem[:60] or "imported"
    found = _READERS[suffix](content, stem)
    told = _told(found)
    if told["ok"] and found.weights:
        file = io.BytesIO()
        arrays: dict[str, Any] = found.weights
        np.savez(file, **arrays)
        file.seek(0)
        told["weights"] = f"file:{keep_weights(home, f'{stem}.npz', file)}"
    return told


def import_code(text: str, shape: tuple[int, ...] | None = None) -> dict[str, Any]:
    """The net that code of Keras or PyTorch lists, told as `import_file` does; it has no weights. `shape` (C, H, W) of
    images is taken where the code does not say."""
    return _told(read_code(text, shape))


def _told(net: NetWriter) -> dict[str, Any]:
    text = net.text
    parse(text, NetParameter)
    return {
        "ok": all(row["is_ok"] for row in net.report),
        "name": net.name,
        "text": text,
        "weights": "",
        "report": net.report,
    }
