"""Counter-based random numbers: every stream is a pure function of a seed and what it is for.

Data synthesis, the train/val/test split and the shuffling of an epoch each take a stream of their
own from `generator`, so none of them depends on how much another drew, on the number of ranks or
on a resume. Initialisation and the creation functions share the one stream of `manual_seed`.

What a forward pass draws (dropout) is a function of the seed, the optimizer steps taken, the epoch
and number of the loader's batch, the number of the draw since that was taken, and the place of the
element in the *global* batch. So masks depend neither on the number of ranks nor on accumulation or
a resume, and every rank draws its rows of one and the same stream; and batches without a step
between them, as when gradients are added up by hand or predictions drawn many times, have others.

Streams are Philox keyed by a hash: the same 64-bit words on every machine. What NumPy makes of them
(a permutation, a normal draw) it keeps as it is between its releases unless it says otherwise.
"""

from __future__ import annotations

import math
import operator
import threading
from typing import Any

import numpy as np

from .threads import LAUNCH

__all__ = [
    "begin_batch",
    "brief_generator",
    "default_generator",
    "draw_dtype",
    "end_step",
    "forward_words",
    "generator",
    "get_rng_state",
    "go_to",
    "initial_seed",
    "manual_seed",
    "next_draw",
    "place",
    "set_rng_state",
    "standing",
]

_START = np.zeros(4, np.uint64)


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A fresh generator whose numbers depend on the arguments and on nothing else.

    Streams of different seeds, purposes or indices are unrelated; equal arguments give equal
    numbers in every process. Raises TypeError for a seed or an index that is not an integer.

    Example:
        >>> order = generator(0, "shuffle", 7).permutation(1000)    # the order of epoch 7
    """
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose, indices)))


def brief_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """As `generator`, for one draw: the next call in this thread gives the same object anew.

    Setting one takes 1.5 us, making one 10: longer than a small draw itself.
    """
    found = STREAM.brief
    if found is None:
        found = STREAM.brief = generator(0, "brief")
    found.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": _START, "key": _key(seed, purpose, indices)},
        "buffer": _START,
        "buffer_pos": 4,  # used up
        "has_uint32": 0,
        "uinteger": 0,
    }
    return found


def _key(seed: int, purpose: str, indices: tuple[int, ...]) -> Any:
    """Two 64-bit words that belong to these arguments alone."""
    import hashlib  # here, as numpy.random above: `import microtrain` draws nothing

    words = (_integer(seed, "seed"), purpose, *(_integer(i, "index") for i in indices))
    # A hash of the written-out arguments rather than a SeedSequence over them: that pads short
    # lists with zeros, so (1,) and (1, 0) would be one stream.
    digest = hashlib.sha256(repr(words).encode()).digest()
    return np.frombuffer(digest, "<u8", 2).astype(np.uint64)


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


class _Stream(threading.local):
    """The stream of `manual_seed`: one a thread, because in-process ranks are threads."""

    def __init__(self) -> None:
        self.seed = 0
        self.generator: np.random.Generator | None = None  # made at the first draw
        self.brief: np.random.Generator | None = None  # what `brief_generator` gives
        self.step = 0  # optimizer steps taken since `manual_seed`
        self.draw = 0  # draws of the forward pass since the batch was taken
        # Where this rank's first row stands in the global batch. Without a loader that would know:
        # so far apart that the rows of two ranks never meet.
        self.first_row = LAUNCH.rank * 2**40
        self.batch = (0, 0)  # the loader's epoch, and the number of its batch


STREAM = _Stream()


def manual_seed(seed: int) -> np.random.Generator:
    """Restart the stream of creation functions and initialisation; returns its generator.

    The stream belongs to the calling thread. Until the first call it is that of seed 0 (a fixed
    seed as in PyTorch, not the clock), so ranks that call nothing still draw the same numbers.

    Example:
        >>> mt.manual_seed(42)
        Generator(Philox)...
        >>> weights = mt.randn(3, 4)      # the same in every run, on every rank
    """
    fresh = generator(seed, "default")
    STREAM.seed, STREAM.generator = operator.index(seed), fresh
    STREAM.step = STREAM.draw = 0
    return fresh


def default_generator() -> np.random.Generator:
    """The generator that `manual_seed` set in this thread; drawing from it moves it on."""
    found = STREAM.generator
    return manual_seed(STREAM.seed) if found is None else found


def draw_dtype(dtype: Any) -> Any:
    """The dtype to draw in for a result of `dtype`: NumPy draws float32 and float64.

    Raises NotImplementedError for a dtype that is not a float: it would cut off the fractions.
    """
    if np.dtype(dtype).kind != "f":
        raise NotImplementedError(
            f"uniform and normal numbers of dtype {dtype} are not defined; draw as floats"
        )
    return np.float32 if dtype == np.float32 else np.float64


def initial_seed() -> int:
    """The seed this thread's stream started from: the last `manual_seed`, else 0."""
    return STREAM.seed


