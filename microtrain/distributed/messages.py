"""Messages between ranks that gradients pass through: `send`, `recv`, and what is made of them.

The objective is the *sum over the ranks* of each rank's scalar, as in `collectives`. So a gradient
of what was received goes back to the rank that sent it: in the backward pass a receiver sends, and
a sender receives. The engine runs nodes by descending creation number, so every rank communicates
in exactly the reverse order, and that cannot block where the forward pass did not. Whether a rank's
own loss depends on a message is nobody else's business: every pass goes through all messages since
the last one (`MODES.messages`), and what has no gradient says so to the rank that waits for it. A
rank without a loss takes part by `backward(())`.

A message carries shape, dtype, the line that sent it, and a number if its sender waits for a
gradient. The answer is addressed to that number, so messages and gradients never meet.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..autograd.engine import ABSENT
from ..autograd.graph import Backward, Node, record
from ..autograd.locks import release
from ..backend import ARRAYS, MODES, XP
from ..creation import zeros, zeros_like
from ..errors import need, wrong
from ..ops.shape.joining import unbind
from ..tensor import TENSORS, Tensor, as_array, wrap
from .collectives import exchange, need_tensor
from .communicator import NEVER, Array, Communicator, Message, check_rank
from .connection import ranks_of

MANY: Final = 100_000  # messages since the last backward pass that somebody may have forgotten


class _Line:
    """The way between two ranks that one message takes, and its gradient the other way.

    Attributes:
        comm, peer: to or from which rank.
        address: of the message: its tag, or the line whose gradient it is.
        text: what messages about it call it.
        shape, dtype: of what is sent; None: of what is received first.
        token: an empty array of the library that computes with it.
        number: that of the message sent last; None where no gradient is asked for.
        asked: whether one is, known from the first message on: a captured step repeats it.
        over: whether it has been said, here or on the other rank, that no gradient will come.
        there: whether there was something to be received.
    """

    def __init__(
        self, comm: Communicator, peer: int, address: Any, text: str, token: Any,
        shape: tuple[int, ...] | None = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        self.comm, self.peer, self.address, self.text = comm, peer, address, text
        self.token, self.shape, self.dtype = token, shape, dtype
        self.number: int | None = None
        self.asked: bool | None = None
        self.over = self.there = False

    def to(self) -> Any:
        """The address, as it is sent: the numbers of a replay are new."""
        line = self.address
        return ("gradient", line.number) if type(line) is _Line else line

    def exchange(self, function: Callable[[Array], Array], array: Any) -> Any:
        """`function(array)`, at every replay; done again, a pass finds the number as well."""
        again = bool(MODES.answers)
        found = exchange(self.text, function, array)
        if again:
            self.number, self.there = MODES.answers.pop(0)
        elif MODES.capture.on:
            MODES.capture.exchanged.append((self.number, self.there))
        self.asked = self.number is not None
        return found

    def send(self, array: Any, asked: bool, number: int | None = None) -> None:
        """Send an array, or None, and ask for its gradient."""

        def function(given: Array) -> Array:
            self.over = False
            self.number = next(self.comm.numbers) if asked else number
            what = None if array is None else given
            self.comm.post(what, self.peer, self.to(), self.number)
            return np.empty(0)

        self.exchange(function, self.token if array is None else array)

    def receive(self, answered: bool) -> Any:
        """The array that is sent; ABSENT where the other rank has nothing to say.

        answered: whether its gradient will be sent where it is asked for.
        """

        def function(_: Array) -> Array:
            array, number, at = self._next(answered)
            if self.asked is None:
                self.there = array is not None
            else:
                same = self.asked == (number is not None) or not answered
                if not same or (array is not None and not self.there):
                    text = f"what rank {self.peer} sends (at {at}) has a gradient, or asks for "
                    text += "one, other than when this step was captured; compile that rank's "
                    raise wrong(str(self), text + "step, too")
            self.number = number
            if array is None:
                return np.zeros(self.shape or (), self.dtype) if self.there else np.empty(0)
            if self.shape is None:
                self.shape, self.dtype = array.shape, array.dtype
            if array.shape != self.shape or array.dtype != self.dtype:
                text = f"rank {self.peer} has sent {array.dtype}{[*array.shape]} at {at}"
                raise wrong(str(self), text)
            return array

        found = self.exchange(function, self.token)
        return found if self.there else ABSENT

    def _next(self, answered: bool) -> Message:
        line = self.address
        if type(line) is not _Line:
            return self.comm.take(self.peer, line, self, answered)
        if line.over:
            return None, None, ""
        array, number, at = self.comm.take(self.peer, self.to(), self, answered)
        line.over = number == NEVER
        return array, None if line.over else number, at

    def __str__(self) -> str:
        of = "" if self.shape is None else f" of {self.dtype}{[*self.shape]}"
        return self.text + of


def _sent(x: Tensor, line: _Line) -> None:
    asked = bool(MODES.grad) and x._rg
    line.send(x._array, asked)
    if asked:
        _noted(Node(), SEND, (x._edge or x,), line)


def _received(line: _Line) -> Any:
    found = line.receive(bool(MODES.grad))
    if found is ABSENT:
        return found
    result = wrap(found)
    if line.asked and MODES.grad:
        result._rg, result._edge = True, Node()
        _noted(result._edge, RECV, (), line)
    return result


class _Noted:
    """A node that a pass comes to whatever it starts from.

    What was sent stays until its gradient has come, what was received while something needs it.
    """

    def __init__(self, find: Callable[[], Node | None], line: _Line) -> None:
        self._find, self._line = find, line

    def node(self) -> Node | None:
        """None where no gradient will come any more; then the other rank knows, or is told."""
        node = self._find()
        if node is None and not self._line.over:
            _back(self._line).send(None, False, NEVER)
            self._line.over = True
        return None if self._line.over else node


def _noted(node: Node, op: Backward, edges: tuple[Any, ...], line: _Line) -> None:
    record(node, op, edges, (line,), line.shape)
    messages = MODES.messages
    messages.append(_Noted((lambda: node) if edges else weakref.ref(node), line))
    if len(messages) == MANY:
        text = f"{MANY} messages whose gradients are asked for since the last backward pass, all "
        text += "kept for the next one; where none is to come, send and receive under mt.no_grad()"
        warnings.warn(text, stacklevel=4)


class _Send(Backward):
    """What was sent: its gradient comes from the receiver."""

    node_name, saves_arrays, always = "SendBackward", True, True

    @staticmethod
    def backward_arrays(node: Node, _: Any) -> Any:
        found = _back(node._saved[0]).receive(False)
        return found if found is ABSENT else (found,)

    @staticmethod
    def backward_tensors(node: Node, _: Any) -> Any:
        found = _received(_back(node._saved[0]))
        return found if found is ABSENT else (found,)


class _Recv(Backward):
    """What was received: its gradient goes to the sender."""

    node_name, saves_arrays, always = "RecvBackward", True, True

    @staticmethod
    def backward_arrays(node: Node, g: Any) -> tuple[Any, ...]:
        known = g is ABSENT or type(g) in ARRAYS
        array = g if known else as_array(g)
        _back(node._saved[0]).send(None if g is ABSENT else array, False)
        return ()

    @staticmethod
    def backward_tensors(node: Node, g: Any) -> tuple[Any, ...]:
        if g is ABSENT:
            return _Recv.backward_arrays(node, g)
        _sent(g, _back(node._saved[0]))
        return ()


SEND, RECV = _Send(), _Recv()


def _back(line: _Line) -> _Line:
    """The way back of a message."""
    if type(MODES.direct) is list:
        release(MODES.direct)  # it waits for another rank, perhaps a thread of this process
    text = f"backward of {line.text}"
    return _Line(line.comm, line.peer, line, text, line.token, line.shape, line.dtype)


# What users call ----------------------------------------------------------------------------------


def _send(call: str, x: Tensor, dest: int, address: Any, comm: Communicator) -> None:
    _sent(x, _Line(comm, dest, address, f"{call} to rank {dest}, tag {address}", *_like(x)))


def _recv(
    call: str, source: int, address: Any, comm: Communicator, token: Any, *like: Any
) -> Tensor:
    text = f"{call} from rank {source}, tag {address}"
    return _received(_Line(comm, source, address, text, token, *like))


def send(x: Tensor, dest: int, tag: int = 0, comm: Communicator | Any = None) -> None:
    """Send a copy of `x` to rank `dest`, which calls `recv`; returns at once.

    The gradient of `x` is what the receiver's backward pass finds for the received Tensor, 0 where
    nothing there depends on it or where it was received under `no_grad`. Every rank that has sent,
    or received, what requires grad runs the backward pass; one without a loss by
    `mt.autograd.backward(())`.

    Args:
        x: of any shape and dtype.
        dest: the rank that receives it; this one is allowed.
        tag: a whole number that `recv` has to name. Of one tag, messages arrive in order.
        comm: whose ranks these are; None is `world()`.

    Raises TypeError for what is not a Tensor, ValueError for a `dest` that is not a rank and a
    `tag` that is not a whole number; CaptureError in a captured step that ends without a backward
    pass.

    Example:
        >>> comm = mt.distributed.world()
        >>> mt.distributed.send(mt.tensor([1.0, 2.0]), dest=comm.rank)
        >>> mt.distributed.recv((2,), source=comm.rank)
        tensor([1., 2.])
    """
    need_tensor("send", x)
    comm = ranks_of(comm)
    check_rank("send", "dest", dest, comm.size, tag)
    _send("send", x, dest, tag, comm)


def recv(
    like: Tensor | Sequence[int] | None, source: int, tag: int = 0,
    comm: Communicator | Any = None, *, dtype: Any = None,
) -> Tensor:  # fmt: skip
    """The Tensor that rank `source` has sent with this `tag`; waits for it.

    It requires grad if the one that was sent did and gradients are recorded here.

    Args:
        like: what is expected: a Tensor of that shape, dtype and device, or a shape; None: whatever
            is sent.
        source: the rank that sends it.
        tag: as the sender has it.
        comm: whose ranks these are; None is `world()`.
        dtype: of a shape; None is the default dtype.

    Raises RuntimeError where a Tensor of another shape or dtype was sent, with the line that sent
    it, and where this rank waits for itself; TypeError for a `like` that is none of these;
    ValueError as `send`, and for a `dtype` without a shape.

    Example:
        >>> comm = mt.distributed.world()
        >>> mt.distributed.send(mt.tensor([1.0, 2.0]), dest=comm.rank)
        >>> mt.distributed.recv(None, source=comm.rank)
        tensor([1., 2.])
    """
    comm = ranks_of(comm)
    check_rank("recv", "source", source, comm.size, tag)
    if type(like) in TENSORS:
        found: tuple[Any, ...] = _like(like)
    else:
        fits = like is None or isinstance(like, tuple | list)
        text = "expected like to be a Tensor, a shape or None"
        need(fits, "recv", text, type(like), error=TypeError)
        token = zeros((0,), dtype=dtype)._array
        found = (token,) if like is None else (token, tuple(like), token.dtype)
    text = "dtype belongs to a shape; a Tensor like has one, and None takes what is sent"
    need(dtype is None or isinstance(like, tuple | list), "recv", text, error=ValueError)
    return _recv("recv", source, tag, comm, *found)


def _like(like: Any) -> tuple[Any, ...]:
    """Of a line for Tensors like this one: the token, shape and dtype."""
    array = like._array
    return XP[type(array)].zeros((0,), array.dtype), array.shape, array.dtype


def sendrecv(
    x: Tensor, dest: int | None, source: int | None, tag: int = 0,
    comm: Communicator | Any = None, *, like: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Send `x` to rank `dest` and return what rank `source` has sent here, as in a shift.

    Args:
        x: sent.
        dest: the rank that receives it; None: nobody, as at the end of a line of ranks.
        source: the rank whose Tensor is returned; None: zeros are, which require grad as `x` does.
        tag: as the others have it.
        comm: whose ranks these are; None is `world()`.
        like: a Tensor as the one that is expected; None: `x`.

    Raises as `send` and `recv`.

    Example:
        >>> comm = mt.distributed.world()
        >>> right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        >>> x = mt.distributed.sendrecv(x, right, left)
    """
    need_tensor("sendrecv", x)
    comm = ranks_of(comm)
    for name, rank in (("dest", dest), ("source", source)):
        check_rank("sendrecv", f"{name} (None: no such rank)", rank or 0, comm.size, tag)
    return shift("sendrecv", x, dest, source, tag, comm, like)


