"""Layers whose messages and updates are functions of the user."""
