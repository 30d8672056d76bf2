"""DataLoader: the batches of one rank, cut from global batches.

`batch_size` is the batch of one optimizer step over all ranks together, and the order of an epoch
depends on the seed and the epoch alone. The number of ranks decides only who computes which rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...backend import as_dtype
from ...distributed.connection import ranks_of
from ...distributed.shards import contiguous_slice, local_shards
from ...errors import ConfigError, noun_of
from ...random import begin_batch, brief_generator, kept_place
from ...tensor import wrap
from ..rows import Rows, is_lazy
from ..source import ArrayDataset, Source
from .order import TABLE, Ahead, Order, Permutation

if TYPE_CHECKING:
    from ...distributed.communicator import Communicator

CACHED = 1 << 18  # bytes of batches that are made at once
Pass = dict[int, Any]  # the order of the epoch that it has come to


class Batch(tuple[Any, ...]):
    """One rank's rows of a global batch: a tuple of Tensors, `xb, yb = batch`.

    Attributes:
        offset: where its first row stands in the global batch of the optimizer step.
        global_size: the rows of this batch (in `steps()`: of this micro-batch) over all ranks.

    Example:
        >>> data = mt.data.ArrayDataset(np.ones((6, 2)), np.zeros((6, 1)))
        >>> for batch in mt.data.DataLoader(data, batch_size=4, shuffle=False):
        ...     xb, yb = batch
        ...     print(batch.offset, batch.global_size, xb.shape)
        0 4 (4, 2)
        0 2 (2, 2)
    """

    offset: int
    global_size: int


class MicroBatches(Sequence[Batch]):
    """The micro-batches of one optimizer step; taking one places the random draws at it.

    Attributes:
        position: the epoch, and the number of the global batch in it.
        ranks: that the batch is divided among.
        of: the pass, or several one after another.
    """

    def __init__(
        self, batches: list[Batch], position: tuple[int, int] = (0, 0), ranks: int = 1,
        of: Pass | None = None,
    ) -> None:  # fmt: skip
        self._batches, self.position, self.ranks, self.of = batches, position, ranks, of

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return MicroBatches(self._batches[index], self.position, self.ranks, self.of)
        batch = self._batches[index]
        begin_batch(batch.offset, self.position, rows=len(batch[0]), ranks=self.ranks)
        return batch

    def __iter__(self) -> Iterator[Batch]:
        # A Sequence's own asks for one more, and an IndexError ends it: at every step.
        return map(self.__getitem__, range(len(self._batches)))


class DataLoader:
    """Iterates over this rank's share of each global batch.

    The batches are the same at every number of ranks. Every rank gets equally many (but of
    `shards`), and rank r of W the r-th of W contiguous slices of each: sizes differ by at most one,
    the larger first, and a rank may get zero rows. The n-th pass over the loader is epoch n.

    Args:
        dataset: an `ArrayDataset` or another `Source`, equal on all ranks.
        batch_size: rows of one optimizer step, over all ranks.
        seed: with the epoch, decides the order.
        shuffle: a new order each epoch; False: the order of the rows. Batches are then read-only
            views of the data set; shuffled ones are copies.
        drop_last: leave out the last batch where it would be smaller than `batch_size`.
        comm: who shares the batch, a communicator of microtrain or mpi4py; None is
            `microtrain.distributed.world()`.
        accumulate: the number of micro-batches that `steps()` cuts a global batch into.
        shards: cut every (micro-)batch into this many slices whatever the number of ranks, at most
            as many; a rank gets consecutive ones, each a batch of its own (see `DataParallel`).

    Attributes:
        offset: where this rank's first row stands in the current global batch.
        global_size: the rows of the current global batch, over all ranks.

    Raises:
        TypeError: an argument of another type, or an array of a dtype that Tensors do not have.
        ValueError: a `batch_size` or `accumulate` below 1.
        ConfigError: no batch would ever come: no rows, or fewer than `batch_size` with `drop_last`;
            or there are more ranks than `shards`.

    Example:
        >>> loader = DataLoader(ArrayDataset(x, y), batch_size=64, seed=0)
        >>> for epoch in range(20):
        ...     for xb, yb in loader:
        ...         step(xb, yb)
    """

    def __init__(
        self,
        dataset: Source,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        comm: Communicator | Any = None,
        accumulate: int = 1,
        shards: int | None = None,
    ) -> None:
        if not isinstance(dataset, Source):
            raise TypeError(
                f"DataLoader: dataset is {noun_of(dataset)}, expected an ArrayDataset; "
                "ArrayDataset(x, y) makes one from arrays\nhint: another Source will do, too: what "
                "derives from mt.data.Source, or mt.data.FunctionSource(read, length)"
            )
        self.dataset = dataset
        self.batch_size = _whole_number("batch_size", batch_size, least=1)
        self.seed = _whole_number("seed", seed)
        self.shuffle = _flag("shuffle", shuffle)
        self.drop_last = _flag("drop_last", drop_last)
        self.accumulate = _whole_number("accumulate", accumulate, least=1)
        self.comm = ranks_of(comm)
        self.shards = self.comm.size if shards is None else _whole_number("shards", shards, least=1)
        self._own = local_shards(self.shards, self.comm)
        self.offset = self.global_size = 0
        self._epoch = 0
        self._pass: Pass | None = None  # the one under way, if there is one
        # Of arrays in memory; None: rows are read.
        self._arrays: tuple[NDArray[Any], ...] | None = None
        if isinstance(dataset, ArrayDataset) and not _too_large_to_copy(dataset):
            # `take` would copy the whole of a strided array at every batch: do it once, here.
            # Slices of a read-only array are read-only: no batch overwrites the data set.
            self._arrays = tuple(np.ascontiguousarray(array).view() for array in dataset.arrays)
            for array in self._arrays:
                array.flags.writeable = False
        for array in self._arrays or dataset.read(slice(0, 0)):
            as_dtype(array.dtype)  # once, instead of at every batch; raises TypeError
        if len(self) == 0:
            rows, dropped = len(dataset), f" and drop_last leaves out those below {batch_size}"
            raise ConfigError(
                f"DataLoader: the data set has {rows} rows{dropped if rows else ''}, "
                "so no batch would ever come"
            )

    def __len__(self) -> int:
        """The number of batches of a pass, equal on all ranks."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def epoch(self) -> int:
        """The number of the pass under way, or between passes of the one that comes next.

        A pass left early counts. Setting it names the next pass; one under way goes on as it was.
        """
        return self._epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._epoch = _whole_number("epoch", value, least=0)
        self._pass = None

    def __iter__(self) -> Iterator[Batch]:
        """One pass: for each global batch, this rank's rows as a tuple of Tensors.

        With `shards`, a tuple for each of this rank's shards.
        """
        return (batch for batches in self._new_pass(micro_batches=1) for batch in batches)

    def steps(
        self, start: int = 0, passes: int | None = 1
    ) -> Generator[MicroBatches, int | None, None]:
        """One pass by optimizer steps: for each global batch, a list of its micro-batches.

        start: the number of the batch to begin with, where a pass is taken up again.
        passes: so many of them one after another; None: without end.

        The global batch is cut into `accumulate` slices first and each of these over the ranks.
        The list is equally long on all ranks, unless some have more `shards`; it is shorter only
        where the last global batch has fewer rows. `offset` differs by micro-batch: read it from
        the batch. What a forward pass draws (dropout) belongs to the micro-batch that was last
        taken from the list. `send(n)` in place of `next` leaves out the next n batches.

        Example:
            >>> for micro_batches in loader.steps():
            ...     for xb, yb in micro_batches:
            ...         mt.nn.functional.mse_loss(model(xb), yb).backward()
            ...     optimizer.step()
        """
        start = _whole_number("start", start, least=0)
        if passes is not None:
            passes = _whole_number("passes", passes, least=1)
        return self._new_pass(self.accumulate, start, passes)

    def stacked(self, start: int, steps: int) -> list[NDArray[Any]] | None:
        """Whole batches, at most `steps` of them from number `start` of this pass on.

        Where all batches are whole, they go on into the next passes. One array for each of the data
        set, (steps, batch_size, ...); None where that is not how batches come (several ranks,
        shards, micro-batches, rows that are read), or none is whole.
        """
        size = self.batch_size
        whole, rest = divmod(len(self.dataset), size)
        if rest and not self.drop_last:
            steps = min(steps, whole - start)
        if not self._stacks or steps < 1:
            return None
        passes = range(self._epoch, self._epoch + -(-(start + steps) // whole))
        rows: Any = slice(start * size, (start + steps) * size)
        if len(passes) > 1:
            every = [self._order(epoch, {}, {}) for epoch in passes]
            table = [np.arange(whole * size) if o is None else o[: whole * size] for o in every]
            return self._stack(np.concatenate(table), rows, size)
        return self._stack(self._order(self._epoch, {}, {}), rows, size)

    @property
    def _stacks(self) -> bool:
        return self._arrays is not None and self.comm.size * self.shards * self.accumulate == 1

    def _stack(self, order: Any, rows: slice, size: int) -> list[NDArray[Any]]:
        places, arrays = None if order is None else order[rows], self._arrays or ()
        found = [a[rows] if places is None else a.take(places, 0) for a in arrays]
        return [array.reshape(-1, size, *array.shape[1:]) for array in found]

    def upcoming(
        self, of: Pass, position: tuple[int, int], steps: int
    ) -> list[NDArray[Any]] | None:
        """As `stacked`: at most so many batches of a pass behind that of `position`, of one size.

        They are of one pass, and no more than stay in a cache.
        """
        if not self._stacks:
            return None
        number = position[1] + 1
        start, size = number % len(self) * self.batch_size, self.batch_size
        whole, rest = divmod(len(self.dataset) - start, size)
        size, most = (size, whole) if whole else (rest, 1)
        bytes_ = size * sum(array[:1].nbytes for array in self._arrays or ())
        steps = min(steps, most, CACHED // max(bytes_, 1))
        if steps < 1:
            return None
        order = self._order(position[0] + number // len(self), {}, of)
        return self._stack(order, slice(start, start + steps * size), size)

    def took(self, of: Pass, position: tuple[int, int], steps: int, size: int) -> tuple[int, int]:
        """Be where so many of the `upcoming` batches have been taken; the position of the last.

        Whoever iterates over `steps()`, a pass `of` which they are, leaves them out there by
        `send(steps)`.
        """
        more, number = divmod(position[1] + steps, len(self))
        epoch = position[0] + more
        if self._pass is of:
            self._epoch = epoch
        self.offset, self.global_size = 0, size
        begin_batch(0, (epoch, number), rows=size, ranks=1)
        return epoch, number

    def kinds(self, steps: int) -> list[MicroBatches]:
        """Micro-batches of each size that the first `steps` steps have, of whatever rows."""
        order = np.arange(min(self.batch_size, len(self.dataset))) if self.shuffle else None
        if order is not None and isinstance(self.dataset, Rows):
            order = self.dataset.positions(order)
        cuts = (self._cut(size, self.accumulate) for size in self._sizes(steps))
        return [MicroBatches(self._take(order, 0, cut), ranks=self.comm.size) for cut in cuts]

    def _sizes(self, steps: int) -> list[int]:
        """Rows of the global batches of the first `steps` steps: of the first, and of the last."""
        rows, size, last = len(self.dataset), self.batch_size, min(steps, len(self)) - 1
        return list(dict.fromkeys(min(size, rows - number * size) for number in (0, last)))

    def _new_pass(
        self, micro_batches: int, start: int = 0, passes: int | None = 1
    ) -> Generator[MicroBatches, int | None, None]:
        # Not part of the generator below: the pass counts from here, not from its first batch.
        if self._pass is not None:
            self._epoch += 1  # the pass before was left early
        self._pass = this_pass = Pass()
        return self._batches(self._epoch, micro_batches, this_pass, start, passes)

    def _batches(
        self, first: int, micro_batches: int, this_pass: Pass, begin: int, passes: int | None
    ) -> Generator[MicroBatches, int | None, None]:
        rows = len(self.dataset)
        count = len(self)
        cuts = {size: self._cut(size, micro_batches) for size in self._sizes(count)}
        with kept_place():  # draws outside a pass do not belong to its last batch
            for epoch in itertools.count(first) if passes is None else range(first, first + passes):
                if self._pass is this_pass:
                    self._epoch = epoch
                order = self._order(epoch, cuts, this_pass) if begin < count else None
                number = begin
                while number < count:
                    start = number * self.batch_size
                    global_size = min(self.batch_size, rows - start)
                    batches = self._take(order, start, cuts[global_size])
                    self.offset, self.global_size = batches[0].offset, global_size
                    at = epoch, number
                    skipped = yield MicroBatches(batches, at, self.comm.size, this_pass)
                    number += 1 + (skipped or 0)
                begin = number - count  # where the next pass begins
        if self._pass is this_pass:
            self._epoch, self._pass = epoch + 1, None

    def _order(self, epoch: int, cuts: dict[int, list[tuple[int, int, int]]], known: Pass) -> Any:
        """The rows of this rank's positions, read by slices of an epoch; None: all as they are.

        Of `Rows` their numbers in the source, as many of them looked up at once as of ours.
        """
        if not self.shuffle:
            return None
        if epoch not in known:
            known.clear()
            known[epoch] = epoch_order(len(self.dataset), self.seed, epoch)
        order = known[epoch]
        numbers = self.dataset.positions if isinstance(self.dataset, Rows) else None
        if isinstance(order, np.ndarray) or self.batch_size not in cuts:
            return order if numbers is None else numbers(order[:])
        whole = [(first, last) for first, last, _ in cuts[self.batch_size]]
        return Ahead(order, self.batch_size, whole, numbers)

    def _cut(self, global_size: int, micro_batches: int) -> list[tuple[int, int, int]]:
        """Of each batch: this rank's first and last-plus-one row, and its micro-batch's rows."""
        cut = []
        for start, stop in contiguous_slices(global_size, min(micro_batches, global_size)):
            for shard in self._own:
                first, last = contiguous_slice(stop - start, self.shards, shard)
                cut.append((start + first, start + last, stop - start))
        return cut

    def _take(self, order: Any, start: int, cut: list[tuple[int, int, int]]) -> list[Batch]:
        batches, arrays = [], self._arrays
        for first, last, micro_size in cut:
            rows = slice(start + first, start + last)
            if arrays is None:
                batch = Batch(map(wrap, self._read(rows if order is None else order[rows])))
            elif order is None:
                batch = Batch([wrap(array[rows]) for array in arrays])
            else:
                places = order[rows]
                batch = Batch([wrap(array.take(places, 0)) for array in arrays])
            batch.offset, batch.global_size = first, micro_size
            batches.append(batch)
        return batches

    def _read(self, rows: slice | NDArray[np.intp]) -> list[NDArray[Any]]:
        """Rows of a source as Tensors can have them; of a slice they may be the source's memory."""
        arrays, read = [], self.dataset.read
        if isinstance(self.dataset, Rows) and not isinstance(rows, slice):
            read = self.dataset.read_at
        for array in read(rows):
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                array = array.copy()
            elif isinstance(rows, slice) and flags.writeable:
                array = array.view()
                array.flags.writeable = False
            arrays.append(array)
        return arrays

    def __repr__(self) -> str:
        return (
            f"DataLoader({self.dataset!r}, batch_size={self.batch_size}, seed={self.seed}, "
            f"shuffle={self.shuffle}, drop_last={self.drop_last}, accumulate={self.accumulate}, "
            f"rank {self.comm.rank} of {self.comm.size}, epoch {self.epoch})"
        )


def epoch_order(rows: int, seed: int, epoch: int) -> NDArray[Any] | Order:
    """The order of `rows` rows in an epoch: a permutation that depends on the arguments alone.

    An integer array up to 2**20 rows. Above that, an object that is read like one, `order[10:20]`
    or `order[positions]`, and needs no memory.

    Example:
        >>> epoch_order(10**9, seed=0, epoch=3)[:4]
        array([530590831, 486999090, 912237197, 629108231])
    """
    if rows > TABLE:
        return Permutation(rows, seed, "shuffle", epoch)
    return brief_generator(seed, "shuffle", epoch).permutation(rows)


def order_name(rows: int, shuffle: bool) -> str:
    """What a checkpoint says of the order: its number goes up where the same arguments give other
    rows than before.
    """
    return "unshuffled" if not shuffle else "table 1" if rows <= TABLE else "keyed 1"


def contiguous_slices(rows: int, parts: int) -> list[tuple[int, int]]:
    """All `parts` slices of `contiguous_slice`, in order; together they are range(rows)."""
    return [contiguous_slice(rows, parts, part) for part in range(parts)]


def _too_large_to_copy(dataset: ArrayDataset) -> bool:
    return is_lazy(dataset) and not all(a.flags.c_contiguous for a in dataset.arrays)


def _whole_number(name: str, value: Any, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"DataLoader: {name} must be a whole number, got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"DataLoader: {name} must be at least {least}, got {value!r}")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"DataLoader: {name} must be True or False, got {value!r}")
    return bool(value)
