"""Random numbers of Philox on processors, and dropout."""
