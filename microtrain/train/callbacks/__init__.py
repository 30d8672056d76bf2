"""What is done between the steps of a run: one class, one list."""
