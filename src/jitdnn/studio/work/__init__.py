"""What runs: the queue, one process for each training, and processes that answer pages (the inspector)."""
