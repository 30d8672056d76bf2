"""Weights that are computed from other parameters: `weight_norm` and `spectral_norm`.

The module gets a class of its own, which computes the weight wherever it is read. So there is
nothing to keep up to date, steps can be captured, and copies and pickles are like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from ...autograd.grad_mode import no_grad
from ...creation import randn
from ...errors import need, wrong
from ...ops.nn.normalization import normalize
from ...ops.reduce.norms import norm
from ...tensor import Tensor
from ..convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ..module import Module
from ..parameter import Parameter

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]

M = TypeVar("M", bound=Module)


@dataclass(frozen=True)
class _Weight:
    """How the attribute `name` is computed, `of` parameters and buffers whose names begin with it.

    Attributes:
        parts: what these end in.
    """

    name: str

    def part(self, module: Module, suffix: str) -> Any:
        return getattr(module, f"{self.name}_{suffix}")

    def before(self, module: Module) -> None:
        """What is done once before each call of the module."""


@dataclass(frozen=True)
class _WeightNorm(_Weight):
    dim: int | None
    parts = ("g", "v")

    def of(self, module: Module) -> Tensor:
        v = self.part(module, "v")
        return v * (self.part(module, "g") / self.size(v))

    def size(self, v: Tensor) -> Any:
        """The norm of `v` over all dimensions but `dim`."""
        if self.dim is None:
            return norm(v)
        keep = self.dim % v.ndim
        return norm(v, 2.0, [d for d in range(v.ndim) if d != keep], True)


@dataclass(frozen=True)
class _SpectralNorm(_Weight):
    n_power_iterations: int
    eps: float
    dim: int
    parts = ("orig", "u", "v")

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as a matrix with the rows of dimension `dim`."""
        return weight.movedim(self.dim, 0).reshape(weight.shape[self.dim], -1)

    def before(self, module: Module) -> None:
        if module.training:
            weight, u, v = (self.part(module, suffix) for suffix in self.parts)
            with no_grad():
                matrix = self.matrix(weight)
                for _ in range(self.n_power_iterations):
                    v.copy_(normalize(matrix.t() @ u, dim=0, eps=self.eps))
                    u.copy_(normalize(matrix @ v, dim=0, eps=self.eps))

    def of(self, module: Module) -> Tensor:
        weight, u, v = (self.part(module, suffix) for suffix in self.parts)
        # Copies: the next call writes to them, when the graph of this one has saved them.
        return weight / (u.clone() @ (self.matrix(weight) @ v.clone()))


def _changed(module: Module, weights: tuple[Any, ...]) -> None:
    """Give `module` the class in which these weights are computed; without any its own."""
    base = getattr(type(module), "_plain_class", type(module))

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        for weight in weights:
            weight.before(self)
        return base.forward(self, *args, **kwargs)

    def reduced(self: Any, protocol: Any) -> Any:
        return _rebuilt, (base, weights), vars(self)

    names = {weight.name: property(weight.of) for weight in weights}
    scope = {
        **names, "_plain_class": base, "_computed": weights, "forward": forward,
        "__reduce_ex__": reduced, "__module__": base.__module__, "__doc__": base.__doc__,
    }  # fmt: skip
    module.__class__ = type(base.__name__, (base,), scope) if weights else base


def _rebuilt(base: Any, weights: tuple[Any, ...]) -> Module:
    module: Module = base.__new__(base)
    _changed(module, weights)
    return module


def _computed(module: M, new: Any, kind: str) -> tuple[M, Parameter]:
    """`module` without the parameter that `new` computes, and that parameter."""
    weight = vars(module).get(new.name)
    if type(weight) is not Parameter:
        raise wrong(kind, "{} has no parameter {}", type(module), new.name)
    inside = new.dim is None or -weight.ndim <= new.dim < weight.ndim
    need(inside, kind, "dim {} is out of range for {}", new.dim, weight, error=IndexError)
    delattr(module, new.name)
    _changed(module, (*getattr(type(module), "_computed", ()), new))
    return module, weight


