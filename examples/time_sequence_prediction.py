"""Two LSTM cells that continue sine waves, as PyTorch's time sequence example trains them: L-BFGS.

The waves are made here, so nothing is downloaded. For PyTorch change the imports that name
microtrain: `import torch`, `from torch import nn, optim`.
"""

import argparse
from importlib.util import find_spec

import numpy as np

import microtrain as torch
from microtrain import nn, optim


class Sequence(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.lstm1 = nn.LSTMCell(1, hidden)
        self.lstm2 = nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, input, future=0):
        """The next value after each of (waves, steps), and `future` more, each from the last."""
        outputs = []
        h_t = torch.zeros(input.size(0), self.hidden, dtype=torch.float64)
        c_t = torch.zeros(input.size(0), self.hidden, dtype=torch.float64)
        h_t2 = torch.zeros(input.size(0), self.hidden, dtype=torch.float64)
        c_t2 = torch.zeros(input.size(0), self.hidden, dtype=torch.float64)

        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs.append(output)
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs.append(output)
        return torch.cat(outputs, dim=1)


def waves(count, length):
    """Sine waves of one period, each from a random place on."""
    start = np.random.default_rng(2).integers(-80, 80, (count, 1))
    return np.sin((np.arange(length) + start) / 6.0)


def fit(model, args):
    """Train; returns the loss of every call of the closure, and the test loss after every step."""
    data = waves(args.waves, args.length + 1)
    input = torch.from_numpy(data[3:, :-1].copy())
    target = torch.from_numpy(data[3:, 1:].copy())
    test_input = torch.from_numpy(data[:3, :-1].copy())
    test_target = torch.from_numpy(data[:3, 1:].copy())
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(model.parameters(), lr=0.8)

    def evaluate(input, target):
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        loss.backward()
        return loss

    if args.compile:
        evaluate = torch.compile(evaluate)
    losses, tests = [], []

    def closure():
        loss = evaluate(input, target)
        losses.append(loss.item())
        return loss

    for step in range(args.steps):
        optimizer.step(closure)
        with torch.no_grad():
            future = args.length
            found = model(test_input, future=future)
            tests.append(criterion(found[:, :-future], test_target).item())
        print(f"step {step}  loss {losses[-1]:.3e}  test {tests[-1]:.3e}")
    return losses, tests, found


def arguments(given=None):
    parser = argparse.ArgumentParser(description="Learn to continue sine waves.")
    parser.add_argument("--steps", type=int, default=5, help="steps of L-BFGS")
    parser.add_argument("--waves", type=int, default=20)
    parser.add_argument("--length", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--compile", action="store_true", help="capture loss and gradient")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="draw the waves (needs matplotlib)")
    args = parser.parse_args(given)
    if args.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return args


def draw(path, truth, found):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, figsize=(5, 3.6), sharex=True, sharey=True, layout="constrained")
    length = len(truth[0]) // 2
    steps = np.arange(1, 2 * length + 1)
    for axis, wave, predicted in zip(axes, truth, found, strict=True):
        axis.plot(wave, color="0.7", linewidth=4, label="truth")
        axis.plot(steps[:length], predicted[:length], label="one step ahead")
        axis.plot(steps[length:], predicted[length:], label="continued alone")
        axis.set_ylabel("value")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    axis.set(xlabel="step")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    args = arguments()
    torch.manual_seed(args.seed)
    _, _, found = fit(Sequence(args.hidden).double(), args)
    if args.plot:
        draw(args.plot, waves(args.waves, 2 * args.length + 1)[:3], found.numpy())
