"""How long the pages about a trained net take to make: LeNet on the digits that are shipped, one process, warm.

python benchmarks/studio_look.py [iterations of training, 60]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from jitdnn.caffe import load_solver, paths
from jitdnn.studio.data import creation, open_dataset
from jitdnn.studio.export import exports
from jitdnn.studio.export.predictor import Predictor
from jitdnn.studio.look import classify, evaluate, layers, maximize, predictions, saliency
from jitdnn.studio.look.pictures import image_png
from jitdnn.studio.look.trained import Given
from jitdnn.studio.store import Store


def main(iterations: int) -> None:
    with TemporaryDirectory() as scratch:
        home = Path(scratch)
        store = Store(home)
        dataset = store.one("dataset", creation.digits(store))
        run = store.one("run", store.insert("run", name="LeNet", dataset=1, options={"batch": 64}))
        assert dataset is not None
        assert run is not None
        folder = home / "runs" / "1"
        folder.mkdir(parents=True)
        text = paths.find("package:models/lenet.prototxt").read_text()
        text = text.replace("package:data/mnist_5k.npz", "../../data/1")
        (folder / "net.prototxt").write_text(text)
        solver = paths.find("package:models/lenet_solver.prototxt").read_text()
        (folder / "solver.prototxt").write_text(
            solver.replace("package:models/lenet.prototxt", "net.prototxt")
        )
        trainer = load_solver(folder / "solver.prototxt", snapshot_prefix=str(folder / "snap"))
        trainer.step(iterations)
        trainer.net.save_weights(folder / "best.npz")
        case = (home, run, dataset)

        def evaluation() -> None:
            for file in (folder / "evaluation").glob("*"):
                file.unlink()
            done = predictions.predict_some(*case, "test", seconds=60)
            evaluate.summarize(*case, "test", done["key"])

        exports.export(*case, "bundle")
        served = Predictor(folder / "export" / "bundle-best.bundle.zip")
        content = image_png(np.asarray(open_dataset(home, dataset).images("test")[3]))
        asked: dict[str, Callable[[], object]] = {
            "evaluation, 500 images": evaluation,
            "classify one image": lambda: classify.classify(*case, Given(part="test", at=3)),
            "activations of all layers, as pictures": lambda: layers.activations(
                *case, Given(part="test", at=3)
            ),
            "weights of all layers, as pictures": lambda: layers.learned(*case),
            "gradient": lambda: saliency.saliency(*case, "gradient", Given(part="test", at=3)),
            "smoothed gradient, 16 copies": lambda: saliency.saliency(
                *case, "smooth", Given(part="test", at=3)
            ),
            "occlusion, 529 places": lambda: saliency.saliency(*case, "occlusion", Given(part="test", at=3)),
            "16 units of conv2, 128 steps": lambda: maximize.maximize(*case, "conv2", list(range(16))),
            "export to ONNX, checked": lambda: exports.export(*case, "onnx"),
            "export of a bundle, checked": lambda: exports.export(*case, "bundle"),
            "an answer of the served bundle": lambda: served.predict(content),
        }
        for name, run_it in asked.items():
            times = []
            for _ in range(8):
                begun = time.perf_counter()
                run_it()
                times.append(time.perf_counter() - begun)
            sys.stdout.write(
                f"{name:42} {1e3 * times[0]:8.1f} ms first {1e3 * median(times[1:]):8.1f} ms then\n"
            )
        served.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
