"""Instructions of NVIDIA GPUs beyond plain C."""
