"""wgrad by Winograd's minimal filtering."""
