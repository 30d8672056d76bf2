"""What is on disk: run directories, checkpoints, and reading them back."""
