"""`from jitdnn.caffe.pycaffe.proto import caffe_pb2`, as scripts of pycaffe do."""

from jitdnn.caffe.pycaffe.proto import caffe_pb2

__all__ = ["caffe_pb2"]
