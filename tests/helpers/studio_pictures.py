"""Pictures in folders and zip files, as people bring them to the studio."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def png(seed: int, size: tuple[int, int] = (12, 9), mode: str = "RGB", **options: Any) -> bytes:
    """A file of a smooth picture (width, height) that no other seed has."""
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (4, 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).convert(mode).save(file, "PNG", **options)
    return file.getvalue()


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    """The files below a folder."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_zip(path: Path, files: dict[str, bytes], **options: Any) -> Path:
    """The files in a zip file."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def classes(counts: dict[str, int], prefix: str = "", start: int = 0) -> dict[str, bytes]:
    """Files of classes: {"cat": 3} are cat/0.png to cat/2.png, all different."""
    found = {}
    for label, count in counts.items():
        for k in range(count):
            found[f"{prefix}{label}/{k}.png"] = png(start + len(found))
    return found
