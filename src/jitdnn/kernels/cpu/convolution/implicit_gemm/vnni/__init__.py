"""Implicit GEMM of 8-bit integers by AVX-512's dot products of four channels."""
