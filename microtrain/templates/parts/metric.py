import numpy as np


def tail_error(prediction, target, share: float = 0.9):
    """The error that this share of the rows stays below, so outliers do not hide in a mean."""
    return np.quantile(np.abs(prediction - target), share)


tail_error.higher_is_better = False  # what checkpoint.monitor and early stopping go by
