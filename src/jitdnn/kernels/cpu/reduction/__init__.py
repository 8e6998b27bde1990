"""Programs over rows on processors: reductions, softmax, losses, scans."""