def shift(
    call: str, x: Tensor, dest: int | None, source: int | None, address: Any, comm: Communicator,
    like: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`sendrecv` by another name."""
    like = x if like is None else like
    if dest is not None:
        _send(call, x, dest, address, comm)
    if source is not None:
        return _recv(call, source, address, comm, *_like(like))
    nothing: Tensor = zeros_like(like)
    if x._rg and MODES.grad and nothing.is_floating_point():
        nothing = nothing.requires_grad_().clone()  # no leaf: it may be written to
    return nothing


def scatter(tensor: Tensor | None, root: int = 0, comm: Communicator | Any = None) -> Tensor:
    """Row `rank` of the Tensor that rank `root` has.

    The gradient of a row comes back from its rank, so every rank runs the backward pass.

    Args:
        tensor: on `root` of shape (size, *shape), the result has `shape`; elsewhere it is not
            looked at, and may be None.
        root: the rank that has the rows.
        comm: who takes part; None is `world()`.

    Raises TypeError for what is not a Tensor, ValueError for a root that is not a rank and for
    another number of rows.
    """
    comm = ranks_of(comm)
    check_rank("scatter", "root", root, comm.size)
    if comm.rank != root:
        return _recv("scatter", root, "scatter", comm, zeros((0,))._array)
    need_tensor("scatter", tensor)
    assert tensor is not None
    text = f"expected a Tensor of shape (size, ...), a row for each of {comm.size} ranks"
    fits = tensor.ndim > 0 and tensor.shape[0] == comm.size
    need(fits, "scatter", text, tensor, error=ValueError)
    rows = unbind(tensor)
    for rank, row in enumerate(rows):
        if rank != root:
            _send("scatter", row, rank, "scatter", comm)
    return rows[root]


def scan(x: Tensor, comm: Communicator | Any = None) -> Tensor:
    """The sum of the Tensors of the ranks up to this one, which is counted as well.

    Args:
        x: of the same shape and dtype on all ranks.
        comm: who takes part; None is `world()`.

    Collective, in as many rounds as the number of ranks has binary digits. Raises as `sendrecv`.
    """
    need_tensor("scan", x)
    return _scan("scan", x, ranks_of(comm))


def exscan(x: Tensor, comm: Communicator | Any = None) -> Tensor:
    """The sum of the Tensors of the ranks before this one: zeros on rank 0. Otherwise as `scan`.

    Example:
        >>> first = mt.distributed.exscan(rows)  # where this rank's rows begin among those of all
    """
    need_tensor("exscan", x)
    comm = ranks_of(comm)
    after = comm.rank + 1 if comm.rank + 1 < comm.size else None
    before = comm.rank - 1 if comm.rank else None
    return _scan("exscan", shift("exscan", x, after, before, "exscan", comm), comm)


def _scan(call: str, total: Tensor, comm: Communicator) -> Tensor:
    """W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986."""
    step = 1
    while step < comm.size:
        after = comm.rank + step if comm.rank + step < comm.size else None
        before = comm.rank - step if comm.rank >= step else None
        received = shift(call, total, after, before, "scan", comm)
        total = total if before is None else received + total
        step *= 2
    return total
