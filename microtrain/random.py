"""Counter-based random numbers: every stream is a pure function of a seed and what it is for.

Data synthesis, the train/val/test split and the shuffling of an epoch each take a stream of their
own from `generator`, so none of them depends on how much another drew, on the number of ranks or
on a resume. Initialization and the creation functions share the one stream of `manual_seed`.

What a forward pass draws (dropout) is a function of the seed, the optimizer steps taken, the epoch
and number of the loader's batch, the number of the draw since that was taken, and the place of the
element in the *global* batch. So masks depend neither on the number of ranks nor on accumulation or
a resume, and every rank draws its rows of one and the same stream; and batches without a step
between them, as when gradients are added up by hand or predictions drawn many times, have others.

`randn`, `rand_like`, `bernoulli`, `multinomial`, `normal_` ... ask `where_to_draw`:

- Outside of a step (initialization, plain scripts) they come from the stream of `manual_seed`.
- In a step, which is where a loader has handed out n rows, an evaluation takes n, or a
  `DataParallel` model is called with n:
  - a draw whose leading dimension is n is one of samples: as dropout's, a function of seed, step,
    batch, number and row. The same numbers at every number of ranks, others on each rank.
  - a number (shape `()`), a draw for a parameter (`randn_like(weight)`, `weight.normal_()`) and all
    draws in `with shared():` are one draw of the global batch: equal on all ranks, and in all
    micro-batches of a step.
  - any other shape is not known to be either. On one rank it comes from the stream of
    `manual_seed`. On several all would have the same noise, or results that depend on their number,
    so it is an error that names the ways out.

A captured step draws the same numbers as the eager one: draws are instructions of it.

Streams are Philox keyed by a hash: the same 64-bit words on every machine. What NumPy makes of them
(a permutation, a normal draw) it keeps as it is between its releases unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import math
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .common.threads import LAUNCH

__all__ = ["generator", "get_rng_state", "initial_seed", "manual_seed", "set_rng_state", "shared"]

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
        self.rows: int | None = None  # of this rank in the batch; None outside of a step
        self.ranks = 1  # that the batch is divided among
        self.shared = False  # whether a draw is one of the global batch


STREAM = _Stream()


def manual_seed(seed: int) -> np.random.Generator:
    """Restart the stream of creation functions and initialization; returns its generator.

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


def draw_dtype(dtype: Any, kind: str = "") -> Any:
    """The dtype to draw in for a result of `dtype`: NumPy draws float32 and float64.

    Uniform float16 numbers are drawn as such: others would be rounded to it, up to 1.

    Raises NotImplementedError for a dtype that is not a float: it would cut off the fractions.
    """
    if np.dtype(dtype).kind != "f":
        raise NotImplementedError(
            f"uniform and normal numbers of dtype {dtype} are not defined; draw as floats"
        )
    if kind == "uniform" and dtype == np.float16:
        return np.float16
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


def begin_batch(
    first_row: int,
    batch: tuple[int, int] = (0, 0),
    draw: int = 0,
    rows: int | None = None,
    ranks: int = 1,
) -> None:
    """A batch is taken whose first row stands at `first_row` of the global batch `batch`.

    `rows` of it are this rank's, one of `ranks`: a step begins. None: no step, but a place for
    dropout.
    """
    STREAM.first_row, STREAM.batch, STREAM.draw = first_row, batch, draw
    STREAM.rows, STREAM.ranks = rows, ranks


def place() -> tuple[Any, ...]:
    """What `begin_batch` takes to come back to where the draws of this thread stand now."""
    return STREAM.first_row, STREAM.batch, STREAM.draw, STREAM.rows, STREAM.ranks


def step_now() -> tuple[int | None, int, bool]:
    """What `where_to_draw` goes by."""
    return STREAM.rows, STREAM.ranks, STREAM.shared


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, draws come from `seed`; then the stream goes on as if nothing had been drawn."""
    before = get_rng_state()
    try:
        manual_seed(seed)
        yield
    finally:
        set_rng_state(before)


@contextlib.contextmanager
def kept_place() -> Iterator[None]:
    """Inside, batches may be taken; draws then go on where they stood."""
    before = place()
    try:
        yield
    finally:
        begin_batch(*before)


@contextlib.contextmanager
def in_step(rows: int | None, ranks: int) -> Iterator[None]:
    """Inside, a step is under way on `rows` rows, unless a loader has said so already."""
    before = STREAM.rows, STREAM.ranks
    try:
        if before[0] is None:
            STREAM.rows, STREAM.ranks = rows, ranks
        yield
    finally:
        STREAM.rows, STREAM.ranks = before


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Inside, every draw of a step is one of the global batch: equal on all ranks.

    For what is no noise of samples: noise of weights, a coin for the whole batch. Outside of a step
    draws are equal on all ranks as they are.

    Example:
        >>> weight = mt.ones(3, 4)
        >>> with mt.random.shared():
        ...     noisy = weight + 0.1 * mt.randn(3, 4)
    """
    before = STREAM.shared
    try:
        STREAM.shared = True
        yield
    finally:
        STREAM.shared = before


