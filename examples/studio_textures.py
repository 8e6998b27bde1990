"""Photographs of three textures as a data set for the studio: crops of 64 x 64, none of which shares a pixel with
another.

    python examples/studio_textures.py textures.zip

writes a zip file with folders train, val and test, each with one folder a texture; drop it on the page "New data
set" with width and height 64, greyscale. The photographs (brick, grass, gravel; 512 x 512, grey) come with
scikit-image.

Crops that overlap, or neighbours that lie in two parts, would be leaks: a net would be tested by what it was
trained on. So each photograph is divided into three bands first, with 32 rows between them that nobody gets.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 64
#: the rows of each part: 4, 1 and 1 rows of crops, with gaps between them
BANDS = {"train": (0, 256), "val": (288, 352), "test": (384, 448)}


def crops(photograph: NDArray[np.uint8], first: int, last: int) -> list[NDArray[np.uint8]]:
    """All crops of a band of rows, side by side."""
    return [
        photograph[row : row + SIDE, column : column + SIDE]
        for row in range(first, last - SIDE + 1, SIDE)
        for column in range(0, photograph.shape[1] - SIDE + 1, SIDE)
    ]


def write(path: Path) -> int:
    """Write the zip file; return the number of crops."""
    from skimage import data

    count = 0
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("brick", "grass", "gravel"):
            photograph = getattr(data, name)()
            for part, (first, last) in BANDS.items():
                for number, crop in enumerate(crops(photograph, first, last)):
                    file = io.BytesIO()
                    Image.fromarray(crop).save(file, "PNG")
                    archive.writestr(f"textures/{part}/{name}/{number}.png", file.getvalue())
                    count += 1
    return count


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "textures.zip")
    print(f"{write(target)} crops in {target}")
