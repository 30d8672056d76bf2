"""Choosing elements, by places and by masks."""
