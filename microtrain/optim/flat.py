"""Flat storage: all parameters of one dtype and device in one buffer, all gradients in another.

`param.data` and `param.grad` are views into them, so an update is a few passes over one array, a
gradient all_reduce needs no packing, and a checkpoint has one array per state. The first optimizer
or DataParallel that is given a set of parameters makes the storage; the next one shares it.

A parameter keeps its memory order: a weight stored transposed stays so, and so does its gradient.
`zero_grad()` writes no zeros: it raises the buffer's epoch, a number, and gradients of an earlier
epoch are absent (`param.grad` is None). "Present" is the opposite.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

from ..backend import MODES, STRUCTURE, XP, device_of
from ..errors import need
from ..tensor import TENSORS, Tensor, Version, wrap

# Elements behind the flat gradient that the same all_reduce carries along: sample counts, the loss,
# and, behind these, a flag for each parameter. See `distributed/footer.py`.
FOOTER = 11


class Buffer:
    """The parameters and gradients of one dtype on one device.

    Attributes:
        data: all parameters, one after the other.
        grad: their gradients, in the same places.
        wide: `grad` with the footer behind it: FOOTER elements and one for each parameter.
        epoch: raised by `zero_grad()`.
        graphs: the slots whose gradient has a graph, from `backward(create_graph=True)`.
        lock: held by the thread that changes it; see `autograd.locks`.
    """

    __slots__ = ("__weakref__", "data", "epoch", "grad", "graphs", "lock", "storage", "wide")

    def __init__(self, xp: Any, size: int, count: int, dtype: Any, lock: Any) -> None:
        self.data = xp.zeros(size, dtype)
        self.wide = xp.zeros(size + FOOTER + count, dtype)
        self.grad = self.wide[:size]
        self.epoch = 0
        self.graphs: list[Slot] = []
        self.storage: Any = None
        self.lock = lock


class Slot:
    """The place of one parameter in a buffer, and whether its gradient is present.

    Attributes:
        start, stop: the place; `array` is the gradient's memory there, `tensor` a Tensor over it.
        version, grad_version: of the parameter and of the gradient.
        epoch: the buffer's when the gradient was last added to: where they differ it is absent.
        graph: the gradient as a Tensor with a graph; None where it has none.
    """

    __slots__ = (
        "array", "buffer", "epoch", "grad_version", "graph", "start", "stop", "tensor", "version",
    )  # fmt: skip

    def __init__(self, buffer: Buffer, start: int, stop: int, like: Any, version: Version) -> None:
        self.buffer = buffer
        self.start = start
        self.stop = stop
        self.array = shaped_like(buffer.grad[start:stop], like)
        self.tensor = wrap(self.array)
        self.grad_version = self.tensor.version
        self.version = version
        self.graph: Tensor | None = None
        self.epoch = -1

    @property
    def present(self) -> bool:
        """Whether `param.grad` is not None; hot code compares the epochs itself."""
        return bool(self.epoch == self.buffer.epoch)

    def gradient(self) -> Tensor | None:
        """What `param.grad` reads."""
        if self.epoch != self.buffer.epoch:
            return None
        return self.tensor if self.graph is None else self.graph

    def add(self, g: Any) -> None:
        """Accumulate the array `g`; it may be this slot's own memory, already written."""
        epoch = self.buffer.epoch
        if self.epoch != epoch:
            self.epoch = epoch
            if g is not self.array:
                self.array[...] = g
        else:
            self.array += g
        self.grad_version.n += 1
        self.graph = None

    def set_present(self) -> None:
        """Mark the gradient as present: something else has written its values."""
        self.epoch = self.buffer.epoch
        self.grad_version.n += 1
        self.graph = None

    def add_graph(self, g: Tensor) -> None:
        """Accumulate a gradient that has a graph; its values are in the slot's memory as well."""
        before = self.gradient()
        total = g.clone() if before is None else before + g
        self.array[...] = total._array
        total._array = self.array
        if before is not None:
            before.version.n += 1
        self.epoch = self.buffer.epoch
        self.graph = total
        self.buffer.graphs.append(self)

    def assign(self, array: Any) -> None:
        """`param.grad = tensor`."""
        self.array[...] = array
        self.grad_version.n += 1
        self.epoch = self.buffer.epoch
        self.graph = None

    def drop(self) -> None:
        """`param.grad = None`."""
        self.epoch = -1
        self.graph = None


def shaped_like(flat: Any, like: Any) -> Any:
    """`flat`, a piece of a buffer, in the shape and memory order of the array `like`."""
    if like.ndim == 2 and like.flags.f_contiguous and not like.flags.c_contiguous:
        return flat.reshape(like.shape[::-1]).T
    return flat.reshape(like.shape)


# All storages: a captured step may read and write any of them.
STORAGES: weakref.WeakSet[FlatStorage] = weakref.WeakSet()


