"""Forward and backward data vectorized over groups, whose small planes are packed first: plan, cost and code."""
