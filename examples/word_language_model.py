"""A word language model: what the next word of a text is, from all words before it.

The recurrent network of PyTorch's example of this name, on text that a small grammar makes. With
`import torch as mt` and `from torch import nn` the same file trains with PyTorch.

    python examples/word_language_model.py
    python examples/word_language_model.py --cell GRU --layers 1 --tied --dropout 0.2
"""

import argparse
import math
import random
from importlib.util import find_spec

import numpy as np

import microtrain as mt
from microtrain import nn

NOUNS = {"dog": "dogs", "cat": "cats", "child": "children", "bird": "birds", "king": "kings"}
VERBS = {"sees": "see", "hears": "hear", "follows": "follow", "likes": "like"}
ADJECTIVES = ["old", "young", "quiet", "happy", "hungry"]
PLACES = ["in the garden", "at the river", "near the house"]


def phrase(draw, plural):
    """A noun with what stands before it and perhaps behind it."""
    words = [draw.choice(["these", "two", "the"] if plural else ["a", "this", "the"])]
    words += [draw.choice(ADJECTIVES) for _ in range(draw.randrange(3))]
    singular = draw.choice(list(NOUNS))
    words.append(NOUNS[singular] if plural else singular)
    return words + (draw.choice(PLACES).split() if draw.random() < 0.3 else [])


def text(seed, sentences):
    """Sentences whose verbs agree with a noun that may stand several words before them."""
    draw, words = random.Random(seed), []
    for _ in range(sentences):
        plural = draw.random() < 0.5
        verb = draw.choice(list(VERBS))
        words += [*phrase(draw, plural), VERBS[verb] if plural else verb]
        words += [*phrase(draw, draw.random() < 0.5), "<eos>"]
    return words


class Model(nn.Module):
    """Words to vectors, recurrent layers, vectors to a score for every word."""

    def __init__(self, cell, words, size, layers, dropout, tied):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(words, size)
        self.rnn = getattr(nn, cell)(size, size, layers, dropout=dropout if layers > 1 else 0.0)
        self.decoder = nn.Linear(size, words)
        if tied:  # Press and Wolf, "Using the output embedding to improve language models", 2016
            self.decoder.weight = self.encoder.weight
        # Drawn by NumPy: the same in both libraries.
        draw = np.random.default_rng(0)
        with mt.no_grad():
            for parameter in self.parameters():
                values = draw.uniform(-0.1, 0.1, tuple(parameter.shape))
                parameter.copy_(mt.from_numpy(values.astype(np.float32)))

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)).flatten(0, 1), hidden


def columns(numbers, count):
    """A text as `count` columns, each a part of it from top to bottom."""
    rows = len(numbers) // count
    return mt.tensor(numbers[: rows * count]).reshape(count, rows).t().contiguous()


def batches(source, steps):
    """Pieces of all columns with the words that follow; whole ones, so that shapes are equal."""
    for start in range(0, len(source) - steps, steps):
        yield source[start : start + steps], source[start + 1 : start + 1 + steps].flatten()


def start(cell, layers, count, size):
    """States of zeros."""
    zeros = mt.zeros(layers, count, size)
    return (zeros, zeros.clone()) if cell == "LSTM" else zeros


def detached(hidden):
    """The states as numbers, so that the next piece does not go back into this one."""
    return tuple(h.detach() for h in hidden) if isinstance(hidden, tuple) else hidden.detach()


def main(arguments=None):
    """Train, and return the perplexity of the text that was not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", choices=["LSTM", "GRU", "RNN"], default="LSTM")
    parser.add_argument("--size", type=int, default=64, help="of word vectors and states")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--tied", action="store_true", help="one matrix for words in and out")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20, help="words that gradients go back")
    parser.add_argument("--lr", type=float, default=10.0)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--plot", metavar="FILE", help="draw predicted verbs (needs matplotlib)")
    given = parser.parse_args(arguments)
    if given.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")

    mt.manual_seed(0)
    training, validation = text(1, given.sentences), text(2, given.sentences // 10)
    known = {word: number for number, word in enumerate(sorted(set(training + validation)))}
    train_data = columns([known[word] for word in training], 16)
    valid_data = columns([known[word] for word in validation], 8)
    model = Model(given.cell, len(known), given.size, given.layers, given.dropout, given.tied)
    optimizer = mt.optim.SGD(model.parameters(), lr=given.lr)

    @mt.compile
    def train(words, following, hidden):
        optimizer.zero_grad()
        output, hidden = model(words, hidden)
        loss = nn.functional.cross_entropy(output, following)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        optimizer.step()
        return loss.detach(), detached(hidden)

    @mt.compile
    def evaluate(words, following, hidden):
        with mt.no_grad():
            output, hidden = model(words, hidden)
            return nn.functional.cross_entropy(output, following), hidden

    best = math.inf
    for epoch in range(given.epochs):
        means = []
        for step, data in ((train, train_data), (evaluate, valid_data)):
            model.train(step is train)
            hidden = start(given.cell, given.layers, data.shape[1], given.size)
            losses = []
            for words, following in batches(data, given.steps):
                loss, hidden = step(words, following, hidden)
                losses.append(loss.item())
            means.append(sum(losses) / len(losses))
        perplexities = [math.exp(mean) for mean in means]
        print("epoch {}  perplexity {:.4f}, of other text {:.4f}".format(epoch, *perplexities))
        if means[1] >= best:  # no better: smaller steps
            for group in optimizer.param_groups:
                group["lr"] /= 4
        best = min(best, means[1])
    if given.plot:
        draw(given, model, known)
    return math.exp(best)


def draw(given, model, known):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    verbs = [*VERBS, *VERBS.values()]
    for side, beginning in ((-0.2, "the dog in the garden"), (0.2, "the dogs in the garden")):
        words = mt.tensor([[known[word]] for word in ("<eos> " + beginning).split()])
        with mt.no_grad():
            scores, _ = model(words, start(given.cell, given.layers, 1, given.size))
        chances = scores[-1].softmax(0).numpy()[[known[verb] for verb in verbs]]
        axis.bar(np.arange(len(verbs)) + side, chances, 0.4, label=f"{beginning} …")
    axis.legend(loc="upper center")
    axis.set(xticks=range(len(verbs)), xticklabels=verbs, ylabel="probability of the next word")
    figure.savefig(given.plot, dpi=100)


if __name__ == "__main__":
    main()
