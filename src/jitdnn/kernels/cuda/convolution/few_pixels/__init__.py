"""Convolutions of f32 with fewer pixels than channels: products that read their larger operand, the filter, as f32."""
