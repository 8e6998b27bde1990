"""A depthwise filter's gradient vectorized over groups: plan, cost and code."""
