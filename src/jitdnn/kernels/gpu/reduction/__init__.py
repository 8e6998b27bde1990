"""Programs over rows in plain C: reductions, softmax, losses, scans."""
