"""What people look at: curves, pictures, the report of a run, runs compared."""
