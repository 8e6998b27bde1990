"""Forward and dgrad as a matrix product whose input is packed, or read in place, tile by tile."""
