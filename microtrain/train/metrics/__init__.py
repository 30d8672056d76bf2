"""Metrics, exact over ranks."""
