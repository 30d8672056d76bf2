"""mt.sklearn: scikit-learn's own checks of an estimator, and what they do not ask."""

from __future__ import annotations

import functools
import pickle
import sys

import numpy as np
import pytest

import microtrain as mt
from microtrain.errors import ConfigError, DivergedError

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone  # noqa: E402
from sklearn.datasets import load_digits, load_iris  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

ESTIMATORS = [
    mt.sklearn.Classifier(),
    mt.sklearn.Regressor(),
    mt.sklearn.Classifier((8,), max_iter=40, lr=0.01, optimizer="rmsprop", early_stopping=True),
]


@pytest.mark.daily("check_regress", "early_stopping")
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    ESTIMATORS,
    # It draws the rows to hold back, others among repeated ones.
    expected_failed_checks=lambda estimator: (
        {"check_sample_weight_equivalence_on_dense_data": "holds rows back"}
        if estimator.early_stopping
        else {}
    ),
)
def test_the_estimator_passes_the_checks_of_scikit_learn(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("flat", [True, False], ids=["one", "two"])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_regressor_learns_targets_of_any_unit(flat, early_stopping) -> None:
    x = np.random.default_rng(0).normal(size=(300, 3))
    y = 2e4 + x @ np.array([[8e3, 0.1], [8e3, 0.2], [8e3, 0.3]])
    y = y[:, 0] if flat else y
    how = {"lr": 0.01, "max_iter": 30, "random_state": 0, "early_stopping": early_stopping}
    net = mt.sklearn.Regressor((16,), **how)
    assert net.fit(x[:200], y[:200]).score(x[200:], y[200:]) > 0.95
    assert net.loss_curve_[0] < 3  # in deviations
    if not early_stopping:
        np.testing.assert_allclose(net.target_mean_, np.atleast_1d(y[:200].mean(axis=0)))
        np.testing.assert_allclose(net.target_scale_, np.atleast_1d(y[:200].std(axis=0)))
    scores = net.module_(mt.from_numpy(x[:5])).detach().numpy()
    wanted = scores * net.target_scale_ + net.target_mean_
    np.testing.assert_allclose(net.predict(x[:5]).reshape(5, -1), wanted, rtol=1e-12)
    assert net.predict(x[:5]).shape == y[:5].shape


def test_a_regressor_takes_targets_as_they_are_where_its_loss_wants_that() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0)
    with pytest.raises(ValueError, match="standardize_target: PoissonNLLLoss"):
        mt.sklearn.Regressor(loss=mt.nn.PoissonNLLLoss()).fit(x, y)
    with pytest.raises(ValueError, match="standardize_target: poisson_nll_loss"):
        mt.sklearn.Regressor(loss=mt.nn.functional.poisson_nll_loss).fit(x, y)
    net = mt.sklearn.Regressor(loss=mt.nn.PoissonNLLLoss(), standardize_target=False, max_iter=2)
    assert net.fit(x, y).target_scale_.tolist() == [1.0]


@pytest.fixture
def iris() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(x), np.array(["setosa", "versicolor", "virginica"])[y]


@pytest.mark.slow
def test_a_pipeline_and_a_grid_search_find_the_digits() -> None:
    x, y = load_digits(return_X_y=True)
    net = make_pipeline(
        StandardScaler(), mt.sklearn.Classifier((32,), max_iter=10, lr=0.01, random_state=0)
    )
    search = GridSearchCV(net, {"classifier__lr": [0.01, 1e-5]}, cv=3).fit(x[:600], y[:600])
    assert search.best_params_ == {"classifier__lr": 0.01}
    assert search.score(x[600:], y[600:]) > 0.85
    assert cross_val_score(net, x[:300], y[:300], cv=3).min() > 0.8


