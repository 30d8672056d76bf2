"""From what a data component returns to the parts of a run: checked, split, standardized, cast."""
