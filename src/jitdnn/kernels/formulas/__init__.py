"""What operations compute, written once for every target: expressions of elements and programs over rows."""
