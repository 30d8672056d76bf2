"""Finds what a misspelled name was meant to be, for every `did you mean`.

A slip of the fingers goes before likeness, which would be undecided: `mrse` is rmse with two
letters swapped, not mse with a stray one; `adamm` is adam, not adamw.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

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


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` most plausibly misspells, or None; the first one wins a tie."""
    word = _normal(word)
    names = {_normal(name): name for name in reversed([*candidates])}
    slips = [name for name in reversed(names) if is_slip(word, name)]
    near = [word] if word in names else slips or difflib.get_close_matches(word, names, 1)
    return names[near[0]] if near else None


def is_slip(word: str, meant: str) -> bool:
    """Whether `word` is `meant` but for two neighbors swapped, a letter dropped or doubled."""
    word, meant = _normal(word), _normal(meant)
    cuts = [(meant[:i], meant[i:]) for i in range(len(meant))]
    swapped = [before + after[1::-1] + after[2:] for before, after in cuts]
    dropped = [before + after[1:] for before, after in cuts]
    doubled = [before + after[0] + after for before, after in cuts]
    return word in (meant, *swapped, *dropped, *doubled)


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
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
