"""Forward and backward data vectorized over pixels: plan, cost and code."""