def _removed(module: M, name: str, kind: Any, label: str) -> M:
    weights = getattr(type(module), "_computed", ())
    found = [weight for weight in weights if weight.name == name and type(weight) is kind]
    need(found, label, "of {} not found in {}", name, module, error=ValueError)
    with no_grad():
        value = getattr(module, name).detach()
    _changed(module, tuple(weight for weight in weights if weight is not found[0]))
    for suffix in kind.parts:
        delattr(module, f"{name}_{suffix}")
    setattr(module, name, Parameter(value))
    return module


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Compute a weight as `g * v / |v|`, from its lengths and directions, which are learned.

    Salimans and Kingma, "Weight normalization", 2016. The parameter becomes two, `<name>_g` and
    `<name>_v`; before an optimizer is given them. Returns the module.

    Args:
        module: a layer.
        name: of its parameter.
        dim: the dimension whose elements have a length each; None for one length in all.

    Raises RuntimeError where there is no such parameter, IndexError for a dimension out of range.

    Example:
        >>> layer = mt.nn.utils.weight_norm(mt.nn.Linear(3, 2))
        >>> [(name, p.shape) for name, p in layer.named_parameters()]
        [('bias', (2,)), ('weight_g', (2, 1)), ('weight_v', (2, 3))]
    """
    new = _WeightNorm(name, None if dim == -1 else dim)  # which PyTorch takes for None
    module, weight = _computed(module, new, "weight_norm")
    setattr(module, f"{name}_g", Parameter(new.size(weight.detach())))
    setattr(module, f"{name}_v", Parameter(weight.data))
    return module


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Make the weight a parameter again, with the value that it has. Returns the module.

    Raises ValueError where `weight_norm` was not applied.

    Example:
        >>> layer = mt.nn.utils.weight_norm(mt.nn.Linear(3, 2))
        >>> [name for name, _ in mt.nn.utils.remove_weight_norm(layer).named_parameters()]
        ['bias', 'weight']
    """
    return _removed(module, name, _WeightNorm, "weight_norm")


def spectral_norm(
    module: M, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> M:  # fmt: skip
    """Divide a weight by its largest singular value, as estimated by power iterations.

    Miyato et al., "Spectral normalization for generative adversarial networks", 2018. The parameter
    becomes `<name>_orig`, beside the buffers `<name>_u` and `<name>_v`, which every call in
    training improves. Returns the module.

    Args:
        module: a layer.
        name: of its parameter.
        n_power_iterations: for each call, at least 1.
        eps: the least length that vectors are divided by.
        dim: the dimension of the outputs; None is 1 for transposed convolutions, else 0.

    Raises RuntimeError where there is no such parameter, ValueError for less than one iteration.

    Example:
        >>> layer = mt.nn.utils.spectral_norm(mt.nn.Linear(3, 2), n_power_iterations=50)
        >>> output = layer(mt.ones(1, 3))
        >>> round(mt.linalg.matrix_norm(layer.weight, ord=2).item(), 3)
        1.0
    """
    text = "n_power_iterations must be positive"
    need(n_power_iterations > 0, "spectral_norm", text, n_power_iterations, error=ValueError)
    if dim is None:
        kinds = ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
        dim = 1 if isinstance(module, kinds) else 0
    new = _SpectralNorm(name, n_power_iterations, eps, dim)
    module, weight = _computed(module, new, "spectral_norm")
    setattr(module, f"{name}_orig", weight)
    for suffix, size in zip("uv", new.matrix(weight.data).shape, strict=True):
        draw = randn(size, dtype=weight.dtype, device=weight.device)
        module.register_buffer(f"{name}_{suffix}", normalize(draw, dim=0, eps=eps))
    return module


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """As `remove_weight_norm`.

    Example:
        >>> layer = mt.nn.utils.spectral_norm(mt.nn.Linear(3, 2))
        >>> [name for name, _ in mt.nn.utils.remove_spectral_norm(layer).named_parameters()]
        ['bias', 'weight']
    """
    return _removed(module, name, _SpectralNorm, "spectral_norm")
