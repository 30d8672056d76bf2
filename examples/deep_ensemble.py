"""How sure a regression is: a deep ensemble on the diabetes data, and whether its intervals hold.

Each network predicts a mean and a variance, and they differ in their first weights and in the order
of the rows (Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using
Deep Ensembles, NeurIPS 2017). The ensemble is their mixture. How often its intervals hold is
counted on rows that no network has seen; `--plot` draws it.
"""

import argparse
from importlib.util import find_spec
from statistics import NormalDist

import numpy as np

import microtrain as mt
from microtrain.data import ArrayDataset, DataLoader, prepare, sklearn

LEVELS = (0.5, 0.8, 0.9, 0.95)


def make(seed):
    mt.manual_seed(seed)
    model = mt.nn.Sequential(mt.nn.Linear(10, 32), mt.nn.ReLU(), mt.nn.Linear(32, 2))
    return model, mt.optim.Adam(model.parameters(), lr=0.005, weight_decay=0.01)


def mean_and_variance(output):
    return output[:, :1], mt.nn.functional.softplus(output[:, 1:]) + 1e-3


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    mean, variance = mean_and_variance(model(x))
    loss = mt.nn.functional.gaussian_nll_loss(mean, y, variance)
    loss.backward()
    optimizer.step()
    return loss


def covered(y, mean, variance, level):
    """Share of targets in the interval that is to hold with probability `level`."""
    width = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(variance)
    return float(np.mean(np.abs(y - mean) < width))


def negative_log_likelihood(y, mean, variance):
    return float(np.mean(0.5 * np.log(2 * np.pi * variance) + (y - mean) ** 2 / (2 * variance)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--plot", metavar="FILE", help="draw the calibration (needs matplotlib)")
    args = parser.parse_args()
    if args.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")

    found = prepare(sklearn("diabetes"), split={"train": 0.7, "test": 0.3}, standardize=True)
    (x, y), (test_x, test_y) = found.train.arrays, found.test.arrays
    test_y, y = (test_y - y.mean()) / y.std(), (y - y.mean()) / y.std()
    ensemble = mt.Ensemble(make, step, members=args.members)
    data = ArrayDataset(x, y)
    ensemble.train(lambda seed: DataLoader(data, batch_size=32, seed=seed), epochs=args.epochs)

    means, variances = (part.numpy() for part in mean_and_variance_of_all(ensemble.predict(test_x)))
    mean = means.mean(0)
    variance = (variances + means**2).mean(0) - mean**2  # of the mixture
    print(f"{args.members} networks, {len(x)} rows to train on, {len(test_x)} to test")
    print(f"{'':24}{'one network':>12}{'ensemble':>12}")
    singles = [negative_log_likelihood(test_y, m, v) for m, v in zip(means, variances, strict=True)]
    whole = negative_log_likelihood(test_y, mean, variance)
    print(f"{'negative log-likelihood':24}{np.mean(singles):12.3f}{whole:12.3f}")
    for level in LEVELS:
        one = np.mean([covered(test_y, m, v, level) for m, v in zip(means, variances, strict=True)])
        all_ = covered(test_y, mean, variance, level)
        print(f"{f'{level:.0%} intervals hold for':24}{one:12.1%}{all_:12.1%}")
    if args.plot:
        draw(args.plot, test_y, mean, variance, means, variances)
        print(f"drawn: {args.plot}")


def mean_and_variance_of_all(outputs):
    """Of what `predict` gives, (members, rows, 2)."""
    flat = mt.from_numpy(outputs.reshape(-1, 2))
    shape = (*outputs.shape[:2], 1)
    return [part.reshape(*shape) for part in mean_and_variance(flat)]


def draw(path, y, mean, variance, means, variances):
    import matplotlib.pyplot as plt

    levels = np.linspace(0.02, 0.98, 49)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    left.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    for m, v in zip(means, variances, strict=True):
        left.plot(levels, [covered(y, m, v, p) for p in levels], color="C1", alpha=0.2)
    left.plot(levels, [covered(y, mean, variance, p) for p in levels], color="C0", linewidth=2)
    left.set(xlabel="probability of the interval", ylabel="share of test rows in it")
    left.set_title("calibration: the ensemble (blue), each network")
    order = np.argsort(mean[:, 0])
    rows, width = np.arange(len(order)), 1.645 * np.sqrt(variance[order, 0])
    right.fill_between(rows, mean[order, 0] - width, mean[order, 0] + width, alpha=0.25)
    right.plot(rows, mean[order, 0])
    right.plot(rows, y[order, 0], ".", color="0.3", markersize=3)
    right.set(xlabel="test row, by its prediction", ylabel="disease progression, standardized")
    right.set_title("predictions with 90% intervals")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
