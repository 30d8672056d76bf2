def sawtooth(step, total, teeth: int = 3):
    """Falls from 1 to 0 in a line, several times: what the optimizer's rate is multiplied by."""
    return 1 - (step * teeth / total) % 1
