"""Batches of sequences of several lengths: padded, packed, and back.

Packed sequences are what PyTorch's are: the elements of all sequences without padding, step by
step, the longest sequence first. Recurrent layers pad them again and keep the state of a sequence
that is over (see `ops/nn/recurrent`); lengths are numbers, so a captured step is one for each of
their combinations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backend import MODES
from ...creation import full, tensor
from ...errors import need
from ...ops.index.gathering import index_select, where
from ...ops.shape.joining import cat, stack
from ...tensor import TENSORS, Tensor

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence",
    "pad_packed_sequence", "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Fields):
    """The elements of sequences, step by step; made by `pack_sequence` and the like.

    Attributes:
        data: (all elements, ...).
        batch_sizes: how many sequences have an element at each step, int64.
        sorted_indices: the sequences in the order in which they stand here, the longest first;
            None where they were given in that order.
        unsorted_indices: the place of each sequence in that order.

    Example:
        >>> packed = mt.nn.utils.rnn.pack_sequence([mt.tensor([1, 2, 3]), mt.tensor([8, 9])])
        >>> packed.data, packed.batch_sizes
        (tensor([1, 8, 2, 9, 3]), tensor([2, 2, 1]))
    """

    def __new__(
        cls, data: Any, batch_sizes: Tensor | None = None, sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:  # fmt: skip
        if batch_sizes is None:
            pair = isinstance(data, list | tuple) and len(data) == 2
            text = "expected data to be a pair, or batch_sizes"
            need(pair, "PackedSequence", text, error=AssertionError)
            data, batch_sizes = data
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """`data.to(...)` with the same lengths."""
        return _like(self, self.data.to(*args, **kwargs))

    def double(self) -> PackedSequence:
        """In float64."""
        return self.to("float64")

    def float(self) -> PackedSequence:
        """In float32."""
        return self.to("float32")


class _Layout(NamedTuple):
    """Where the elements are, as numbers.

    Attributes:
        sizes: as `batch_sizes`.
        order: as `sorted_indices`.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def places(self) -> Any:
        """For each element its place in the padded sequences, flattened."""
        rows = [np.array(self.order[:n]) + t * len(self.order) for t, n in enumerate(self.sizes)]
        return np.concatenate(rows)

    @property
    def lengths(self) -> Any:
        """The length of each sequence, in the order in which they were given."""
        return np.bincount(self.places % len(self.order))


def _layout(packed: PackedSequence) -> _Layout:
    found: _Layout | None = vars(packed).get("_layout")
    if found is None:
        sizes = packed.batch_sizes.tolist()
        order = packed.sorted_indices
        found = _Layout(tuple(sizes), tuple(range(sizes[0]) if order is None else order.tolist()))
    return found


def _like(packed: PackedSequence, data: Tensor) -> PackedSequence:
    made = PackedSequence(data, *packed[1:])
    vars(made).update(vars(packed))
    return made


def laid_out(packed: PackedSequence, steps: int | None = None) -> tuple[Tensor, Tensor | None]:
    """The sequences as (steps, sequences, ...) in the order they were given, and where they end.

    The second is True (steps, sequences, 1, ...) behind the end of a sequence, None where all are
    of one length. What stands there is any element.
    """
    layout, data = _layout(packed), packed.data
    shape = len(layout.sizes) if steps is None else steps, len(layout.order)
    sources = np.full(math.prod(shape), -1)  # of each place its element
    sources[layout.places] = np.arange(len(data))
    missing = sources < 0
    rows = index_select(data, 0, tensor(np.maximum(sources, 0), device=data.device))
    padded = rows.reshape(*shape, *data.shape[1:])
    if not missing.any():
        return padded, None
    ends = missing.reshape(*shape, *(1,) * (data.ndim - 1))
    return padded, tensor(ends, device=data.device)


