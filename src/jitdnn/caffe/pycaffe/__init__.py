"""pycaffe's names over this library: `import jitdnn.caffe.pycaffe as caffe`."""

from jitdnn.caffe.views import Layer

TRAIN, TEST = 0, 1

__all__ = ["TEST", "TRAIN", "Layer"]
