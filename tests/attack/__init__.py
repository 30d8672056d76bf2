"""The kinds of `scripts/attack`, one a file: each makes a trial of a seed and raises a Defect."""
