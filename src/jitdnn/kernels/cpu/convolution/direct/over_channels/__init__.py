"""Forward and backward data vectorized over channels, for channels-last images: plan, cost and code."""
