"""What every kernel on a GPU costs beside its work."""

LAUNCH_SECONDS = 3e-6
