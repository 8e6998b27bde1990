"""Convolutions by Winograd's minimal filtering on GPUs: transforms in plain C around a batched matrix product."""