def packed_again(padded: Tensor, like: PackedSequence) -> PackedSequence:
    """(steps, sequences, ...) in the order they were given, with the lengths of `like`."""
    layout = _layout(like)
    rows = padded.reshape(-1, *padded.shape[2:])
    places = tensor(layout.places, device=rows.device)
    return _like(like, index_select(rows, 0, places))


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """For each number its place in `permutation`."""
    return None if permutation is None else permutation.argsort()


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:  # fmt: skip
    """The sequences of a padded batch without their padding.

    Args:
        input: (steps, batch, ...), or (batch, steps, ...) with `batch_first`.
        lengths: the length of each sequence, from 1 to the number of steps.
        batch_first: the order of dimensions.
        enforce_sorted: whether the lengths must fall; False sorts the sequences.

    Raises RuntimeError for lengths out of range, of another number than sequences, or not sorted.

    Example:
        >>> rnn = mt.nn.utils.rnn
        >>> padded = mt.tensor([[1, 2, 0], [3, 0, 0], [4, 5, 6]])
        >>> packed = rnn.pack_padded_sequence(padded, [2, 1, 3], True, enforce_sorted=False)
        >>> packed.data.tolist(), packed.batch_sizes.tolist()
        ([4, 1, 3, 5, 2, 6], [3, 2, 1])
    """
    if batch_first:
        input = input.transpose(0, 1)
    if type(lengths) in TENSORS:
        MODES.capture.refuse(
            "pack_padded_sequence: the lengths decide which instructions there are, so a captured "
            "step takes them as numbers. For lengths that vary give the recurrent layer the padded "
            "batch, take its outputs at the ends, output[mt.arange(batch), lengths - 1], and mask "
            "the loss"
        )
    numbers = lengths.tolist() if type(lengths) in TENSORS else [int(n) for n in lengths]  # type: ignore[union-attr]
    steps, samples = input.shape[:2]
    name = "pack_padded_sequence"
    text = "Expected `len(lengths)` to be equal to batch_size, but got {} (batch_size={})"
    need(len(numbers) == samples, name, text, len(numbers), samples)
    need(samples and min(numbers) > 0, name, "Length of all samples has to be greater than 0")
    order = sorted(range(samples), key=lambda i: -numbers[i])
    text = "`lengths` must be sorted in decreasing order; `enforce_sorted=False` sorts them"
    need(not enforce_sorted or order == list(range(samples)), name, text)
    need(max(numbers) <= steps, name, f"Expected lengths of at most {steps}", max(numbers))
    sizes = tuple(sum(n > t for n in numbers) for t in range(max(numbers)))
    layout = _Layout(sizes, tuple(order))
    rows = input.reshape(-1, *input.shape[2:])
    data = index_select(rows, 0, tensor(layout.places, device=rows.device))
    indices = None if enforce_sorted else tensor(order, device=rows.device)
    found = PackedSequence(data, tensor(sizes), indices)
    vars(found)["_layout"] = layout
    return found


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sequences as a padded batch in the order they were given, and their lengths.

    Args:
        sequence: what was packed.
        batch_first: the order of dimensions, as for `pack_padded_sequence`.
        padding_value: what stands behind the end of a sequence.
        total_length: the number of steps, the longest length if not given.

    Raises ValueError for a `total_length` below the longest length.
    """
    layout = _layout(sequence)
    longest = len(layout.sizes)
    steps = longest if total_length is None else total_length
    text = "Expected total_length to be at least the longest length, but got {} and {}"
    need(steps >= longest, "pad_packed_sequence", text, total_length, longest, error=ValueError)
    padded, missing = laid_out(sequence, steps)
    if missing is not None:
        value = full((), padding_value, dtype=padded.dtype, device=padded.device)
        padded = where(missing, value, padded)
    return padded.transpose(0, 1) if batch_first else padded, tensor(layout.lengths)


def pad_sequence(
    sequences: Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    """Sequences (length, ...) as one batch (longest length, batch, ...).

    Args:
        sequences: Tensors that agree in all but the first dimension.
        batch_first: True for (batch, longest length, ...).
        padding_value: what fills the shorter ones.
        padding_side: "right" or "left".

    Raises RuntimeError for an empty list, ValueError for another side.
    """
    name, text = "pad_sequence", "Expected padding_side to be one of left or right"
    need(padding_side in ("left", "right"), name, text, padding_side)
    iterable = isinstance(sequences, Iterable)
    need(iterable, name, "Expected iterable for input sequences", type(sequences))
    found = [*sequences]
    need(found, name, "received an empty list of sequences")
    longest = max(each.shape[0] for each in found)
    padded = []
    for each in found:
        rest = longest - each.shape[0], *each.shape[1:]
        filling = full(rest, padding_value, dtype=each.dtype, device=each.device)
        padded.append(cat([each, filling] if padding_side == "right" else [filling, each]))
    return stack(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """The sequences of a padded batch, without their padding."""
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    numbers = lengths.tolist() if type(lengths) in TENSORS else lengths  # type: ignore[union-attr]
    return [row[:n] for row, n in zip(rows, numbers, strict=True)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences (length, ...) packed; see `pack_padded_sequence`, whose errors it raises."""
    lengths = [each.shape[0] for each in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that were packed, in the order they were given."""
    padded, _ = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, _layout(packed_sequences).lengths.tolist(), batch_first=True)
