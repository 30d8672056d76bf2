"""A training step: how it is executed, and what happens where numbers are not finite."""
