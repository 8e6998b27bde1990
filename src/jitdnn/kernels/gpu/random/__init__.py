"""Random numbers of Philox in plain C, and dropout."""
