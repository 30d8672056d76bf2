"""Finds what a misspelt name was meant to be, for every `did you mean`.

Slips of the fingers are weighted by how often they happen: two neighbours swapped 2, a letter
dropped or doubled 3, a stray letter 4, another letter in its place 6. So the nearest word is the
one that was meant where plain edit distance is undecided: `mrse` is rmse with two letters swapped,
not mse with a stray one; `adamm` is adam, not adamw.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# What other tools call a key, and what it is here.
OTHER_KEYS = {
    **dict.fromkeys(("epochs", "num_epochs", "max_epochs", "n_epochs"), "train.duration"),
    **dict.fromkeys(("steps", "num_steps", "max_steps", "iterations"), "train.duration"),
    **dict.fromkeys(("lr", "learning_rate"), "optimizer.lr"),
    **dict.fromkeys(("gpu", "accelerator"), "device"),
    **dict.fromkeys(("criterion", "objective"), "loss"),
    **dict.fromkeys(("output_dir", "out_dir", "logdir"), "run_dir"),
    "gradient_accumulation_steps": "train.accumulate",
    "precision": "dtype",
    "network": "model",
}

# The same for values.
_OTHER_WORDS = {
    **dict.fromkeys(("yes", "on", "y"), "true"),
    **dict.fromkeys(("no", "off", "n"), "false"),
    **dict.fromkeys(("float", "single", "fp32", "f32"), "float32"),
    **dict.fromkeys(("double", "fp64", "f64"), "float64"),
    "gpu": "cuda",
}


_SLIP = 4  # the most that a single slip costs
_OTHER_LETTER = 6


def closest(word: str, candidates: Collection[str]) -> str | None:
    """The candidate that `word` most plausibly misspells, or None; the first one wins a tie."""
    word = _normal(word)
    best, best_cost = None, _SLIP * (len(word) // 3 + 1)
    for candidate in candidates:
        cost = _cost(word, candidate.lower())
        if cost < best_cost or (cost == best_cost and best is None):
            best, best_cost = candidate, cost
    if best is None and len(word) >= 4:  # `optim`, `batch`, `accumulate_steps`
        for candidate in candidates:
            if len(candidate) >= 4 and (candidate.startswith(word) or word.startswith(candidate)):
                return candidate
    return best


def is_slip(word: str, meant: str) -> bool:
    """Whether `word` is `meant` but for one slip of the fingers."""
    return _cost(_normal(word), meant.lower()) <= _SLIP


def did_you_mean(word: str, candidates: Collection[str]) -> str:
    """`; did you mean NAME?`, or the empty text when nothing is near."""
    found = closest(word, candidates)
    return f"; did you mean {found}?" if found else ""


def choice(text: str, expected: str) -> str:
    """`did you mean`, where `expected` ("stop or skip") names a few words to choose from."""
    words = re.findall(r"\w{3,}", expected)
    typed = text.split()[-1] if "`" in expected and text.strip() else text  # a duration's unit
    near = _OTHER_WORDS.get(text.lower()) or closest(typed, words)
    helps = near in words and near != typed and " or " in expected
    return f"; did you mean {near}?" if helps else ""


def _normal(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")


def _cost(typed: str, meant: str) -> int:
    """Edit distance with swaps of neighbours (optimal string alignment), weighted as above."""
    if len(typed) > 40 or abs(len(typed) - len(meant)) > 5:
        return 1000
    older: list[int] = []
    old = [3 * j for j in range(len(meant) + 1)]
    for i, x in enumerate(typed):
        stray = 3 if i and typed[i - 1] == x else _SLIP
        new = [old[0] + stray]
        for j, y in enumerate(meant):
            other = old[j] + (0 if x == y else _OTHER_LETTER)
            cost = min(old[j + 1] + stray, new[j] + 3, other)
            if i and j and x == meant[j - 1] and typed[i - 1] == y:
                cost = min(cost, older[j - 1] + 2)
            new.append(cost)
        older, old = old, new
    return old[-1]
