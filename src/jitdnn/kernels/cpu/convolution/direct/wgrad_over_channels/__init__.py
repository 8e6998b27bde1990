"""A filter's gradient vectorized over channels, for channels-last images: plan, cost and code."""
