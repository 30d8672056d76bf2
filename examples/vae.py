"""A variational autoencoder of handwritten digits; with torch only the imports are others.

Kingma and Welling, "Auto-Encoding Variational Bayes", 2014. The step is captured: its noise is
drawn anew at every replay. Needs scikit-learn, for its digits of 8 x 8 pixels.
"""

import argparse
from importlib.util import find_spec

import numpy as np
from sklearn.datasets import load_digits

import microtrain as mt
from microtrain import nn, optim
from microtrain.nn import functional as F


class VAE(nn.Module):
    def __init__(self, pixels=64, hidden=128, latent=8):
        super().__init__()
        self.encode = nn.Linear(pixels, hidden)
        self.mu, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels))

    def forward(self, x):
        h = F.relu(self.encode(x))
        mu, logvar = self.mu(h), self.logvar(h)
        return self.decode(mu + noise(mu) * (0.5 * logvar).exp()), mu, logvar


def noise(like):
    return mt.randn_like(like)


def loss_of(logits, x, mu, logvar):
    """The negative ELBO of a digit: what reconstruction costs, and the divergence from N(0, 1)."""
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
    return (reconstruction + divergence) / len(x)


def main(epochs=30, model=None, plot=None):
    """The losses of the epochs, and that of digits which were not trained on."""
    pixels = (load_digits().data / 16).astype(np.float32)
    order = np.random.default_rng(0)
    train, test = pixels[:1536], mt.from_numpy(pixels[1536:])
    mt.manual_seed(0)
    model = VAE() if model is None else model
    optimizer = optim.Adam(model.parameters(), lr=2e-3)

    @mt.compile
    def step(x):
        optimizer.zero_grad()
        logits, mu, logvar = model(x)
        loss = loss_of(logits, x, mu, logvar)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    for epoch in range(epochs):
        batches = order.permutation(len(train)).reshape(-1, 64)
        total = sum(step(mt.from_numpy(train[rows])) for rows in batches)
        losses.append(float(total) / len(batches))
        print(f"epoch {epoch}  loss {losses[-1]:.3f}")
    with mt.no_grad():
        logits, mu, logvar = model(test)
        tested = float(loss_of(logits, test, mu, logvar))
        print(f"test loss {tested:.3f}")
        if plot:
            drawn = model.decode(mt.randn(12, model.mu.out_features))
            draw(plot, test[:12], logits[:12].sigmoid(), drawn.sigmoid())
    return losses, tested


def draw(path, *rows):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(rows), figsize=(6, 2.6), layout="constrained")
    names = ("test digits", "their reconstructions", "digits decoded from noise")
    for axis, name, digits in zip(axes, names, rows, strict=True):
        axis.imshow(np.hstack(digits.numpy().reshape(-1, 8, 8)), cmap="gray_r", vmin=0, vmax=1)
        axis.set(title=name, xticks=[], yticks=[])
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--plot", metavar="FILE", help="draw digits (needs matplotlib)")
    args = parser.parse_args()
    if args.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")
    main(args.epochs, plot=args.plot)
