"""The front of a public function: the checks that its annotations ask for, and then the call.

    @public
    def narrow(input: T, dim: Int, start: Int, length: Int) -> Any: ...

Where an argument is not what the annotation says, the front raises an error of PyTorch's kind that
names the function and the argument; else it hands the arguments on, normalized. A None that is the
default goes unchecked. Where a front has `dim` or `keepdim` it takes NumPy's names of them too:
`axis`, `keepdims`. Fronts are generated as text at the first call, as operations are;
`narrow.front.source` shows it.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from functools import cached_property
from types import FunctionType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from ..common.stack_frames import FRONT
from ..tensor import Tensor
from . import arguments
from .arguments import UNSET
from .arguments import need as need
from .arguments import wrong as wrong
from .shape import shapes


class Check(str):
    """The text of what a front does with an argument.

    `@` stands for the argument, `$` for the names of function and argument as one passes them to
    what raises, `$name` for that of the function, `^` for the first argument.
    """


def must(condition: str, text: str, found: str = "", error: str = "RuntimeError") -> Check:
    """What an argument must be: `must("@ > 0", "argument @ must be greater than 0", "@")`.

    Text and `found`, a list of expressions, are those of `wrong`.
    """
    found = f", {found}" if found else ""
    return Check(f"if not ({condition}): raise wrong($name, {text!r}{found}, error={error})")


def one_of(*known: Any, error: str = "RuntimeError") -> Check:
    """An argument that is one of those known: `Annotated[str, one_of("none", "tanh")]`."""
    names = " or ".join(map(repr, known))
    return must(f"@ in {known!r}", f"argument '@' must be {names}", "@", error)


def bounded(*bounds: str, error: str = "RuntimeError") -> Check:
    """A number within bounds: `Annotated[float, bounded(">= 0", "<= 1")]`."""
    condition = " and ".join(f"@ {bound}" for bound in bounds)
    return must(condition, f"argument '@' must be {' and '.join(bounds)}", "@", error)


def of_dims(least: int, most: int | None = None) -> Check:
    """A Tensor of `least` to `most` dimensions: `Annotated[T, of_dims(1, 2)]`."""
    words = f"at least {least}-d" if most is None else f"{least}-d to {most}-d"
    words = f"{least}-d" if least == most else words
    condition = f"@.ndim >= {least}" if most is None else f"{least} <= @.ndim <= {most}"
    return must(condition, f"argument '@' must be {words}", "@")


_TENSOR = Check("if type(@) not in TENSORS and type(@) not in XP: raise not_a_tensor($, @)")
_TENSOR_ONLY = Check("if type(@) not in TENSORS: raise not_a_tensor($, @)")
FLOAT = must("@.dtype.kind == 'f'", arguments.IS_FLOAT, "@.dtype")
NUMERIC = must("@.dtype.kind != 'b'", "not defined for booleans; cast them, such as with .long()")
_SAME_DTYPE = must("@.dtype == ^.dtype", arguments.SAME_DTYPE, "'@', ^.dtype, @.dtype")
_SQUARE = must("@.ndim > 1 and @.shape[-1] == @.shape[-2]", arguments.IS_SQUARE, "@")
_MASK = must("@.dtype.kind == 'b'", "expected a boolean mask, got {}; use .bool()", "@.dtype")
_NUMBER = must("isinstance(@, NUMBERS)", "argument '@' must be a number", "type(@)", "TypeError")
_FLAG = must("type(@) is bool", "argument '@' must be True or False", "@", "TypeError")
_ZERO_D = must("type(@) not in TENSORS or not @.ndim", "argument '@' must be 0-d", "@")


# A Tensor, or in a gradient rule an array; one of a float type; one of numbers, not booleans; one
# in the dtype of the first.
T = Annotated[Tensor, _TENSOR]
Float = Annotated[T, FLOAT]
Numeric = Annotated[T, NUMERIC]
Alike = Annotated[T, _SAME_DTYPE]
# One of so many dimensions; a square matrix or a batch of them, of any type and of a float type.
Vector = Annotated[T, of_dims(1, 1)]
Matrix = Annotated[T, of_dims(2, 2)]
Batch = Annotated[T, of_dims(3, 3)]
Matrices = Annotated[T, of_dims(2)]
FloatMatrices = Annotated[Matrices, FLOAT]
Square = Annotated[T, _SQUARE]
FloatSquare = Annotated[Square, FLOAT]
# Neither: a list, which the function itself looks at.
Unchecked = Annotated[Any, Check("pass")]
# Never an array.
TensorOnly = Annotated[Tensor, _TENSOR_ONLY]
FloatOnly = Annotated[TensorOnly, FLOAT]
NumericOnly = Annotated[TensorOnly, NUMERIC]
SameDtype = Annotated[TensorOnly, _SAME_DTYPE]
Mask = Annotated[TensorOnly, _MASK]
# int64 or int32, handed on as int64.
Index = Annotated[Tensor, Check("@ = want_integers($name, @)")]
# What a loss compares its input with, a Tensor of one shape with it; the mean, the sum or none of
# its elements; the old spelling of that, which is refused.
SameShape = Annotated[TensorOnly, Check("if @.shape != ^.shape: check_pair($name, ^, @)")]
Reduction = Annotated[str, Check("if @ not in REDUCTIONS: check_reduction(@)")]
Refused = Annotated[Any, Check("check_reduction('mean', @)")]
# A whole number; several, as a list or tuple; one or several.
Int = Annotated[int, Check("@ = integer($, @)")]
Int0d = Annotated[int, _ZERO_D, *Int.__metadata__]
Ints = Annotated[Any, Check("@ = integers($, @)")]
IntOrInts = Annotated[Any, Check("@ = integers($, @ if isinstance(@, tuple | list) else (@,))")]
Number = Annotated[float, _NUMBER]
Flag = Annotated[bool, _FLAG]
# Numbers within bounds: whole ones, and others.
Count = Annotated[Int, bounded(">= 0")]
Positive = Annotated[Int, bounded(">= 1")]
Above0 = Annotated[float, bounded("> 0")]
AtLeast0 = Annotated[float, bounded(">= 0")]
Probability = Annotated[float, bounded(">= 0", "<= 1")]
Margin = Annotated[float, bounded("> 0", error="ValueError")]
# A dimension counted from the front, for which a 0-d Tensor has one as well; one that the Tensor
# really has, with the two kinds of error that PyTorch has for a 0-d one; several, None for all.
Dim = Annotated[int, Check("@ = normal_dim(@, ^.ndim)")]
OwnDim = Annotated[int, Check("@ = dim_of($name, ^, @)")]
RealDim = Annotated[int, Check("@ = dim_of($name, ^, @, RuntimeError)")]
Dims = Annotated[Any, Check("@ = normal_dims(@, ^.ndim)")]


# What the checks name.
_GLOBALS = {**vars(shapes), **vars(arguments)}

# NumPy's names of arguments, and of those of some functions.
_NUMPY_NAMES = {"dim": "axis", "keepdim": "keepdims", "dims": "axes"}
_OWN_NAMES = {"flip": {"dims": "axis"}, "roll": {"dims": "axis"}, "tile": {"dims": "reps"}}


class Front:
    """The public form of `function`, in which the parameters `constants` have these values.

    Attributes:
        apply: the function that users call.
        source: its text.
        aliases: NumPy's name of an argument, and which one that is.
        more: parameters that the public form has and the function has not.
        first: the public name of a first parameter that is `x` in the function.
    """

    more: tuple[inspect.Parameter, ...] = ()

    def __init__(
        self, function: Callable[..., Any], name: str, first: str = "input", /, **constants: Any
    ) -> None:
        self.function, self.name, self.first, self.constants = function, name, first, constants
        signature = inspect.signature(function)
        shown = [p for p in signature.parameters.values() if p.name not in constants]
        self._first_name = first_name = shown[0].name
        shown[0] = shown[0].replace(name=self.first if first_name == "x" else first_name)
        self.parameters = [*shown, *self.more]
        other = {**_NUMPY_NAMES, **_OWN_NAMES.get(name, {})}
        self.aliases = {other[p.name]: p.name for p in shown if p.name in other}
        self.names: dict[str, Any] = {**_GLOBALS, "FRONT": self, "FUNCTION": function}
        apply = FunctionType(_first_call.__code__, self.names, name)
        apply.__signature__ = signature.replace(parameters=self.parameters)  # type: ignore[attr-defined]
        apply.__module__, apply.__doc__ = function.__module__, function.__doc__
        apply.__qualname__, apply.front = name, self  # type: ignore[attr-defined]
        self.apply = apply

    @cached_property
    def checks(self) -> dict[str, list[Check]]:
        """The checks of every parameter that has some."""
        hints = get_type_hints(self.function, include_extras=True)
        first = self.parameters[0].name
        hints[first] = hints.get(self._first_name)
        marks = {p.name: _metadata(hints.get(p.name)) for p in self.parameters}
        found = {name: [m for m in some if type(m) is Check] for name, some in marks.items()}
        found[first] = found[first] or [_TENSOR]
        return {name: some for name, some in found.items() if some}

    @property
    def method(self) -> Callable[..., Any]:
        """The function as a method, whose first argument needs no check."""
        first, *more = self.checks.values()
        return self.apply if more or len(first) > 1 or self.aliases else self.function

    @cached_property
    def source(self) -> str:
        """The text of `apply`."""
        lines, passed = self._named_once(), []
        named: dict[str, Any] = {}
        for p in inspect.signature(self.function).parameters.values():
            if p.name in self.constants:
                passed.append(repr(self.constants[p.name]))
                continue
            name = self.first if p.name == self._first_name == "x" else p.name
            for check in self.checks.get(name, ()):
                text = check.replace("$name", repr(self.name)).replace("@", name)
                text = text.replace("^", self.parameters[0].name)
                text = text.replace("$", f"{self.name!r}, {name!r}")
                if p.default is None:
                    rest = f" and {text[3:]}" if text.startswith("if ") else f": {text}"
                    text = f"if {name} is not None{rest}"
                lines.append(text)
            if p.kind is p.KEYWORD_ONLY:
                named[name] = p.default
            else:
                passed.append(f"*{name}" if p.kind is p.VAR_POSITIONAL else name)
        short = self.last_lines(f"FUNCTION({', '.join(passed)})")
        if [*named.values()] == [None] and len(short) == 1:  # handing on None costs more
            lines.append(f"if {next(iter(named))} is None: {short[0]}")
        passed += [f"{name}={name}" for name in named]
        head = f"def {self.name}{self._signature()}:"
        lines += self.last_lines(f"FUNCTION({', '.join(passed)})")
        return "\n    ".join([head, *lines]) + "\n"

    @cached_property
    def unset(self) -> set[str]:
        """The parameters whose absence the text sees: those with two names, and what they precede.

        One with two names is never missing for Python, so nothing behind it may be.
        """
        named = set(self.aliases.values())
        required = [p.name for p in self.parameters if p.default is p.empty]
        first = min((required.index(name) for name in named & {*required}), default=len(required))
        return named | {*required[first:]}

    def _signature(self) -> inspect.Signature:
        """That of the text: with NumPy's names, behind all others of their kind."""
        kinds = {p.name: p.kind for p in self.parameters}
        spread = inspect.Parameter.VAR_POSITIONAL in kinds.values()
        found = [
            p.replace(annotation=p.empty, default=UNSET if p.name in self.unset else p.default)
            for p in self.parameters
        ]
        for alias, name in self.aliases.items():
            kind = inspect.Parameter.KEYWORD_ONLY if spread else kinds[name]
            found.append(inspect.Parameter(alias, kind, default=UNSET))
        return inspect.Signature(sorted(found, key=lambda p: p.kind))

    def _named_once(self) -> list[str]:
        """The lines that put an argument with two names under the first of them."""
        lines = [
            f"if {alias} is not UNSET: {name} = only_one({self.name!r}, {name!r}, {name}, "
            f"{alias!r}, {alias})"
            for alias, name in self.aliases.items()
        ]
        for p in self.parameters:
            if p.name in self.unset:
                absent = f"raise missing({self.name!r}, {p.name!r})"
                value = absent if p.default is p.empty else f"{p.name} = {p.default!r}"
                lines.append(f"if {p.name} is UNSET: {value}")
        return lines

    def last_lines(self, call: str) -> list[str]:
        """What follows the checks, given the call of the function."""
        return [f"return {call}"]

    def generate(self) -> Callable[..., Any]:
        """Generate the code of the public function; returns that."""
        file = f"{FRONT}{self.name}>"
        linecache.cache[file] = len(self.source), None, self.source.splitlines(True), file
        exec(compile(self.source, file, "exec"), self.names)
        made, apply = self.names[self.name], self.apply
        apply.__defaults__, apply.__kwdefaults__ = made.__defaults__, made.__kwdefaults__
        apply.__code__ = made.__code__
        return apply


def _metadata(hint: Any) -> tuple[Any, ...]:
    """What stands beside the type in an annotation, which may allow None as well."""
    marked = (h for h in (hint, *get_args(hint)) if hasattr(h, "__metadata__"))
    return next((h.__metadata__ for h in marked), ())


def _first_call(*args: Any, **kwargs: Any) -> Any:
    return FRONT.generate()(*args, **kwargs)  # type: ignore[attr-defined]


_F = TypeVar("_F", bound=Callable[..., Any])
_R = TypeVar("_R")


_PUBLIC: dict[Any, Any] = {}  # one front a function


def public(function: _F) -> _F:
    """`function` behind its front; a first argument without a check is a Tensor or an array."""
    if function not in _PUBLIC:
        _PUBLIC[function] = Front(function, function.__name__).apply
    return _PUBLIC[function]


def spatial(function: Callable[..., _R], *names: str) -> tuple[Callable[..., _R], ...]:
    """Fronts of `function(name, dims, ...)` for signals and images: conv1d, conv2d."""
    return tuple(Front(function, name, name=name, dims=int(name[-2])).apply for name in names)
