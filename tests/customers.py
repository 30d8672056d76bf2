"""A table as people have it: customers of whom some leave, with texts, dates and gaps."""

import csv
from pathlib import Path

import numpy as np

PLANS, REGIONS = ("Basic", "Plus", "Pro"), ("north", "south", "east", "west", "overseas")
WORDS = (
    "good bad slow fast price support app again never friendly bill late nice lost happy".split()
)


def customers(rows: int = 5000, seed: int = 0) -> list[dict[str, str]]:
    """Rows of texts: an id, categories, a date, numbers with gaps, free text, and the target."""
    rng = np.random.default_rng(seed)
    plan, region = rng.integers(3, size=rows), rng.integers(5, size=rows)
    days, age = rng.integers(0, 1500, rows), rng.normal(45, 14, rows).clip(18, 90)
    income, visits = rng.lognormal(10.3, 0.5, rows), rng.poisson(6, rows)
    no_age, no_income = rng.random(rows) < 0.08, rng.random(rows) < 0.03 + 0.1 * (plan == 0)
    no_region = rng.random(rows) < 0.02
    score = (
        -2.5 + np.array([1.4, 0.3, -0.9])[plan] + np.array([0, 0.2, -0.3, 0.1, 0.9])[region]
        - 0.0012 * (days - 750) - 0.02 * (age - 45) - 0.16 * (visits - 6)
        + 0.5 * (np.log(income) - 10.3) + 0.7 * no_income
        + 0.6 * ((age < 30) & (plan == 0))
    )  # fmt: skip
    left = rng.random(rows) < 1 / (1 + np.exp(-1.3 * score))
    start = np.datetime64("2019-01-01")
    return [
        {
            "customer_id": f"C{i:05}",
            "plan": PLANS[plan[i]],
            "region": "" if no_region[i] else REGIONS[region[i]],
            "signed_up": str(start + np.timedelta64(int(days[i]), "D")),
            "age": "" if no_age[i] else f"{age[i]:.0f}",
            "income": "" if no_income[i] else f"{income[i]:.2f}",
            "visits": str(visits[i]),
            "comment": " ".join(rng.choice(WORDS, 8)),
            "churned": "yes" if left[i] else "no",
        }
        for i in range(rows)
    ]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """As a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return path
