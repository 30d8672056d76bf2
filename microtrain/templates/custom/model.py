"""The model of custom.yaml: any microtrain.nn.Module will do."""

import microtrain as mt


class Net(mt.nn.Module):
    """Two layers and a shortcut around them."""

    # in_features and out_features are filled in from the data, hidden comes from the YAML.
    def __init__(self, in_features: int, out_features: int, hidden: int = 32):
        super().__init__()
        self.first = mt.nn.Linear(in_features, hidden)
        self.second = mt.nn.Linear(hidden, out_features)
        self.shortcut = mt.nn.Linear(in_features, out_features)

    def forward(self, x):
        return self.second(self.first(x).relu()) + self.shortcut(x)
