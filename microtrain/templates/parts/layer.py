import microtrain as mt


class Gated(mt.nn.Module):
    """Half of a linear layer's outputs, each multiplied by the sigmoid of one of the others."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.both = mt.nn.Linear(inputs, 2 * outputs)
        self.scale = mt.nn.Parameter(mt.ones(outputs))

    def forward(self, x):  # (rows, inputs) to (rows, outputs)
        values, gates = self.both(x).chunk(2, dim=1)
        return self.scale * values * gates.sigmoid()


class Net(mt.nn.Module):
    """A model of such layers. `in_features` and `out_features` come from the data."""

    def __init__(self, in_features: int, out_features: int, hidden: int = 32):
        super().__init__()
        self.layers = mt.nn.Sequential(Gated(in_features, hidden), Gated(hidden, hidden))
        self.out = mt.nn.Linear(hidden, out_features)

    def forward(self, x):
        return self.out(self.layers(x))