def test_the_random_state_decides_everything_and_the_callers_stream_goes_on(iris) -> None:
    x, y = iris
    net = mt.sklearn.Classifier((8,), max_iter=5, random_state=3, early_stopping=True)
    mt.manual_seed(7)
    first, expected = mt.rand(2).tolist(), mt.rand(2).tolist()
    one = net.fit(x, y).predict_proba(x)
    mt.manual_seed(7)
    assert mt.rand(2).tolist() == first
    other = clone(net).fit(x, y).predict_proba(x)
    assert mt.rand(2).tolist() == expected
    assert np.array_equal(one, other)
    changed = clone(net).set_params(random_state=4).fit(x, y).predict_proba(x)
    assert not np.array_equal(one, changed)
    generator = np.random.RandomState(0)
    drawn = [clone(net).set_params(random_state=generator).fit(x, y) for _ in range(2)]
    assert not np.array_equal(*(each.predict_proba(x) for each in drawn))


def test_the_step_is_that_of_a_loop_of_ones_own(iris) -> None:
    """The same weights, bit for bit, as layers, loss, optimizer and loader written out."""
    x, y = iris
    net = mt.sklearn.Classifier((8,), max_iter=4, lr=0.01, random_state=0).fit(x, y)
    seed = np.random.RandomState(0).randint(2**31 - 1)
    before = mt.get_default_dtype()
    mt.set_default_dtype(mt.float64)
    try:
        mt.manual_seed(int(seed))
        model = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 3))
    finally:
        mt.set_default_dtype(before)
    optimizer = mt.optim.Adam(model.parameters(), lr=0.01)
    data = mt.data.ArrayDataset(x, np.unique(y, return_inverse=True)[1])
    for _epoch, loader in enumerate([mt.data.DataLoader(data, 32, seed=int(seed))] * 4):
        for xb, yb in loader:
            optimizer.zero_grad()
            mt.nn.functional.cross_entropy(model(xb), yb).backward()
            optimizer.step()
    expected = model.state_dict()
    for name, value in net.module_.state_dict().items():
        assert mt.equal(value, expected[name])


@pytest.mark.parametrize("classes", [2, 3])
def test_scorers_rank_rows_whose_probabilities_are_all_one(classes: int) -> None:
    scorer = sklearn.metrics.get_scorer("roc_auc" if classes == 2 else "average_precision")
    x = np.linspace(1, 2, 60)[:, None]
    y = np.arange(60) * classes // 60
    net = mt.sklearn.Classifier(module=mt.nn.Linear, max_iter=1, random_state=0).fit(x, y)
    weight = np.array([[0.0], [400.0], [500.0]][:classes])
    with mt.no_grad():
        net.module_.weight.copy_(mt.tensor(weight, dtype=mt.float64))
        net.module_.bias.zero_()
    chances = net.predict_proba(x)
    assert (chances[:, -1] == 1).all()
    assert net.decision_function(x).shape == ((60,) if classes == 2 else (60, 3))
    assert (net.predict(x) == classes - 1).all()
    if classes == 2:
        assert scorer(net, x, y) == 1.0
    else:
        codes = np.eye(3)[y]
        expected = [sklearn.metrics.average_precision_score(codes[:, k], s * x[:, 0])
                    for k, s in enumerate((-500, -100, 100))]  # fmt: skip
        assert scorer(net, x, y) == pytest.approx(np.mean(expected), rel=1e-12)


def test_early_stopping_keeps_the_best_weights(iris) -> None:
    x, y = iris
    net = mt.sklearn.Classifier(
        (64,), max_iter=300, lr=0.05, early_stopping=True, n_iter_no_change=3, random_state=0
    ).fit(x, y)
    assert net.n_iter_ == len(net.loss_curve_) == len(net.validation_curve_) < 300
    assert min(net.validation_curve_) < net.validation_curve_[-1]
    assert net.score(x, y) > 0.9


def test_a_module_an_optimizer_and_a_loss_of_ones_own(iris) -> None:
    x, y = iris

    def module(inputs: int, outputs: int) -> mt.nn.Module:
        layers = mt.nn.Linear(inputs, 6), mt.nn.BatchNorm1d(6), mt.nn.Dropout(0.1), mt.nn.GELU()
        return mt.nn.Sequential(*layers, mt.nn.Linear(6, outputs))

    net = mt.sklearn.Classifier(
        module=module, optimizer=functools.partial(mt.optim.SGD, momentum=0.9), lr=0.05,
        loss=mt.nn.CrossEntropyLoss(label_smoothing=0.05), max_iter=20, random_state=0,
    ).fit(x, y)  # fmt: skip
    assert net.score(x, y) > 0.9
    assert not net.module_.training
    assert np.array_equal(net.predict(x), net.predict(x))