def where_to_draw(name: str, shape: tuple[int, ...], state: bool = False) -> tuple[Any, bool]:
    """The number of the draw of `shape` that is made now, and whether it is shared by all ranks.

    None in place of a number stands for the stream of `manual_seed`. `state`: a draw for a
    parameter. Raises RuntimeError for a shape that leaves open on several ranks what is meant.
    """
    rows = STREAM.rows
    if rows is None:
        return None, False
    if STREAM.shared or state or not shape:
        return next_draw(), True
    if shape[0] == rows:
        return next_draw(), False
    if STREAM.ranks == 1:
        return None, False
    raise RuntimeError(
        f"{name}: a draw of shape {shape} in a step over {STREAM.ranks} ranks, where this rank has "
        f"{rows} of the rows: its leading dimension is not the rows, so it is open whether the "
        "ranks are to draw the same. Draw a row for each sample, (rows, ...), and transpose or "
        "flatten that; or, for one draw that all ranks have, write `with mt.random.shared():`"
    )


def end_step() -> None:
    """An optimizer has taken a step: the draws after it are others."""
    stream = STREAM.__dict__  # this thread's: asked for once
    stream["step"] += 1
    stream["draw"] = 0


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
    return _words(start, math.prod(shape), draw, "forward").reshape(shape)


def forward_place(shape: tuple[int, ...]) -> Callable[[int], tuple[bytes, int]]:
    """A function of the number of a draw, for this thread: what `forward_words` are made from.

    That is the key, as `_key` has it, and the number of the first word.
    """
    import hashlib

    stream, row, sha256 = STREAM.__dict__, math.prod(shape[1:]), hashlib.sha256

    def place(draw: int) -> tuple[bytes, int]:
        first, second = stream["batch"]
        counts = f"{stream['step']:d}, {first:d}, {second:d}, {draw:d}"
        words = f"({stream['seed']}, 'forward', {counts})"
        return sha256(words.encode()).digest()[:16], stream["first_row"] * row

    return place


def _words(start: int, size: int, draw: int, purpose: str) -> Any:
    """Words number `start` to `start + size` of a draw."""
    skipped = start % 8  # a block of the counter gives four 64-bit words
    counts = (STREAM.step, *STREAM.batch, draw)
    bits: Any = brief_generator(STREAM.seed, purpose, *counts).bit_generator
    bits.advance(start // 8)
    words = bits.random_raw((skipped + size + 1) // 2)
    return words.view(np.uint32)[skipped : skipped + size]


def forward_numbers(
    shape: tuple[int, ...], draw: int | None, kind: str, dtype: str, whole: bool, *limits: int
) -> Any:
    """Random numbers, an array of `shape` for what `where_to_draw` has answered.

    Args:
        shape: leading dimension samples, unless `whole`.
        draw: the number of the draw; None for the next numbers of the stream of `manual_seed`.
        kind: "uniform" in [0, 1), "normal" or "exponential", all of `dtype` "float32" or "float64",
            uniform ones also "float16";
            "integers" from the first to before the second of `limits`; "permutation", of one
            dimension.
        whole: whether the draw is shared by all ranks.
    """
    if dtype == "float16":
        found = forward_numbers(shape, draw, kind, "float64", whole)
        return (np.floor(found * 2**11) * 2.0**-11).astype(dtype)
    if draw is None:
        stream: Any = default_generator()
        if kind == "integers":
            return np.asarray(stream.integers(*limits, shape))
        if kind == "permutation":
            return stream.permutation(shape[0])
        method = stream.random if kind == "uniform" else getattr(stream, f"standard_{kind}")
        return np.asarray(method(shape, np.dtype(dtype)))
    start = 0 if whole else STREAM.first_row * math.prod(shape[1:])
    size, purpose = math.prod(shape), "shared" if whole else "forward"
    if kind == "normal":
        return _normal(start, size, draw, purpose, dtype).reshape(shape)
    if kind == "permutation":
        return _uniform(start, size, draw, purpose, "float64").argsort(kind="stable")
    if kind == "integers" and limits[1] - limits[0] > 2**53:  # more than a float tells apart
        words = _words(2 * start, 2 * size, draw, purpose).view(np.uint64).tolist()
        wide = [limits[0] + (word * (limits[1] - limits[0]) >> 64) for word in words]
        return np.array(wide, np.int64).reshape(shape)
    found = _uniform(start, size, draw, purpose, dtype if kind == "uniform" else "float64")
    if kind == "exponential":
        found = -np.log1p(-found).astype(dtype)
    elif kind == "integers":
        found = np.floor(found * (limits[1] - limits[0])).astype(np.int64) + limits[0]
    return found.reshape(shape)


def _uniform(start: int, size: int, draw: int, purpose: str, dtype: str) -> Any:
    """As many of the upper bits of a word as the significand holds."""
    if dtype == "float32":
        return (_words(start, size, draw, purpose) >> 8).astype(np.float32) * np.float32(2**-24)
    return (_words(2 * start, 2 * size, draw, purpose).view(np.uint64) >> 11) * 2.0**-53


def _normal(start: int, size: int, draw: int, purpose: str, dtype: str) -> Any:
    """By Box and Muller (1958), two numbers of two words: each is a function of its place."""
    skipped = start % 2
    first, count = start - skipped, size + skipped + (size + skipped) % 2
    if dtype == "float32":
        uniform = _words(first, count, draw, purpose) * 2.0**-32
        least = 2.0**-32
    else:
        uniform, least = _uniform(first, count, draw, purpose, dtype), 2.0**-53
    length = np.sqrt(-2 * np.log(uniform[0::2] + least))  # of numbers in (0, 1]
    angle = 2 * math.pi * uniform[1::2]
    found = np.stack([length * np.cos(angle), length * np.sin(angle)], -1).reshape(-1)
    return found[skipped : skipped + size].astype(dtype)
