from microtrain.optim import Optimizer


class SignMomentum(Optimizer):
    """Every parameter moves by `lr`, against the sign of its averaged gradient (as in Lion)."""

    states = ("average",)  # kept for every parameter, in checkpoints too; 0 at first

    def __init__(self, params, lr: float = 1e-3, decay: float = 0.9):
        super().__init__(params, {"lr": lr, "decay": decay})  # what a group may set, the rate first

    def update(self, run):  # flat arrays of many parameters at once, to be changed in place
        lr, decay = run.options
        (average,) = run.states
        average *= decay
        average += (1 - decay) * run.grad
        run.param -= lr * ((average > 0) * 1.0 - (average < 0))
