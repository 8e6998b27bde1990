"""Images as training would give them to a net: the crops and mirrors of the code that trains."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitdnn.studio.nets.preview import IMAGES, TIMES, preview

Image = pytest.importorskip("PIL.Image")
DATA: dict[str, Any] = {
    "id": 1, "name": "few", "task": "classification", "shape": [3, 8, 10], "classes": ["a", "b"], "train": 9, "val": 3,
    "test": 0,
}  # fmt: skip
NET = """layer { name: "d" type: "Data" top: "data" top: "label" transform_param { scale: 0.1 mean_value: 90 %s } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }"""


@pytest.fixture
def images(tmp_path: Path) -> np.ndarray:
    made = np.random.default_rng(0).integers(0, 256, (9, 3, 8, 10), np.uint8)
    folder = tmp_path / "data" / "1"
    folder.mkdir(parents=True)
    np.save(folder / "train_data.npy", made)
    np.save(folder / "train_label.npy", np.arange(9) % 2)
    return made


def cells(png: bytes, height: int, width: int, rows: int = IMAGES) -> list[list[np.ndarray]]:
    """The pictures of a page as (C, H, W) in blue, green, red, by rows."""
    page = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))
    assert page.shape[:2] == (rows * (height + 2) - 2, TIMES * (width + 2) - 2)
    return [
        [
            page[row : row + height, column : column + width, 2::-1].transpose(2, 0, 1)
            for column in range(0, page.shape[1], width + 2)
        ]
        for row in range(0, page.shape[0], height + 2)
    ]


def test_crops_and_mirrors_are_of_the_image_of_their_row(images: np.ndarray, tmp_path: Path) -> None:
    found = preview(NET % "crop_size: 6 mirror: true", {}, DATA, tmp_path)
    assert (found["ok"], found["shape"], found["is_random"]) == (True, [3, 6, 6], True)
    every = {image[:, top : top + 6, left : left + 6][:, :, ::step].tobytes(): at for at, image in enumerate(images)
             for top in range(3) for left in range(5) for step in (1, -1)}  # fmt: skip
    for row in cells(found["png"], 6, 6):
        sources = [every[cell.tobytes()] for cell in row]
        assert len(set(sources)) == 1
        assert len({cell.tobytes() for cell in row}) > 1


def test_without_crop_and_mirror_images_stay_as_they_are(images: np.ndarray, tmp_path: Path) -> None:
    found = preview(NET % "", {}, DATA, tmp_path)
    assert not found["is_random"]
    known = {image.tobytes() for image in images}
    [row] = cells(found["png"], 8, 10, 1)
    assert len({cell.tobytes() for cell in row} & known) == TIMES
    cropped = preview(NET % "", {"crop": 4, "mirror": "true"}, DATA, tmp_path)
    assert (cropped["shape"], cropped["is_random"]) == ([3, 4, 4], True)


def test_what_does_not_fit_is_said_with_its_line(images: np.ndarray, tmp_path: Path) -> None:
    found = preview(NET % "crop_size: 60", {}, DATA, tmp_path)
    assert not found["ok"]
    assert "crop_size 60" in found["error"]
    assert preview(NET % "crop_sized: 60", {}, DATA, tmp_path)["line"] == 1
