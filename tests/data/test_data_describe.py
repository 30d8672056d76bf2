"""What `init csv` proposes for a column, and why."""

import numpy as np
import pytest

from microtrain.data import Table
from microtrain.data.readers.csv import parse_csv
from microtrain.data.tables.frame import Frame
from microtrain.data.tables.propose import guess_target, propose


def frame(name, cells):
    quoted = "".join(f'"{cell}",{i}\n' for i, cell in enumerate(cells))
    return parse_csv("t.csv", f"{name},y\n{quoted}".encode())


CASES = [
    ("x", ["1", "2.5", "2"], "", "numbers from 1 to 2.5"),
    ("x", ["10", "20", "77"] * 30, "", "; 3 different ones: if they are codes, category"),
    ("x", ["1", "", "2", "2"], "{missing: median}", "numbers from 1 to 2, 1 of 4 cells empty"),
    ("x", ["1", "NA", "2", "2"], "{missing: median}", "1 of 4 cells empty"),
    ("x", ["1", "-", "2", "null"], "{missing: median}", "from 1 to 2, 2 of 4 cells empty"),
    ("when", ["2024-01-02", "null", "2023-01-02"], "{type: date, missing: median}", "1 of 3"),
    ("ill", ["none", "mild", "none"], "category", "2 texts: mild, none"),
    ("x", ["1", "2", "12 kg", "2"], "", '1 cell such as "12 kg" not a number: correct them'),
    ("x", ["1", "1", "1"], "drop", '"1" in every row'),
    ("x", ["", "", ""], "drop", "no cell has a value"),
    ("customer_id", ["7", "3", "9"], "id", "another number in every row"),
    ("row", [str(i) for i in range(10)], "id", "another number in every row"),
    ("width", ["7", "3", "9"], "", "numbers from 3 to 9"),
    ("key", ["a1", "b2", "c3"], "id", "another text in every row"),
    ("plan", ["a", "b", "a"], "category", "2 texts: a, b"),
    ("plan", ["a", "", "a", "b"], "{type: category, missing: none}", "1 of 4 cells empty"),
    ("ok", ["true", "false", "true"], "category", "2 texts: false, true"),
    ("region", ["007", "01", "007"], "category", "2 texts: 007, 01, codes with leading zeros"),
    ("post", ["01", "", "10", "01"], "{type: category, missing: none}", "leading zeros"),
    ("share", ["0", "0.5", "1", "00"], "", "numbers from 0 to 1"),
    ("paid", ["1,234", "2,345", "1,234"], "", '3 cells such as "1,234" not a number: correct them'),
    ("when", ["2024-01-02", "2023-01-02"], "date", "dates from 2023-01-02 to 2024-01-02"),
    ("when", ["2024-01-02", "", "2023-01-02"], "{type: date, missing: median}", "1 of 3 cells"),
    ("when", ["31/12/2024", "01/02/2023"], '{type: date, format: "%d/%m/%Y"}', "dates as 31/12"),
    ("when", ["12/31/2024", "01/02/2023"], '{type: date, format: "%m/%d/%Y"}', "dates as 12/31"),
    ("town", [f"t{i % 40}" for i in range(400)], "{type: category, encode: embedding}",
     "40 texts: t0, t1, t10, t11, ..."),
    ("text", [f"t{i % 200}" for i in range(400)], "drop", "200 different texts in 400 rows"),
    ("user_id", [f"u{i % 200}" for i in range(400)], "id", "200 different texts, and its name"),
    ("text", [f"{i} {'word ' * 9}" for i in range(30)], "drop", "free text: 30 different ones"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "cells", "spec", "why"), CASES)
def test_proposals(name, cells, spec, why):
    found = propose(frame(name, cells), name)
    assert (found.spec, found.name) == (spec, name)
    assert why in found.why


@pytest.mark.parametrize(("name", "cells", "spec", "why"), CASES)
def test_a_proposal_can_be_followed(name, cells, spec, why):
    import yaml

    if "correct them" in why:
        return
    read = frame(name, cells)
    filler = np.array([str(i % 3) for i in range(len(cells))], object)
    columns = {name: read.column(name), "filler": filler, "y": read.column("y")}
    made = Frame("t.csv", columns.keys(), columns.values(), read.lines)
    given = yaml.safe_load(spec) if spec else "number"
    if spec == "drop":
        Table(made, "y", drop=[name]).fit()
    else:
        Table(made, "y", {name: given}).fit()


@pytest.mark.parametrize(
    ("names", "target", "why"),
    [
        (["a", "churned", "b"], "churned", "by its name"),
        (["a", "Species"], "Species", "by its name"),
        (["a", "b"], "b", "the last column"),
    ],
)
def test_the_target_is_guessed(names, target, why):
    assert guess_target(Frame("t", names, [[1.0]] * len(names))) == (target, why)
