"""Handwritten digits drawn by a network: A. Radford et al., "Unsupervised representation learning
with deep convolutional generative adversarial networks", 2016.

A generator makes images of noise, a discriminator tells them from those of scikit-learn, and each
learns from the other. Except for the first imports it is the same program with PyTorch.

    python examples/dcgan.py --epochs 20 --compile
"""

import argparse
from importlib.util import find_spec

import numpy as np
from sklearn.datasets import load_digits

import microtrain as mt
from microtrain import nn

NOISE, WIDTH, BATCH = 32, 16, 64


def generator():
    """Noise (n, NOISE, 1, 1) to images (n, 1, 16, 16) from -1 to 1."""
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 4 * WIDTH, 4, bias=False),
        nn.BatchNorm2d(4 * WIDTH),
        nn.ReLU(),
        nn.ConvTranspose2d(4 * WIDTH, 2 * WIDTH, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(2 * WIDTH),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * WIDTH, 1, 4, stride=2, padding=1, bias=False),
        nn.Tanh(),
    )


def discriminator():
    """Images (n, 1, 16, 16) to the probability that they are real, (n,)."""
    return nn.Sequential(
        nn.Conv2d(1, 2 * WIDTH, 4, stride=2, padding=1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * WIDTH, 4 * WIDTH, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4 * WIDTH),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4 * WIDTH, 1, 4, bias=False),
        nn.Sigmoid(),
        nn.Flatten(0),
    )


def initialize(module):
    """The weights of the paper."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def images():
    """All digits, (1797, 1, 16, 16) from -1 to 1."""
    small = mt.from_numpy(load_digits().images.astype(np.float32) / 8 - 1)
    return nn.functional.interpolate(small.unsqueeze(1), scale_factor=2, mode="bilinear").numpy()


def batches(rng, epochs):
    """The epoch, real images and noise of each step."""
    real = images()
    for epoch in range(epochs):
        order = rng.permutation(len(real))
        for start in range(0, len(real) - BATCH + 1, BATCH):
            noise = rng.standard_normal((BATCH, NOISE, 1, 1), np.float32)
            rows = real[order[start : start + BATCH]]
            yield epoch, mt.from_numpy(rows), mt.from_numpy(noise)


def steps(draw, judge):
    """The step that teaches the discriminator `judge` and the one that teaches `draw`."""
    criterion = nn.BCELoss()
    judging = mt.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    drawing = mt.optim.Adam(draw.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def judge_step(real, noise):
        judging.zero_grad()
        fake = draw(noise).detach()
        loss = criterion(judge(real), mt.ones(BATCH)) + criterion(judge(fake), mt.zeros(BATCH))
        loss.backward()
        judging.step()
        return loss.detach()

    def draw_step(noise):
        drawing.zero_grad()
        loss = criterion(judge(draw(noise)), mt.ones(BATCH))
        loss.backward()
        drawing.step()
        return loss.detach()

    return judge_step, draw_step


def train(draw, judge, rng, epochs, compiled=False):
    """Train both; yields the epoch and both losses after each step."""
    both = steps(draw, judge)
    judge_step, draw_step = map(mt.compile, both) if compiled else both
    for epoch, real, noise in batches(rng, epochs):
        judged = judge_step(real, noise)
        drawn = draw_step(noise)
        yield epoch, judged.item(), drawn.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="capture both steps")
    parser.add_argument("--plot", metavar="FILE", help="draw digits (needs matplotlib)")
    options = parser.parse_args()
    if options.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")
    mt.manual_seed(0)
    draw, judge = generator(), discriminator()
    draw.apply(initialize)
    judge.apply(initialize)
    losses = np.array(
        [*train(draw, judge, np.random.default_rng(0), options.epochs, options.compile)]
    )
    for epoch in range(options.epochs):
        judged, drawn = losses[losses[:, 0] == epoch, 1:].mean(0)
        print(f"epoch {epoch + 1}: discriminator {judged:.4f}, generator {drawn:.4f}")
    draw.eval()
    with mt.no_grad():
        drawn = draw(
            mt.from_numpy(np.random.default_rng(1).standard_normal((36, NOISE, 1, 1), np.float32))
        ).numpy()
    for line in drawn[0, 0]:
        print("".join(" .:*#"[int((value + 1) * 2.49)] for value in line))
    if options.plot:
        plot(options.plot, images()[:36], drawn)


def plot(path, *sides):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(6, 3.2), layout="constrained")
    for axis, name, digits in zip(axes, ("real digits", "drawn digits"), sides, strict=True):
        digits = digits.reshape(6, 6, 16, 16)
        rows = [np.hstack([np.pad(d, 1, constant_values=-1) for d in r]) for r in digits]
        axis.imshow(np.vstack(rows), cmap="gray_r", vmin=-1, vmax=1)
        axis.set(title=name, xticks=[], yticks=[])
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