def test_a_regression_has_the_shape_of_its_targets() -> None:
    x = np.random.default_rng(0).standard_normal((80, 3))
    several = np.stack([x[:, 0], x.sum(1)], 1)
    net = mt.sklearn.Regressor((16,), lr=0.01, max_iter=60, random_state=0)
    for y in (several, several[:, :1], several[:, 0]):
        found = net.fit(x, y).predict(x)
        assert found.shape == y.shape
        assert net.score(x, y) > 0.9
    assert net.fit(x.astype(np.float32), several[:, 0]).predict(x).dtype == np.float32
    again = pickle.loads(pickle.dumps(net))
    assert np.array_equal(again.predict(x), net.predict(x))


WRONG = [
    ({"optimizer": "adma"}, ValueError, "optimizer: expected one of adam, adamw, sgd, rmsprop"),
    ({"activation": "rely"}, ValueError, "activation: expected one of relu, tanh"),
    ({"max_iter": 0}, ValueError, "max_iter == 0, must be >= 1"),
    ({"batch_size": 2.5}, TypeError, "batch_size must be an instance of"),
    ({"hidden": (2.5,)}, TypeError, "hidden must be an instance of"),
    ({"hidden": 0}, ValueError, "hidden == 0, must be >= 1"),
    ({"hidden": "ab"}, TypeError, "hidden must be an instance of"),
    ({"validation_fraction": 1.0}, ValueError, "validation_fraction == 1.0, must be < 1"),
    ({"module": lambda i, o: None}, TypeError, "module: expected to make a Module"),
    ({"lr": 1e30, "optimizer": "sgd", "max_iter": 9}, DivergedError, "loss is .* lower lr"),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("parameters, error, message", WRONG)
def test_wrong_parameters_are_named_at_the_fit(iris, parameters, error, message) -> None:
    net = mt.sklearn.Classifier(**parameters)
    with pytest.raises(error, match=message):
        net.fit(*iris)


def test_each_pass_is_printed_if_asked(iris, capsys) -> None:
    mt.sklearn.Classifier((4,), max_iter=2, verbose=True, random_state=0).fit(*iris)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1"], ["epoch", "2"]]


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "microtrain.sklearn")
    monkeypatch.delattr(mt, "sklearn")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    assert not hasattr(mt, "sklearn")
    with pytest.raises(AttributeError, match=r"needs scikit-learn 1.6 or later.*\.\[data\]"):
        _ = mt.sklearn


@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
def test_a_row_of_weight_three_is_that_row_three_times(kind, iris) -> None:
    x, labels = iris
    y = labels if kind == "Classifier" else x @ [[1.0, 0], [2, 1], [0, -1], [1, 1]]
    times = np.random.default_rng(0).integers(0, 4, len(x))
    net = getattr(mt.sklearn, kind)((8,), max_iter=30, batch_size=1000, random_state=0)
    weighted = clone(net).fit(x, y, sample_weight=times)
    repeated = clone(net).fit(x.repeat(times, axis=0), y.repeat(times, axis=0))
    np.testing.assert_allclose(weighted.loss_curve_, repeated.loss_curve_, rtol=1e-9)
    score = repeated.score(x.repeat(times, axis=0), y.repeat(times, axis=0))
    assert weighted.score(x, y, sample_weight=times) == pytest.approx(score)
    plain, alike = clone(net).fit(x, y), clone(net).fit(x, y, np.full(len(x), 0.5))
    np.testing.assert_allclose(alike.loss_curve_, plain.loss_curve_, rtol=1e-9)


def test_weights_that_weigh_nothing_are_refused(iris) -> None:
    x, y = iris
    with pytest.raises(ValueError, match=r"sample_weight|non-zero"):
        mt.sklearn.Classifier().fit(x, y, np.zeros(len(x)))
    own = mt.sklearn.Classifier(loss=lambda scores, codes: scores.sum())
    with pytest.raises(ConfigError, match="cannot weigh rows"):
        own.fit(x, y, np.ones(len(x)))
