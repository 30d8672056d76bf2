"""A model of your own, for custom_model.yaml."""

import microtrain as mt


class Net(mt.nn.Module):
    """Two layers with a shortcut from the input: Tensors (n, in_features) to (n, out_features).

    in_features and out_features come from the data, as the YAML leaves them out.
    """

    def __init__(self, in_features: int, out_features: int, hidden: int = 32) -> None:
        super().__init__()
        self.expand = mt.nn.Linear(in_features, hidden)
        self.reduce = mt.nn.Linear(hidden, out_features)
        self.shortcut = mt.nn.Linear(in_features, out_features)

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        return self.reduce(mt.relu(self.expand(x))) + self.shortcut(x)
