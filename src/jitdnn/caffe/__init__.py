"""Caffe's formats and training: prototxt in, trained net out."""
