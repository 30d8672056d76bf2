"""The batches of a rank, and the order of the rows in an epoch."""
