"""Convolutions of f32 with fewer pixels than channels: products whose larger operand, the filter, is read as it is."""
