"""pycaffe's names over this library: `import jitdnn.caffe.pycaffe as caffe`.

net = caffe.Net("deploy.prototxt", caffe.TEST, weights="net.caffemodel")
net.blobs["data"].data[...] = images
scores = net.forward()["prob"]

docs/caffe.md says what it has, and what it leaves out.
"""

from jitdnn.caffe.layers import LAYERS
from jitdnn.caffe.pycaffe import draw, io, proto
from jitdnn.caffe.pycaffe.classifier import Classifier, Detector
from jitdnn.caffe.pycaffe.mode import (
    TEST,
    TRAIN,
    allow_python_layers,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_random_seed,
)
from jitdnn.caffe.pycaffe.net import Net
from jitdnn.caffe.pycaffe.net_spec import NetSpec, layers, params, to_proto
from jitdnn.caffe.pycaffe.solvers import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    get_solver,
)
from jitdnn.caffe.views import Layer

__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Classifier",
    "Detector",
    "Layer",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "allow_python_layers",
    "draw",
    "get_solver",
    "io",
    "layer_type_list",
    "layers",
    "params",
    "proto",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_random_seed",
    "to_proto",
]


#: the version of Caffe whose behaviour this has
__version__ = "1.0.0"


def layer_type_list() -> list[str]:
    """The types of layers that nets can have."""
    return sorted(LAYERS)
