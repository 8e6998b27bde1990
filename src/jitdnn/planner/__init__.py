"""Which algorithm runs: by model, by measurement, within a workspace."""
