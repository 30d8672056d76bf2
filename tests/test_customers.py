"""A table as people have it, from the raw file to predictions for raw new rows."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from customers import customers, write

import microtrain as mt
from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.train.console import Output
from microtrain.train.run_data import load_data
from microtrain.train.trainer import Trainer

pytest.importorskip("sklearn")

NUMBERS, CATEGORIES = ["signed_up", "age", "income", "visits"], ["plan", "region"]


@pytest.fixture(scope="module")
def raw():
    """5,000 rows to learn from, and 500 new ones without the target."""
    rows = customers(5500)
    new = [{key: cell for key, cell in row.items() if key != "churned"} for row in rows[5000:]]
    return rows[:5000], new


@pytest.fixture
def files(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "customers.csv", raw[0]), write(tmp_path / "new.csv", raw[1])


def matrix(rows):
    """The columns as scikit-learn takes them: NaN and "" where there is no value."""
    days = np.array([row["signed_up"] for row in rows], "datetime64[D]").astype(float)
    others = [[float(row[name] or "nan") for row in rows] for name in NUMBERS[1:]]
    texts = [[row[name] for row in rows] for name in CATEGORIES]
    return np.array([days, *others, *texts], object).T


def pipelines():
    """What people write with scikit-learn."""
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    numbers, texts = slice(0, len(NUMBERS)), slice(len(NUMBERS), None)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    one_hot = ColumnTransformer([("n", scaled, numbers), ("c", OneHotEncoder(), texts)])
    codes = ColumnTransformer([("n", "passthrough", numbers), ("c", OrdinalEncoder(), texts)])
    return {
        "LogisticRegression": make_pipeline(one_hot, LogisticRegression()),
        "HistGradientBoosting": make_pipeline(codes, HistGradientBoostingClassifier()),
    }


def test_from_the_raw_file_to_predictions_in_two_commands(raw, files, capsys, record_property):
    from sklearn.metrics import brier_score_loss, roc_auc_score

    rows, new = raw
    assert main(["init", "csv", "customers.csv"]) == 0
    assert main(["train", "customers.yaml"]) == 0
    assert main(["predict", "runs/customers", "--input", "new.csv", "--output", "out.csv",
                 "--proba", "--keep", "comment"]) == 0  # fmt: skip
    with open("out.csv", newline="") as file:
        out = list(csv.DictReader(file))
    assert [*out[0]] == ["customer_id", "comment", "churned", "probability_no", "probability_yes"]
    assert [row["customer_id"] for row in out] == [row["customer_id"] for row in new]
    assert [row["comment"] for row in out] == [row["comment"] for row in new]

    # On the rows of the run's own test part, which its training has not seen.
    config = load_config("customers.yaml")
    data = load_data(config)
    truth = np.array([row["churned"] == "yes" for row in rows])
    parts = split_of(config, truth)
    assert data.test.target.tolist() == truth[parts["test"]].tolist()
    model = mt.load("runs/customers")
    tested = [rows[i] for i in parts["test"]]
    table = {name: [row[name] for row in tested] for name in tested[0] if name != "churned"}
    for name in ("age", "income", "visits"):
        table[name] = [float(cell) if cell else None for cell in table[name]]
    chance = model.predict_proba(table)[:, 1]
    x = matrix(rows)
    score = {"microtrain": roc_auc_score(truth[parts["test"]], chance)}
    brier = {"microtrain": brier_score_loss(truth[parts["test"]], chance)}
    for name, pipeline in pipelines().items():
        pipeline.fit(x[parts["train"]], truth[parts["train"]])
        other = pipeline.predict_proba(x[parts["test"]])[:, 1]
        score[name] = roc_auc_score(truth[parts["test"]], other)
        brier[name] = brier_score_loss(truth[parts["test"]], other)
    record_property("roc_auc", score)
    print(score, brier)
    assert score["microtrain"] >= score["LogisticRegression"] - 0.02
    assert brier["microtrain"] <= brier["LogisticRegression"] + 0.005
    # What it says is 30 % happens in 30 % of the rows.
    for low, high in ((0.0, 0.1), (0.1, 0.3), (0.3, 1.0)):
        within = (chance >= low) & (chance < high)
        expected, happened = chance[within].mean(), truth[parts["test"]][within].mean()
        assert abs(expected - happened) < 3 * np.sqrt(expected / within.sum())


def split_of(config, truth):
    from microtrain.data.preparation.split import split_rows

    shares = config.data.split.shares
    return split_rows(len(truth), shares, 0, "data", strata=truth.astype(int))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param("logistic_regression", marks=pytest.mark.slow),
        "{type: mlp, hidden: [16]}",
    ],
)
def test_the_same_on_any_number_of_ranks(files, model):
    assert main(["init", "csv", "customers.csv"]) == 0
    embedding = "{type: category, encode: embedding, missing: none}"
    more = [f"data.columns.region={embedding}"] if "mlp" in model else []
    trained = {}
    for ranks in (1, 2, 4):
        settings = ["dtype=float64", "train.duration=4 epochs", f"model={model}", *more]
        config = load_config("customers.yaml", [*settings, f"run_dir=runs{ranks}"])

        def on(comm, config=config):
            trainer = Trainer.from_config(config, comm, Output(comm.rank, stream=io.StringIO()))
            assert trainer.train() == 0
            return trainer

        first, *_ = in_process.run(ranks, on)
        values = [p.detach().numpy() for p in first.model.module.parameters()]
        trained[ranks] = (
            values,
            mt.load(Path(f"runs{ranks}/customers")).predict_proba(
                {name: [cell] for name, cell in ONE_ROW.items()}
            ),
        )
    for ranks in (2, 4):
        for one, other in zip(trained[1][0], trained[ranks][0], strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(trained[ranks][1], trained[1][1], rtol=1e-12)


ONE_ROW = {
    "plan": "Basic", "region": "north", "signed_up": "2021-05-04", "age": 31.0, "income": None,
    "visits": 4.0,
}  # fmt: skip
