"""Convolutions of images with few channels: the first layer of a net."""
