"""A convolutional network that reads handwritten digits, as PyTorch's MNIST example trains one.

The digits are scikit-learn's, 8 x 8 pixels, so nothing is downloaded. For PyTorch change the four
imports that name microtrain: `import torch`, `import torch.nn.functional as F` and so on.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import microtrain as torch
import microtrain.nn.functional as F
from microtrain import nn, optim
from microtrain.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self, dropout=True):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.dropout1 = nn.Dropout(0.25 if dropout else 0)
        self.dropout2 = nn.Dropout(0.5 if dropout else 0)
        self.fc1 = nn.Linear(288, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def digits():
    """Images and classes, as Tensors: to train on, and to test with."""
    found = load_digits()
    images = (found.images[:, None] / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    parts = order[:1500], order[1500:]
    return [
        (torch.from_numpy(images[rows]), torch.from_numpy(found.target[rows])) for rows in parts
    ]


def batches(images, classes, size, epoch):
    order = torch.from_numpy(np.random.default_rng(epoch).permutation(len(images)))
    for start in range(0, len(images), size):
        rows = order[start : start + size]
        yield images[rows], classes[rows]


def train(model, optimizer, step, data, args, epoch):
    """One epoch; returns its mean loss."""
    model.train()
    losses = []
    for number, (images, classes) in enumerate(batches(*data, args.batch_size, epoch)):
        losses.append(step(images, classes).item())
        if number % args.log_interval == 0:
            print(f"epoch {epoch}  batch {number:3}  loss {losses[-1]:.4f}")
    return float(np.mean(losses))


def test(model, data):
    """Mean loss and accuracy of the images that were held out."""
    model.eval()
    loss = correct = 0
    with torch.no_grad():
        for images, classes in batches(*data, 1000, 0):
            output = model(images)
            loss += F.nll_loss(output, classes, reduction="sum").item()
            found = output.argmax(dim=1, keepdim=True)
            correct += found.eq(classes.view_as(found)).sum().item()
    rows = len(data[0])
    print(f"test: mean loss {loss / rows:.4f}, accuracy {correct}/{rows} ({correct / rows:.1%})")
    return loss / rows, correct / rows


def fit(model, args):
    """Train and test; returns training loss, test loss and accuracy of every epoch."""
    for_training, for_testing = digits()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    def step(images, classes):
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), classes)
        loss.backward()
        optimizer.step()
        return loss

    if args.compile:
        step = torch.compile(step)
    history = []
    for epoch in range(1, args.epochs + 1):
        loss = train(model, optimizer, step, for_training, args, epoch)
        history.append((loss, *test(model, for_testing)))
        scheduler.step()
    return history


def arguments(given=None):
    parser = argparse.ArgumentParser(description="Train a network on handwritten digits.")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7, help="factor of the rate, each epoch")
    parser.add_argument("--no-dropout", action="store_true")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    return parser.parse_args(given)


if __name__ == "__main__":
    args = arguments()
    torch.manual_seed(args.seed)
    fit(Net(dropout=not args.no_dropout), args)
