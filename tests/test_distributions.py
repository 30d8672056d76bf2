"""Distributions: as in PyTorch where it is installed, and by their own laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from steps import bits

import microtrain as mt
from microtrain import random as mtr
from microtrain.data import ArrayDataset, DataLoader

d = mt.distributions


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    before, place = mtr.get_rng_state(), mtr.place()
    mt.manual_seed(11)
    yield
    mtr.set_rng_state(before)
    mtr.begin_batch(*place)


def some(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def positive(*shape: int, seed: int = 1) -> Any:
    return np.exp(0.4 * some(*shape, seed=seed))


def matrices(*shape: int, seed: int = 2) -> Any:
    x = some(*shape, seed=seed)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def chances(*shape: int, seed: int = 3) -> Any:
    return 1 / (1 + np.exp(-some(*shape, seed=seed)))


def rows(*shape: int, seed: int = 4) -> Any:
    x = positive(*shape, seed=seed)
    return x / x.sum(-1, keepdims=True)


def factors(*shape: int) -> Any:
    return np.linalg.cholesky(matrices(*shape))


def one_hot(*shape: int) -> Any:
    return np.eye(shape[-1])[np.random.default_rng(0).integers(0, shape[-1], shape[:-1])]


# Name and arguments; values to ask about. Two of a name are a pair for the divergence.
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "normal": ("Normal", {"loc": some(4, 3), "scale": positive(3)}, some(2, 4, 3)),
    "normal of numbers": ("Normal", {"loc": 0.5, "scale": 2.0}, some(5)),
    "normal, another": ("Normal", {"loc": some(4, 3, seed=7), "scale": 1.5}, some(4, 3)),
    "log normal": ("LogNormal", {"loc": some(4), "scale": positive(4)}, positive(3, 4)),
    "log normal, another": ("LogNormal", {"loc": some(4, seed=5), "scale": 0.5}, positive(4)),
    "uniform": ("Uniform", {"low": -positive(4), "high": positive(4)}, 0.3 * chances(2, 4)),
    "uniform, wider": ("Uniform", {"low": -9.0, "high": 9 + positive(4)}, some(4)),
    "exponential": ("Exponential", {"rate": positive(4)}, positive(3, 4)),
    "exponential, another": ("Exponential", {"rate": positive(4, seed=8)}, positive(4)),
    "laplace": ("Laplace", {"loc": some(4), "scale": positive(4)}, some(3, 4, seed=9)),
    "laplace, another": ("Laplace", {"loc": 0.25, "scale": positive(4, seed=8)}, some(4)),
    "vectors by covariance": (
        "MultivariateNormal", {"loc": some(5, 3), "covariance_matrix": matrices(3, 3)},
        some(2, 5, 3, seed=3),
    ),
    "vectors by precision": (
        "MultivariateNormal", {"loc": some(3), "precision_matrix": matrices(5, 3, 3)}, some(5, 3),
    ),
    "vectors by factor": (
        "MultivariateNormal", {"loc": some(5, 3), "scale_tril": factors(5, 3, 3)}, some(3),
    ),
    "bernoulli": ("Bernoulli", {"probs": chances(4, 3)}, (some(2, 4, 3) > 0) * 1.0),
    "bernoulli by logits": ("Bernoulli", {"logits": some(4, 3)}, (some(4, 3) > 0) * 1.0),
    "categorical": (
        "Categorical", {"probs": positive(4, 3)}, np.array([[0, 2, 1, 1], [2, 2, 0, 1]]),
    ),
    "categorical by logits": ("Categorical", {"logits": some(4, 3)}, np.array([1, 2, 0, 2])),
    "one hot": ("OneHotCategorical", {"probs": rows(4, 3)}, one_hot(2, 4, 3)),
    "one hot by logits": ("OneHotCategorical", {"logits": some(4, 3)}, one_hot(4, 3)),
}  # fmt: skip


def discrete(name: str) -> bool:
    return CASES[name][0] in ("Bernoulli", "Categorical", "OneHotCategorical")


CONTINUOUS = ("Normal", "LogNormal", "Uniform", "Exponential", "Laplace")


def make(name: str, library: Any = mt, **options: Any) -> tuple[Any, list[Any], Any]:
    """The distribution, its parameters that are leaves, and values to ask about."""
    kind, arguments, values = CASES[name]
    given, leaves = {}, []
    for key, value in arguments.items():
        if isinstance(value, np.ndarray):
            value = library.tensor(value).requires_grad_()
            leaves.append(value)
        given[key] = value
    module = library.distributions
    return getattr(module, kind)(**given, **options), leaves, library.tensor(values)


def close(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    a, b = a.detach().numpy(), b.detach().numpy()
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def compare(torch: Any, names: Any, ask: Any) -> None:
    """`ask(distribution ..., values)` and its gradients, here and in PyTorch."""
    found = []
    for library in (mt, torch):
        made = [make(name, library) for name in names]
        answer = ask(*(one[0] for one in made), made[0][2])
        numbers = any(type(v) is float for name in names for v in CASES[name][1].values())
        leaves = [leaf for one in made for leaf in one[1]]
        grads = [None] * len(leaves)
        if answer.requires_grad:
            grads = library.autograd.grad(answer.sum(), leaves, allow_unused=True)
        found.append((answer, grads))
    (ours, mine), (theirs, others) = found
    more = 1e3 if numbers else 1  # which are float32
    close(ours, theirs, 1e-9 * more)
    for a, b in zip(mine, others, strict=True):
        if a is None or b is None:
            assert a is None or not np.any(a.numpy())
            assert b is None or not np.any(b.numpy())
        else:
            close(a, b, 1e-8 * more)


ASKED: dict[str, Any] = {
    "log_prob": lambda p, x: p.log_prob(x),
    "entropy": lambda p, x: p.entropy(),
    "perplexity": lambda p, x: p.perplexity(),
    "mean": lambda p, x: p.mean,
    "mode": lambda p, x: p.mode,
    "variance": lambda p, x: p.variance,
    "stddev": lambda p, x: p.stddev,
    "cdf": lambda p, x: p.cdf(x),
    "icdf": lambda p, x: p.icdf(x / 16 + 0.5),
    "expand": lambda p, x: p.expand((2, *p.batch_shape)).log_prob(
        x[0] if x.ndim > len(p.batch_shape + p.event_shape) else x
    ),
    "variance expanded": lambda p, x: p.expand((2, *p.batch_shape)).variance,
    "enumerate_support": lambda p, x: p.enumerate_support(),
    "not expanded": lambda p, x: p.enumerate_support(expand=False),
}  # fmt: skip


@pytest.mark.parametrize("question", ASKED)
@pytest.mark.parametrize("name", CASES)
def test_answers_and_their_gradients_are_pytorchs(name: str, question: str) -> None:
    torch = pytest.importorskip("torch")
    theirs, _, values = make(name, torch)
    try:
        ASKED[question](theirs, values)
    except NotImplementedError:
        if question == "mode":
            return
        ours, _, values = make(name)
        with pytest.raises(NotImplementedError):
            ASKED[question](ours, values)
        return
    ours, _, values = make(name)
    assert (ours.batch_shape, ours.event_shape) == (theirs.batch_shape, theirs.event_shape)
    compare(torch, [name], ASKED[question])


PAIRS = [
    (one, other)
    for one, (kind, _, _) in CASES.items()
    for other, (another, _, _) in CASES.items()
    if kind == another and one != other
] + [("uniform, wider", "uniform")]


@pytest.mark.parametrize("pair", PAIRS, ids=" | ".join)
def test_divergences_and_their_gradients_are_pytorchs(pair: Any) -> None:
    torch = pytest.importorskip("torch")

    def divergence(p: Any, q: Any, _: Any) -> Any:
        here = isinstance(p, d.Distribution)
        return (d if here else torch.distributions).kl_divergence(p, q)

    compare(torch, pair, divergence)


def test_certain_coins() -> None:
    ends = mt.tensor([0.0, 0.5, 1.0])
    q = d.Bernoulli(ends)
    p = d.Bernoulli(ends[:, None])
    found = d.kl_divergence(p, q).numpy()
    expected = [[0, math.log(2), math.inf], [math.inf, 0, math.inf], [math.inf, math.log(2), 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    sure = d.Bernoulli(logits=mt.tensor([-math.inf, math.inf]))
    with np.errstate(invalid="ignore"):
        assert d.kl_divergence(sure, sure).tolist() == [0, 0]
    np.testing.assert_array_equal(q.mode.numpy(), [0, math.nan, 1])


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_moments_that_they_say(name: str) -> None:
    distribution, _, _ = make(name)
    x = distribution.sample((20_000,))
    assert x.shape == (20_000, *distribution.batch_shape, *distribution.event_shape)
    assert not x.requires_grad
    distribution.log_prob(x)  # all are of the support
    assert distribution.support.is_discrete == bool((x == x.round()).all())
    if name.startswith("categorical"):
        counts = (x.unsqueeze(-1) == mt.arange(3)).double().mean(0)
        assert float((counts - distribution.probs).abs().max()) < 0.02
        return
    spread = distribution.stddev.detach() / math.sqrt(20_000)
    far = (x.mean(0).double() - distribution.mean.detach()).abs() / spread
    assert float(far.max()) < 5
    if "log normal" not in name:
        ratio = x.double().var(0) / distribution.variance.detach()
        assert float((ratio - 1).abs().max()) < 0.15


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c[0] in CONTINUOUS])
def test_the_cdf_is_the_integral_of_the_density(name: str) -> None:
    stats = pytest.importorskip("scipy.stats")
    p, _, _ = make(name)
    x = p.sample((4_000,))
    uniform = p.cdf(x).detach().numpy().reshape(4_000, -1)
    for column in uniform.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if "Normal" in c[0] or c[0] in CONTINUOUS]
)
def test_gradients_flow_through_rsample(name: str) -> None:
    p, leaves, _ = make(name)
    assert p.has_rsample
    x = p.rsample((3,))
    if leaves:
        grads = mt.autograd.grad(x.sum(), leaves)
        assert all(np.isfinite(g.numpy()).all() for g in grads)
    mt.manual_seed(2)
    y = make(name)[0].rsample((3,)).detach()
    mt.manual_seed(2)
    np.testing.assert_array_equal(make(name)[0].sample((3,)).numpy(), y.numpy())


@pytest.mark.parametrize("name", [*filter(discrete, CASES)])
def test_probabilities_add_up_to_one_and_draws_have_no_gradient(name: str) -> None:
    p, _, _ = make(name)
    total = p.log_prob(p.enumerate_support()).exp().sum(0)
    close(total, mt.ones(p.batch_shape, dtype=mt.float64))
    assert not p.has_rsample
    with pytest.raises(NotImplementedError, match="use sample, log_prob"):
        p.rsample()


def test_independent_adds_the_last_dimensions_up() -> None:
    normal, _, x = make("normal")
    both = d.Independent(normal, 1)
    assert (both.batch_shape, both.event_shape) == ((4,), (3,))
    close(both.log_prob(x), normal.log_prob(x).sum(-1))
    close(both.entropy(), normal.entropy().sum(-1))
    assert both.sample((2,)).shape == both.rsample((2,)).shape == (2, 4, 3)
    assert both.expand((6, 4)).log_prob(x[0]).shape == (6, 4)
    other = d.Independent(make("normal, another")[0], 1)
    close(d.kl_divergence(both, other), d.kl_divergence(normal, other.base_dist).sum(-1))
    close(d.Independent(normal, 0).log_prob(x), normal.log_prob(x))
    with pytest.raises(ValueError, match="from 0 to 2"):
        d.Independent(normal, 3)
    with pytest.raises(NotImplementedError):
        d.kl_divergence(both, d.Independent(normal, 2))


def test_a_vector_is_independent_numbers_where_the_factor_is_diagonal() -> None:
    loc, scale = mt.tensor(some(3)), mt.tensor(positive(3))
    whole = d.MultivariateNormal(loc, scale_tril=scale.diag_embed())
    parts = d.Independent(d.Normal(loc, scale), 1)
    x = mt.tensor(some(6, 3))
    close(whole.log_prob(x), parts.log_prob(x))
    close(whole.entropy(), parts.entropy())


REFUSED: dict[str, Any] = {
    "a scale of 0": (lambda: d.Normal(0.0, 0.0), "parameter scale .* to be positive"),
    "NaN": (lambda: d.Normal(math.nan, 1.0), "parameter loc .* to be real"),
    "bounds": (lambda: d.Uniform(1.0, 1.0), "high - low"),
    "a probability": (lambda: d.Bernoulli(1.5), "probs .* from 0 to 1"),
    "both": (lambda: d.Bernoulli(0.5, 0.5), "either probs or logits"),
    "none": (lambda: d.Categorical(), "either probs or logits"),
    "no dimensions": (lambda: d.Categorical(mt.tensor(0.5)), "at least 1 dimension"),
    "negative": (lambda: d.Categorical(mt.tensor([-1.0, 2.0])), "not negative with the sum 1"),
    "two matrices": (
        lambda: d.MultivariateNormal(mt.zeros(2), mt.eye(2), mt.eye(2)), "exactly one",
    ),
    "a factor": (
        lambda: d.MultivariateNormal(mt.zeros(2), scale_tril=mt.ones(2, 2)), "lower triangular",
    ),
    "half a choice": (
        lambda: d.Categorical(mt.ones(3)).log_prob(mt.tensor(0.5)), "whole, from 0 to 2",
    ),
    "no such choice": (lambda: d.Categorical(mt.ones(3)).log_prob(mt.tensor(3)), "from 0 to 2"),
    "no coin": (lambda: d.Bernoulli(0.5).log_prob(mt.tensor(0.5)), "0 or 1"),
    "a number": (lambda: d.Normal(0.0, 1.0).log_prob(0.5), "expected a Tensor, got 0.5"),
    "a shape": (lambda: d.Normal(mt.zeros(3), 1.0).log_prob(mt.zeros(2)), "does not fit"),
    "one number for two": (
        lambda: d.MultivariateNormal(mt.zeros(2), mt.eye(2)).log_prob(mt.zeros(3, 1)), "not fit",
    ),
    "no event": (lambda: d.OneHotCategorical(mt.ones(2)).log_prob(mt.tensor(1.0)), "not fit"),
    "outside": (lambda: d.Uniform(0.0, 1.0).log_prob(mt.tensor(2.0)), "from low to high"),
    "below 0": (lambda: d.Exponential(1.0).log_prob(mt.tensor(-1.0)), "at least 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_distribution_refuses(name: str) -> None:
    make_it, words = REFUSED[name]
    with pytest.raises(ValueError, match=f"(?s){words}"):
        make_it()


def test_checks_can_be_left_out() -> None:
    assert float(d.Normal(0.0, -1.0, validate_args=False).scale) == -1
    p = d.Uniform(0.0, 1.0, validate_args=False)
    assert p.log_prob(mt.tensor([0.5, 2.0])).tolist() == [0, -math.inf]
    d.Distribution.set_default_validate_args(False)
    try:
        d.Normal(0.0, -1.0)
    finally:
        d.Distribution.set_default_validate_args(True)
    with pytest.raises(ValueError, match="expected True or False"):
        d.Distribution.set_default_validate_args(None)


def test_what_leaves_open_which_dimension_is_the_rows_is_refused() -> None:
    mtr.begin_batch(0, rows=4, ranks=2)
    with pytest.raises(RuntimeError, match=r"\(4, 4\).*which of the first two"):
        d.Normal(mt.zeros(4), 1.0).sample((4,))
    d.Normal(mt.zeros(4), 1.0).expand((4, 4)).sample()


def test_an_unknown_pair_says_what_to_do() -> None:
    with pytest.raises(NotImplementedError, match=r"Bernoulli and Normal.*register_kl"):
        d.kl_divergence(d.Bernoulli(0.5), d.Normal(0.0, 1.0))
    with pytest.raises(TypeError, match="subclass of Distribution"):
        d.register_kl(int, d.Normal)


@pytest.mark.parametrize("name", CASES)
def test_a_captured_step_has_the_bits_of_the_eager_one(name: str) -> None:
    kind, arguments, _ = CASES[name]
    tensors = {k: v for k, v in arguments.items() if isinstance(v, np.ndarray)}
    others = {k: v for k, v in arguments.items() if k not in tensors}

    def step(*given: Any) -> Any:
        p = getattr(d, kind)(**dict(zip(tensors, given, strict=True)), **others)
        x = p.rsample((2,)) if p.has_rsample else p.sample((2,))
        return p.log_prob(x), p.entropy(), x

    found = []
    for wrap in (lambda step: step, mt.compile):
        mt.manual_seed(3)
        run = wrap(step)
        calls = []
        for i in range(6):
            given = [
                mt.tensor(v * (1 + 0.01 * i) if "probs" not in k else v) for k, v in tensors.items()
            ]
            calls.append(bits(list(run(*given))))
        found.append(calls)
    assert found[0] == found[1]
    assert len({str(x) for x in found[0]}) == 6


def test_a_check_is_repeated_in_every_replay() -> None:
    step = mt.compile(lambda scale: d.Normal(0.0, scale).sample())
    for _ in range(4):
        step(mt.ones(3))
    with pytest.raises(ValueError, match=r"scale .* positive"):
        step(mt.tensor([1.0, -1.0, 1.0]))


@pytest.mark.mpi
def test_draws_belong_to_the_rows_of_the_global_batch(comm: Any) -> None:
    """Also several of each: `sample_shape` comes first in the result, not in the stream."""

    def drawn(comm: Any) -> Any:
        mt.manual_seed(3)
        found = []
        loader = DataLoader(ArrayDataset(some(23, 3)), 9, comm=comm)
        for (x,) in loader:
            p = d.Normal(x, 1.0)
            parts = [
                p.sample(),
                p.sample((14,)).permute(1, 0, 2),
                p.rsample((12, 3)).permute(2, 0, 1, 3),
            ]
            parts += [d.Categorical(logits=x).sample(), d.Categorical(logits=x).sample((15,)).t()]
            parts += [d.Bernoulli(logits=x).sample((12,)).transpose(0, 1)]
            parts += [d.Normal(mt.zeros(11), 1.0).sample((len(x),))]
            everyone = comm.all_gather_object([part.numpy() for part in parts])
            found += [np.concatenate(one) for one in zip(*everyone, strict=True)]
        return found

    from microtrain.distributed.single import SingleCommunicator

    for a, b in zip(drawn(comm), drawn(SingleCommunicator()), strict=True):
        np.testing.assert_array_equal(a, b)


CONSTRAINTS: dict[str, Any] = {
    "positive": (lambda c: c.positive, [1.0, -1.0, 0.0], [True, False, False]),
    "real": (lambda c: c.real, [1.0, math.nan], [True, False]),
    "interval": (lambda c: c.interval(0, 2), [0.0, 2.0, 3.0], [True, True, False]),
    "integers": (lambda c: c.integer_interval(0, 2), [0.0, 1.5, 3.0], [True, False, False]),
    "boolean": (lambda c: c.boolean, [0.0, 1.0, 0.5], [True, True, False]),
    "at least": (lambda c: c.greater_than_eq(1), [1.0, 0.0], [True, False]),
    "a number": (lambda c: c.positive, 1.0, True),
    "real_vector": (lambda c: c.real_vector, [[1.0, 2.0], [1.0, math.nan]], [True, False]),
    "simplex": (lambda c: c.simplex, [[0.5, 0.5], [0.5, 0.6], [-1.0, 2.0]], [True, False, False]),
    "one_hot": (lambda c: c.one_hot, [[[0.0, 1.0]], [[1.0, 1.0]]], [[True], [False]]),
    "lower_cholesky": (
        lambda c: c.lower_cholesky,
        [[[1.0, 0.0], [2.0, 1.0]], [[1.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, -1.0]]],
        [True, False, False],
    ),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_constraint_is_checked_event_by_event(name: str) -> None:
    of, values, expected = CONSTRAINTS[name]
    for requires_grad in (False, True):
        x = mt.tensor(values, requires_grad=requires_grad)
        found = of(d.constraints).check(x)
        assert type(found) is mt.Tensor and found.dtype == mt.bool and found.tolist() == expected
    assert x[found].shape == (np.sum(expected), *x.shape[found.ndim :])


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    constraints = torch.distributions.constraints
    of, values, expected = CONSTRAINTS[name]
    assert of(constraints).check(torch.tensor(values)).tolist() == expected
