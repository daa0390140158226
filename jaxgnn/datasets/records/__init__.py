"""Data sets in memory, and their splits."""
