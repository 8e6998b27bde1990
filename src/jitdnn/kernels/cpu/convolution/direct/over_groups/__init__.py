"""Forward and backward data of many small groups, vectorized over groups: plan, cost and code."""
