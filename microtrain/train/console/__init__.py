"""What a run prints."""
