import numpy as np


def sign_momentum(p, g, average, *, lr: float = 1e-3, decay: float = 0.9):
    """Every parameter moves by `lr`, against the sign of its averaged gradient (as in Lion)."""
    average *= decay
    average += (1 - decay) * g
    p -= lr * np.sign(average)