class FlatStorage:
    """The buffers of a set of parameters.

    Attributes:
        params: the parameters in definition order, tied ones once.
        index: the position of each parameter in `params`.
        slots: the slot of each parameter, in the same order.
        buffers: one for each dtype and device, in order of first use.
        by_buffer: for each buffer the positions of its parameters, in the order of the buffer.
        holders: the optimizers and DataParallel that share it: names, with weak references.
        lock: that of its buffers.
        cleared: how often `zero_grad` was called.

    Example:
        >>> net = mt.nn.Linear(4, 2)
        >>> storage = mt.optim.FlatStorage([*net.parameters()])
        >>> len(storage.params), len(storage.buffers)
        (2, 1)
    """

    def __init__(self, params: tuple[Tensor, ...]) -> None:
        self.params = params
        self.cleared = 0
        self.index = {param: number for number, param in enumerate(params)}
        self.holders: list[tuple[str, Any]] = []
        self.lock = threading.RLock()  # the collector may come by while this thread holds it
        groups: dict[Any, list[int]] = {}
        for number, param in enumerate(params):
            key = (param._array.dtype, device_of(param._array))
            groups.setdefault(key, []).append(number)
        slots: list[Any] = [None] * len(params)
        self.buffers: list[Buffer] = []
        self.by_buffer = list(groups.values())
        for (dtype, _), numbers in groups.items():
            size = sum(params[n]._array.size for n in numbers)
            xp = XP[type(params[numbers[0]]._array)]
            buffer = Buffer(xp, size, len(params), dtype, self.lock)
            buffer.storage = weakref.ref(self)
            self.buffers.append(buffer)
            start = 0
            for n in numbers:
                slots[n] = _adopt(params[n], buffer, start)
                start = slots[n].stop
        self.slots: tuple[Slot, ...] = tuple(slots)
        self.versions = tuple(slot.version for slot in self.slots)
        self._all = (True,) * len(params)
        STORAGES.add(self)  # complete by now: another thread may be capturing and look at it

    @staticmethod
    def of(params: Iterable[Tensor], who: str, holder: Any = None) -> FlatStorage:
        """The storage of exactly these parameters: a new one, or that of another holder.

        `who` is the name of the new holder, for errors, and `holder` the object, kept weakly.

        Raises:
            TypeError: not Tensors.
            ValueError: no parameters, or one that is not a leaf of a float dtype.
            RuntimeError: some of them belong to a storage of another set.
        """
        unique = checked(params, who)
        need(unique, who, "got an empty parameter list", error=ValueError)
        found = next((s for s in map(owner, unique) if s is not None), None)
        if found is None:
            found = FlatStorage(unique)
        text = f"was given {len(unique)} parameters, some of which already belong to "
        text += f"{' and '.join(found.owners)} with another set of {len(found.params)}; give all "
        need(set(found.params) == set(unique), who, text + "of them the same parameters")
        found.holders.append((who, None if holder is None else weakref.ref(holder)))
        return found

    @property
    def owners(self) -> list[str]:
        """The names of the holders that are alive."""
        return [who for who, alive in self.holders if alive is None or alive() is not None]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Make every gradient absent, or set those that are present to zeros."""
        if MODES.capture.on:
            MODES.capture.cleared(self, set_to_none)
            return
        self.cleared += 1
        if set_to_none:
            for buffer in self.buffers:
                buffer.epoch += 1
                if buffer.graphs:
                    self.drop_graphs(buffer)
            return
        for slot in self.slots:
            if slot.present:
                slot.assign(0)

    @staticmethod
    def drop_graphs(buffer: Buffer) -> None:
        """Drop gradients with a graph, which leads back to the parameter: a reference cycle."""
        for slot in buffer.graphs:
            slot.graph = None
        buffer.graphs.clear()

    def present(self) -> tuple[bool, ...]:
        """For each parameter, whether its gradient is present."""
        if len(self.buffers) == 1:  # the usual case, in less time
            epoch = self.buffers[0].epoch
            for slot in self.slots:
                if slot.epoch != epoch:
                    break
            else:
                return self._all
        return tuple([slot.epoch == slot.buffer.epoch for slot in self.slots])

    def any_present(self) -> bool:
        """Whether any gradient is present."""
        if len(self.buffers) == 1:
            return self.buffers[0].epoch in [slot.epoch for slot in self.slots]
        return any(self.present())

    def bump_versions(self) -> None:
        """Raise the version of every parameter: graphs that saved one raise in backward."""
        for version in self.versions:
            version.n += 1


def checked(params: Iterable[Tensor], who: str) -> tuple[Tensor, ...]:
    """The parameters, each once; TypeError and ValueError for what cannot be one."""
    unique = tuple(dict.fromkeys(params))
    for param in unique:
        is_one, kind = type(param) in TENSORS, type(param)
        need(is_one, who, "takes Tensors, but one of the params is {}", kind, error=TypeError)
        need(param._edge is None, who, "can't optimize a non-leaf Tensor", error=ValueError)
        is_float, text = param._array.dtype.kind == "f", "a parameter has dtype {}, not a float"
        need(is_float, who, text, param._array.dtype, error=ValueError)
    return unique


def _adopt(param: Tensor, buffer: Buffer, start: int) -> Slot:
    """Move one parameter into the buffer, with its gradient if it has one."""
    old, before = param._array, param.grad
    stop = start + old.size
    home = shaped_like(buffer.data[start:stop], old)
    home[...] = old
    version = Version(param)  # aliases taken earlier keep the old memory and the old counter
    version.n = 0 if param._version is None else param._version.n
    param._array, param._version, param._grad = home, version, None
    STRUCTURE[0] += 1
    slot = Slot(buffer, start, stop, old, version)
    if before is not None:
        slot.assign(before._array)
    param.extra().slot = slot
    return slot


def owner(param: Tensor) -> FlatStorage | None:
    """The storage that `param` belongs to, while something owns that."""
    extra = param._extra
    if extra is None or extra.slot is None:
        return None
    return extra.slot.buffer.storage()


def is_flat(param: Tensor) -> bool:
    """Whether an optimizer or DataParallel owns the memory of `param`."""
    return owner(param) is not None


def flat_like(buffer: Buffer) -> Any:
    """Zeros in the size of a buffer: a new state of an optimizer."""
    return XP[type(buffer.data)].zeros_like(buffer.data)


def shaped(flat: Any, slot: Slot) -> Any:
    """The part of a flat state that belongs to the parameter of `slot`, in its shape."""
    return shaped_like(flat[slot.start : slot.stop], slot.array)
