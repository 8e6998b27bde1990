"""Programs over rows in plain C: their generator, and scans."""
