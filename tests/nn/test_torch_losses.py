"""Losses against PyTorch's: options, shapes, dtypes, special values, refusals, modules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, positive, refused_alike  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of NaN and infinity
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torch's, of kl_div's mean
]
NAN = float("nan")
REDUCTIONS = ("mean", "sum", "none")
SHAPES = [(5, 3), (), (0, 3), (2, 3, 2)]


def probability(*shape: int) -> Any:
    return np.asarray(positive(*shape) / 2.5)


def sign(*shape: int) -> Any:
    return np.asarray(np.where(normal(*shape) > 0, 1.0, -1.0))


# Elementwise: (function, options, makers of the Tensors, the second gradient is torch's too)
ELEMENTWISE: list[tuple[str, dict[str, Any], tuple[Callable[..., Any], ...]]] = [
    ("mse_loss", {}, (normal, normal)),
    ("l1_loss", {}, (normal, normal)),
    ("smooth_l1_loss", {}, (normal, normal)),
    ("smooth_l1_loss", {"beta": 0.3}, (normal, normal)),
    ("smooth_l1_loss", {"beta": 0}, (normal, normal)),
    ("huber_loss", {}, (normal, normal)),
    ("huber_loss", {"delta": 0.3}, (normal, normal)),
    ("huber_loss", {"delta": 100}, (normal, normal)),
    ("binary_cross_entropy", {}, (probability, probability)),
    ("binary_cross_entropy_with_logits", {}, (normal, probability)),
    ("soft_margin_loss", {}, (normal, sign)),
    ("hinge_embedding_loss", {}, (normal, sign)),
    ("hinge_embedding_loss", {"margin": 0.2}, (normal, sign)),
    ("kl_div", {}, (normal, positive)),
    ("kl_div", {"log_target": True}, (normal, normal)),
    ("poisson_nll_loss", {}, (normal, positive)),
    ("poisson_nll_loss", {"log_input": False, "eps": 0.1}, (positive, positive)),
    ("poisson_nll_loss", {"full": True}, (normal, positive)),
    ("gaussian_nll_loss", {}, (normal, normal, positive)),
    ("gaussian_nll_loss", {"full": True, "eps": 1.1}, (normal, normal, positive)),
    ("margin_ranking_loss", {}, (normal, normal, sign)),
    ("margin_ranking_loss", {"margin": 0.5}, (normal, normal, sign)),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "options", "makers"), ELEMENTWISE)
def test_elementwise_losses(
    name: str, options: Any, makers: Any, reduction: str, shape: Any
) -> None:
    def loss(m: Any, *tensors: Any) -> Any:
        tensors = tuple(t.detach() if d else t for t, d in zip(tensors, constant, strict=True))
        return getattr(m.nn.functional, name)(*tensors, reduction=reduction, **options)

    constant = [make is sign for make in makers]  # torch does not differentiate all of them
    compare(loss, *(make(*shape) for make in makers), second=0 not in shape)


LABELS = np.array([[2, 0, -1, 1], [-1, 0, 0, 0], [3, 2, 1, 0], [1, 1, -1, -1], [0, -1, 2, -1]])
MARGINS: dict[str, Callable[..., Any]] = {
    "multi": lambda F, x, r: F.multi_margin_loss(x, labels_of(x)[:, 2] % 4, reduction=r),
    "multi squared": lambda F, x, r: F.multi_margin_loss(
        x, labels_of(x)[:, 3] % 4, 2, 0.3, x[0].detach().abs(), reduction=r
    ),
    "multi one": lambda F, x, r: F.multi_margin_loss(x[0], labels_of(x)[0, 3], reduction=r),
    "labels": lambda F, x, r: F.multilabel_margin_loss(x, labels_of(x), reduction=r),
    "labels one": lambda F, x, r: F.multilabel_margin_loss(x[0], labels_of(x)[0], reduction=r),
    "soft": lambda F, x, r: F.multilabel_soft_margin_loss(x, labels_of(x) % 2 + x * 0, reduction=r),
    "soft weights": lambda F, x, r: F.multilabel_soft_margin_loss(
        x, x.detach().sigmoid(), x[0].detach().exp(), reduction=r
    ),
    "distance": lambda F, x, r: F.triplet_margin_with_distance_loss(
        x, x * 2, x.sin(), margin=0.4, swap=True, reduction=r
    ),
    "own distance": lambda F, x, r: F.triplet_margin_with_distance_loss(
        x, x * 2, x.sin(), distance_function=lambda a, b: (a - b).abs().sum(-1), reduction=r
    ),
}


def labels_of(x: Any) -> Any:
    return (mt if type(x) is mt.Tensor else torch).tensor(LABELS)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", MARGINS)
def test_margins(name: str, reduction: str) -> None:
    second = not name.startswith(("multi", "labels"))  # PyTorch has none of these
    compare(lambda m, x: MARGINS[name](m.nn.functional, x, reduction), normal(5, 4), second=second)


REFUSED_MARGINS: dict[str, Callable[..., Any]] = {
    "p": lambda m: m.nn.functional.multi_margin_loss(m.ones(2, 3), m.tensor([0, 1]), p=3),
    "class": lambda m: m.nn.functional.multi_margin_loss(m.ones(2, 3), m.tensor([0, 3])),
    "shape": lambda m: m.nn.functional.multi_margin_loss(m.ones(2, 3), m.tensor([0, 1, 2])),
    "label": lambda m: m.nn.functional.multilabel_margin_loss(m.ones(3), m.tensor([0, 3, -1])),
    "labels": lambda m: m.nn.functional.multilabel_margin_loss(m.ones(3), m.tensor([0, 3])),
    "margin": lambda m: m.nn.functional.triplet_margin_with_distance_loss(
        *(m.ones(2),) * 3, margin=0.0
    ),
}


@pytest.mark.parametrize("name", REFUSED_MARGINS)
def test_refused_margins(name: str) -> None:
    refused_alike(REFUSED_MARGINS[name])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss"])
def test_weights_of_elements(name: str, reduction: str) -> None:
    def loss(m: Any, x: Any, y: Any, w: Any) -> Any:
        return getattr(m.nn.functional, name)(x, y, reduction=reduction, weight=w)

    compare(loss, normal(5, 3), normal(3, 5).T, positive(5, 3))
    compare(loss, normal(0, 3), normal(0, 3), positive(0, 3), second=False)


@pytest.mark.parametrize("weights", [(), (3,), (5, 1), (5, 3)], ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_of_binary_cross_entropy(reduction: str, weights: Any) -> None:
    def plain(m: Any, x: Any, y: Any, w: Any) -> Any:
        return m.nn.functional.binary_cross_entropy(x, y, w.detach(), reduction=reduction)

    compare(plain, probability(5, 3), probability(5, 3), positive(*weights))

    def logits(m: Any, x: Any, y: Any, w: Any, p: Any) -> Any:
        f = m.nn.functional.binary_cross_entropy_with_logits
        w, p = (t if t is None else t.detach() for t in (w, p))
        return f(x, y, w, reduction=reduction, pos_weight=p)

    compare(logits, normal(5, 3), probability(5, 3), positive(*weights), positive(3))
    compare(logits, normal(5, 3), probability(5, 3), None, positive(*weights))
    compare(logits, normal(5, 3), probability(5, 3), positive(*weights), None)


def test_binary_cross_entropy_at_its_ends() -> None:
    def loss(m: Any, x: Any, y: Any) -> Any:
        return m.nn.functional.binary_cross_entropy(x, y.detach(), reduction="none")

    grid = np.array(list(itertools.product([0.0, 1.0, 1e-30, 0.5], [0.0, 1.0, 0.25]))).T
    compare(loss, *grid, second=False)
    small = grid.astype(np.float32)
    assert_same(loss(mt, *map(mt.tensor, small)), loss(torch, *map(torch.tensor, small)), 1e-6)
    ends = np.array([-1e4, 1e4, np.inf, -np.inf, np.nan, 0.0, -0.0, 710, -710])

    def logits(m: Any, x: Any, y: Any) -> Any:
        f = m.nn.functional.binary_cross_entropy_with_logits
        return f(x, y.detach(), reduction="none")

    for target in (0.0, 1.0, 0.25):
        compare(logits, ends, np.full_like(ends, target), second=False)
        compare(logits, ends.astype(np.float32), np.full(9, target, np.float32), second=False)


@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
def test_kl_div_of_targets_that_are_0(reduction: str) -> None:
    target = np.array([[0.0, 1.0], [0.25, 0.75]])
    compare(
        lambda m, x, y: m.nn.functional.kl_div(x, y.detach(), reduction=reduction),
        normal(2, 2),
        target,
    )
    compare(
        lambda m, x, y: m.nn.functional.kl_div(x, y, reduction=reduction, log_target=True),
        normal(4, 2),
        normal(4, 2),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_variances_of_other_shapes(reduction: str) -> None:
    def loss(m: Any, x: Any, y: Any, v: Any) -> Any:
        return m.nn.functional.gaussian_nll_loss(x, y, v, reduction=reduction)

    for variance in (positive(5), positive(5, 1), positive(1, 3), 0.5):
        compare(loss, normal(5, 3), normal(5, 3), variance)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_embeddings(reduction: str) -> None:
    def cosine(m: Any, x: Any, y: Any, t: Any) -> Any:
        return m.nn.functional.cosine_embedding_loss(x, y, t.detach(), 0.1, reduction=reduction)

    compare(cosine, normal(6, 3), normal(6, 3), sign(6))
    compare(cosine, normal(3), normal(3), sign())
    compare(cosine, normal(0, 3), normal(0, 3), sign(0), second=False)
    for options in ({}, {"p": 1.5, "margin": 0.3}, {"swap": True}, {"eps": 0.1, "p": 1}):

        def triplet(m: Any, a: Any, b: Any, c: Any, options: Any = options) -> Any:
            return m.nn.functional.triplet_margin_loss(a, b, c, reduction=reduction, **options)

        compare(triplet, normal(6, 3), normal(6, 3), normal(6, 3))
        compare(triplet, normal(3), normal(3), normal(3))


# Classes ------------------------------------------------------------------------------------------

CLASS_OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight": True},
    {"ignore_index": 1},
    {"ignore_index": -1},
    {"weight": True, "ignore_index": 2},
    {"label_smoothing": 0.2},
    {"label_smoothing": 1.0, "weight": True},
    {"label_smoothing": 0.2, "weight": True, "ignore_index": -100},
    {"label_smoothing": 0.2, "ignore_index": 1},
]
CLASS_SHAPES = [(5, 3), (3,), (0, 3), (2, 3, 4), (2, 3, 2, 2), (2, 3, 0)]


def options_for(m: Any, options: dict[str, Any]) -> dict[str, Any]:
    if "weight" not in options:
        return options
    return {**options, "weight": m.tensor([0.5, 2.0, 1.5], dtype=m.float64)}


@pytest.mark.parametrize("shape", CLASS_SHAPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", CLASS_OPTIONS, ids=str)
def test_class_indices(options: Any, reduction: str, shape: Any) -> None:
    rest = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = np.asarray(np.random.default_rng(3).integers(0, 3, rest))
    if options.get("ignore_index", 0) < 0 and target.ndim and target.size:
        target.flat[0] = options["ignore_index"]

    def entropy(m: Any, x: Any, y: Any) -> Any:
        more = options_for(m, options)
        return m.nn.functional.cross_entropy(x, y, reduction=reduction, **more)

    counts = bool(np.any(target != options.get("ignore_index", -100)))
    second = 0 not in shape and counts  # torch's second gradients of nothing are NaN
    compare(entropy, normal(*shape) * 3, target, second=second)
    if "label_smoothing" in options:
        return

    def likelihood(m: Any, x: Any, y: Any) -> Any:
        more = options_for(m, options)
        return m.nn.functional.nll_loss(x, y, reduction=reduction, **more)

    compare(likelihood, normal(*shape), target, second=second)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_all_ignored(name: str, reduction: str) -> None:
    target = np.array([-100, -100])

    def loss(m: Any, x: Any, y: Any) -> Any:
        return getattr(m.nn.functional, name)(x, y, reduction=reduction)

    compare(loss, normal(2, 3), target, second=False)


@pytest.mark.parametrize("shape", CLASS_SHAPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "options",
    [{}, {"weight": True}, {"label_smoothing": 0.3}, {"weight": True, "label_smoothing": 1}],
    ids=str,
)
def test_class_probabilities(options: Any, reduction: str, shape: Any) -> None:
    def loss(m: Any, x: Any, y: Any) -> Any:
        more = options_for(m, options)
        return m.nn.functional.cross_entropy(x, y, reduction=reduction, **more)

    compare(loss, normal(*shape), probability(*shape), second=0 not in shape)


def test_arguments_by_position() -> None:
    x, y = normal(4, 3), np.array([0, 2, 1, 1])

    def weights(m: Any) -> Any:
        return m.tensor([0.5, 2.0, 1.5], dtype=m.float64)

    compare(lambda m, x: m.nn.functional.cross_entropy(
        x, m.tensor(y), weights(m), None, 1, None, "sum", 0.25), x)  # fmt: skip
    compare(lambda m, x: m.nn.functional.nll_loss(
        x, m.tensor(y), weights(m), None, 1, None, "sum"), x)  # fmt: skip
    compare(lambda m, x: m.nn.functional.mse_loss(x, 0 * x, None, None, "sum"), x)
    compare(lambda m, x: m.nn.functional.smooth_l1_loss(x, 0 * x, None, None, "sum", 0.5), x)
    compare(lambda m, x: m.nn.functional.huber_loss(x, 0 * x, "sum", 0.5), x)


def test_other_dtypes() -> None:
    def check(function: Callable[..., Any]) -> None:
        assert_same(function(mt), function(torch), rtol=1e-6)

    check(lambda m: m.nn.functional.l1_loss(m.tensor([1, 2]), m.tensor([3, 5]), reduction="sum"))
    check(lambda m: m.nn.functional.mse_loss(m.zeros(2), m.tensor([3, 5])))
    check(lambda m: m.nn.functional.l1_loss(m.zeros(2), m.zeros(2, dtype=m.float64) + 1))
    check(lambda m: m.nn.functional.huber_loss(m.zeros(2), m.tensor([3, 5]), reduction="none"))
    check(lambda m: m.nn.functional.cross_entropy(m.zeros(2, 3), m.zeros(2, dtype=m.uint8)))
    check(lambda m: m.nn.functional.cross_entropy(m.zeros(3), m.tensor([1]), reduction="none"))
    check(lambda m: m.nn.functional.cross_entropy(
        m.zeros(2, 3), m.tensor([1, 2], dtype=m.uint8), ignore_index=1))  # fmt: skip
    check(lambda m: m.nn.functional.cosine_embedding_loss(
        m.ones(2, 3), m.ones(2, 3), m.tensor([1, -1])))  # fmt: skip
    for shape in ((2, 3), (2, 3, 2)):
        x, y = both(normal(*shape).astype(np.float32))
        target = np.zeros((2, *shape[2:]), np.int64)
        for m, t in ((mt, x), (torch, y)):
            m.nn.functional.cross_entropy(t, m.tensor(target), label_smoothing=0.1).backward()
        assert_same(x.grad, y.grad, rtol=1e-5)


# Refusals -----------------------------------------------------------------------------------------

REFUSED: list[Callable[[Any, Any], Any]] = [
    lambda m, f: f.l1_loss(m.tensor([1, 2]), m.tensor([1, 3])),
    lambda m, f: f.l1_loss(m.ones(2, 3), m.ones(2, 3), weight=m.ones(3)),
    lambda m, f: f.mse_loss(m.ones(2, 3), m.ones(2, 3), weight=m.ones(3)),
    lambda m, f: f.huber_loss(m.zeros(2), m.zeros(2), delta=0),
    lambda m, f: f.huber_loss(m.tensor([1, 2]), m.tensor([1, 3])),
    lambda m, f: f.huber_loss(m.zeros(2), m.zeros(2), weight=m.ones(1)),
    lambda m, f: f.smooth_l1_loss(m.zeros(2), m.zeros(2), beta=-1),
    lambda m, f: f.smooth_l1_loss(m.zeros(2), m.zeros(2), reduction="max"),
    lambda m, f: f.binary_cross_entropy(m.zeros(2), m.zeros(3)),
    lambda m, f: f.binary_cross_entropy(m.zeros(2) + 2, m.zeros(2)),
    lambda m, f: f.binary_cross_entropy(m.zeros(2) * NAN, m.zeros(2)),
    lambda m, f: f.binary_cross_entropy(m.zeros(2), m.zeros(2, dtype=m.int64)),
    lambda m, f: f.binary_cross_entropy(m.zeros(2), m.zeros(2, dtype=m.float64)),
    lambda m, f: f.binary_cross_entropy(m.zeros(2), m.zeros(2), m.zeros(3)),
    lambda m, f: f.binary_cross_entropy(m.zeros(2), m.zeros(2), m.zeros(3, 2)),
    lambda m, f: f.binary_cross_entropy_with_logits(m.zeros(2), m.zeros(3)),
    lambda m, f: f.binary_cross_entropy_with_logits(m.zeros(2), m.zeros(2), m.zeros(3, 2)),
    lambda m, f: f.binary_cross_entropy_with_logits(m.zeros(2), m.zeros(2, dtype=m.int64)),
    lambda m, f: f.binary_cross_entropy_with_logits(
        m.zeros(2), m.zeros(2), pos_weight=m.zeros(3, 2)
    ),
    lambda m, f: f.kl_div(m.zeros(2), m.zeros(2), reduction="median"),
    lambda m, f: f.kl_div(m.zeros(2), m.tensor([1, 0])),
    lambda m, f: f.gaussian_nll_loss(m.zeros(2), m.zeros(2), -1.0),
    lambda m, f: f.gaussian_nll_loss(m.zeros(2), m.zeros(2), m.zeros(3)),
    lambda m, f: f.gaussian_nll_loss(m.zeros(2), m.zeros(2), m.zeros(2) - 1),
    lambda m, f: f.margin_ranking_loss(m.zeros(2, 3), m.zeros(2, 3), m.ones(2)),
    lambda m, f: f.cosine_embedding_loss(m.zeros(2, 3), m.zeros(2, 3), m.ones(2, 1)),
    lambda m, f: f.cosine_embedding_loss(m.ones(2, 3), m.ones(2, 3), m.ones(())),
    lambda m, f: f.triplet_margin_loss(m.ones(2, 3), m.ones(2, 3), m.ones(3)),
    lambda m, f: f.triplet_margin_loss(m.ones(2, 3), m.ones(2, 3), m.ones(2, 3), margin=0),
    lambda m, f: f.hinge_embedding_loss(m.ones(2), m.ones(3)),
    lambda m, f: f.nll_loss(m.zeros(2, 3), m.zeros(2)),
    lambda m, f: f.nll_loss(m.zeros(2, 3), m.tensor([1, 3])),
    lambda m, f: f.nll_loss(m.zeros(2, 3), m.tensor([1, -1])),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.tensor([1, -100]), ignore_index=1),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.tensor([[1], [2]])),
    lambda m, f: f.cross_entropy(m.zeros(3), m.tensor([1, 2])),
    lambda m, f: f.cross_entropy(m.zeros(2, 3, 4), m.zeros(2, 5, dtype=m.int64)),
    lambda m, f: f.cross_entropy(m.zeros(2, 3, 4), m.zeros(3, 4, dtype=m.int64)),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.tensor([1, 1]), weight=m.ones(2)),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.tensor([1, 1]), m.ones(3, dtype=m.float64)),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.tensor([1, 1]), weight=[1.0, 2.0, 3.0]),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.zeros(2, 3), weight=m.ones(2)),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.zeros(2, 3), ignore_index=1),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.tensor([1, 1]), label_smoothing=1.5),
    lambda m, f: f.cross_entropy(m.zeros(2, 3), m.zeros(2, dtype=m.bool)),
    lambda m, f: f.cross_entropy(m.zeros(2, 0), m.zeros(2, dtype=m.int64)),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_torch_refuses_is_refused(number: int) -> None:
    refused_alike(lambda m: REFUSED[number](m, m.nn.functional))


# Modules ------------------------------------------------------------------------------------------

MODULES: list[tuple[Callable[[Any], Any], tuple[Callable[..., Any], ...]]] = [
    (lambda m: m.nn.MSELoss(), (normal, normal)),
    (lambda m: m.nn.L1Loss(reduction="sum"), (normal, normal)),
    (lambda m: m.nn.SmoothL1Loss(None, None, "none", 0.5), (normal, normal)),
    (lambda m: m.nn.HuberLoss("sum", 0.5), (normal, normal)),
    (lambda m: m.nn.GaussianNLLLoss(full=True, eps=0.8), (normal, normal, positive)),
    (lambda m: m.nn.PoissonNLLLoss(False, True, None, 0.1), (positive, positive)),
    (lambda m: m.nn.BCELoss(m.tensor([0.5, 2, 3], dtype=m.float64)), (probability,) * 2),
    (lambda m: m.nn.BCEWithLogitsLoss(), (normal, probability)),
    (
        lambda m: m.nn.BCEWithLogitsLoss(
            m.tensor(2.0), None, None, "sum", m.tensor([0.5, 2, 3], dtype=m.float64)
        ),
        (normal, probability),
    ),
    (lambda m: m.nn.KLDivLoss(reduction="batchmean"), (normal, positive)),
    (lambda m: m.nn.KLDivLoss(None, None, "sum", True), (normal, normal)),
    (lambda m: m.nn.SoftMarginLoss(), (normal, lambda *s: sign(*s).astype(int))),
    (lambda m: m.nn.HingeEmbeddingLoss(), (normal, sign)),
    (lambda m: m.nn.MarginRankingLoss(0.5), (normal, normal, sign)),
    (lambda m: m.nn.TripletMarginLoss(0.3, 1.5, 0.01, True), (normal, normal, normal)),
    (
        lambda m: m.nn.CosineEmbeddingLoss(0.2),
        (normal, normal, lambda *shape: sign(*shape[:1])),
    ),
    (
        lambda m: m.nn.CrossEntropyLoss(
            m.tensor([0.5, 2, 3], dtype=m.float64), None, 1, None, "sum", 0.1
        ),
        (normal, lambda *shape: np.arange(shape[0]) % 3),
    ),
    (
        lambda m: m.nn.NLLLoss(m.tensor([0.5, 2, 3], dtype=m.float64), None, 1),
        (normal, lambda *shape: np.arange(shape[0]) % 3),
    ),
]


@pytest.mark.parametrize("number", range(len(MODULES)))
def test_modules(number: int) -> None:
    make, makers = MODULES[number]
    ours, theirs = make(mt), make(torch)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    compare(lambda m, *x: make(m)(*x), *(maker(5, 3) for maker in makers), second=False)


# What is refused here on purpose ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss"]
)
def test_losses_do_not_broadcast(name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^{name}\(\): .*one shape; reshape the target"):
        getattr(mt.nn.functional, name)(mt.zeros(3, 1), mt.zeros(3))


@pytest.mark.parametrize("old", [{"size_average": True}, {"reduce": False}])
@pytest.mark.parametrize("name", ["mse_loss", "cross_entropy", "nll_loss", "kl_div"])
def test_the_old_spelling_of_reduction_is_refused(name: str, old: Any) -> None:
    target = mt.zeros(2, 3) if name in ("mse_loss", "kl_div") else mt.tensor([0, 1])
    with pytest.raises(TypeError, match="write reduction="):
        getattr(mt.nn.functional, name)(mt.zeros(2, 3), target, **old)
    with pytest.raises(TypeError, match="write reduction="):
        mt.nn.MSELoss("sum")