def get_rng_state() -> dict[str, Any]:
    """The seed and the exact position of this thread's streams, as plain JSON-able values."""
    state: dict[str, Any] = dict(default_generator().bit_generator.state)
    state["state"] = {name: words.tolist() for name, words in state["state"].items()}
    state["buffer"] = state["buffer"].tolist()
    return {"seed": STREAM.seed, "step": STREAM.step, "draw": STREAM.draw, **state}


def set_rng_state(state: dict[str, Any]) -> None:
    """Continue this thread's stream where `get_rng_state` found it.

    Raises ValueError, and leaves the stream as it was, for anything `get_rng_state` did not make.
    """
    fresh = generator(0, "default")
    try:
        inner = {name: np.array(words, np.uint64) for name, words in state["state"].items()}
        buffer = np.array(state["buffer"], np.uint64)
        if (inner["counter"].shape, inner["key"].shape, buffer.shape) != ((4,), (2,), (4,)):
            raise ValueError("the counter, key and buffer have 4, 2 and 4 words")
        if not 0 <= state["buffer_pos"] <= 4:
            raise ValueError("buffer_pos lies outside the buffer")
        fresh.bit_generator.state = {**state, "state": inner, "buffer": buffer}
        seed = _integer(state["seed"], "seed")
        step, draw = (_integer(state[name], name) for name in ("step", "draw"))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"set_rng_state: not a state from get_rng_state: {error!r}") from error
    STREAM.seed, STREAM.generator = seed, fresh
    STREAM.step, STREAM.draw = step, draw


def standing() -> Any:
    """Where all draws of this thread stand; `go_to` comes back, for a computation done twice."""
    state: Any = default_generator().bit_generator.state
    return {**STREAM.__dict__}, state


def go_to(stand: Any) -> None:
    """Draw again what was drawn since `standing()` returned this."""
    kept, state = stand
    STREAM.__dict__.update(kept)
    default_generator().bit_generator.state = state


# Draws of the forward pass ------------------------------------------------------------------------


def begin_batch(first_row: int, batch: tuple[int, int] = (0, 0), draw: int = 0) -> None:
    """A batch is taken whose first row stands at `first_row` of the global batch `batch`."""
    STREAM.first_row, STREAM.batch, STREAM.draw = first_row, batch, draw


def place() -> tuple[int, tuple[int, int], int]:
    """What `begin_batch` takes to come back to where the draws of this thread stand now."""
    return STREAM.first_row, STREAM.batch, STREAM.draw


def end_step() -> None:
    """An optimizer has taken a step: the draws after it are others."""
    STREAM.step += 1
    STREAM.draw = 0


def next_draw() -> int:
    """The number of the draw that is made now; the next one has another."""
    draw = STREAM.draw
    STREAM.draw = draw + 1
    return draw


def forward_words(shape: tuple[int, ...], draw: int) -> Any:
    """Random 32-bit words, a `uint32` array of `shape`: draw number `draw` of this forward pass.

    The leading dimension is samples, and this rank gets the words of its rows.
    """
    start = STREAM.first_row * math.prod(shape[1:])
    skipped = start % 8  # a block of the counter gives four 64-bit words
    counts = (STREAM.step, *STREAM.batch, draw)
    bits: Any = brief_generator(STREAM.seed, "forward", *counts).bit_generator
    bits.advance(start // 8)
    size = math.prod(shape)
    words = bits.random_raw((skipped + size + 1) // 2)
    return words.view(np.uint32)[skipped : skipped + size].reshape(shape)
