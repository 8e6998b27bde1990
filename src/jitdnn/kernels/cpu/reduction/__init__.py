"""Programs over rows on processors: their generator, scans, and a fused cross-entropy."""
