"""Tables with columns of all kinds, and how they become the numbers that a model takes."""
