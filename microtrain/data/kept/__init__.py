"""Rows as .npy files: kept for runs to come, and shared by the ranks of a host."""
