"""A bundle that answers: image files in, answers out, one at a time, and how long the last thousand took."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe.arrays import read_npz
from jitdnn.errors import InvalidArgument
from jitdnn.studio.export.bundle import open_bundle
from jitdnn.studio.look.classify import decode, describe
from jitdnn.studio.look.pictures import classes_over, cropped, data_url

Array = NDArray[Any]
REMEMBERED: Final = 1000
STEPS: Final = ("decode", "prepare", "net", "whole")


class Predictor:
    """The net of a bundle. Calls may come from several threads; they take turns in one of its own, as each thread has
    its own plans, and a new one would make them first.
    """

    def __init__(self, path: Path) -> None:
        """Open the bundle, run its net once on zeros, so that nobody waits for its kernels. Raises InvalidArgument."""
        self.bundle = open_bundle(path)
        self.facts, self.trained = self.bundle.facts, self.bundle.trained
        self._dataset = {"shape": self.facts["shape"], "settings": {"mode": self.facts["mode"]}}
        self._lock = threading.Lock()
        self._times: deque[tuple[float, ...]] = deque(maxlen=REMEMBERED)
        self._count = self._failed = 0
        self._begun = time.time()
        self._worker = ThreadPoolExecutor(1, "predictor")
        self._worker.submit(self._answer, np.zeros(self.trained.image_shape, np.uint8)).result()

    def predict(self, content: bytes, top: int = 5, pictures: bool = False) -> dict[str, Any]:
        """The answer to an image file's bytes, and the milliseconds of each step.

        `pictures` adds the overlay of a segmentation as a data URL. Raises InvalidArgument for what is no image.
        """
        begun = time.perf_counter()
        try:
            image = decode(self._dataset, content)
        except InvalidArgument:
            with self._lock:
                self._failed += 1
            raise
        decoded = time.perf_counter()
        answer, prepared, ran = self._worker.submit(self._answer, image).result()
        steps = (decoded - begun, prepared, ran, time.perf_counter() - begun)
        with self._lock:
            self._times.append(steps)
            self._count += 1
        found = describe(self.facts["task"], answer, self.facts["classes"], top)
        if pictures and self.facts["task"] == "segmentation":
            said = answer.argmax(0)
            found["overlay"] = data_url(classes_over(cropped(image, said.shape), said))
        milliseconds = {name: round(1e3 * value, 3) for name, value in zip(STEPS, steps, strict=True)}
        return {"task": self.facts["task"], **found, "milliseconds": milliseconds}

    def _answer(self, image: Array) -> tuple[Array, float, float]:
        """The answer to one image, and the seconds of preparing it and of the net."""
        begun = time.perf_counter()
        inputs = self.trained.prepare(image[np.newaxis])
        prepared = time.perf_counter()
        answer = self.trained.run(inputs)[0]
        return answer, prepared - begun, time.perf_counter() - prepared

    def check(self) -> tuple[float, float] | None:
        """How far the answers to the bundle's samples are from those in it, and how far they may be; None without
        samples."""
        file = self.bundle.folder / "samples.npz"
        if not file.is_file():
            return None
        samples = read_npz(file, ["images", "answers"])
        found = self._worker.submit(self.trained.predict, samples["images"]).result()
        expected = samples["answers"].astype(np.float64)
        if found.shape != expected.shape:
            raise InvalidArgument(
                f"the bundle's samples have answers of shape {expected.shape}, the net's {found.shape}"
            )
        distance = float(np.abs(found - expected).max(initial=0.0))
        return distance, self.facts["tolerance"] * max(1.0, float(np.abs(expected).max(initial=0.0)))

    def latency(self) -> dict[str, Any]:
        """How many answers there were, and the milliseconds of the last thousand: median, 95th and 99th percentile."""
        with self._lock:
            times, count, failed = list(self._times), self._count, self._failed
        found: dict[str, Any] = {"answers": count, "refused": failed, "since": self._begun}
        for name, values in zip(STEPS, zip(*times, strict=True), strict=True) if times else ():
            found[name] = percentiles(values)
        return found

    def close(self) -> None:
        """End the thread and remove what was unpacked."""
        self._worker.shutdown()
        self.bundle.close()


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds: median, 95th and 99th percentile, the longest."""
    values = 1e3 * np.array(seconds)
    low, high, highest = np.quantile(values, [0.5, 0.95, 0.99])
    named = {"median": low, "p95": high, "p99": highest, "most": values.max()}
    return {name: round(float(value), 3) for name, value in named.items()}
