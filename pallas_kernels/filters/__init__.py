"""Sums of neighbours that are filtered channel by channel."""
