"""A filter's gradient vectorized over pixels: plan, cost and code."""
