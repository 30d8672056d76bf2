import microtrain as mt


def pinball(prediction, target, share: float = 0.9):
    """Quantile regression: the smallest loss has a prediction with this share of targets below."""
    error = target - prediction
    return mt.maximum(share * error, (share - 1) * error).mean()
