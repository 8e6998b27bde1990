"""Forward and dgrad by Winograd's minimal filtering."""
