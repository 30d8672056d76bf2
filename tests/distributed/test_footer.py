"""What travels behind the gradients comes out of a sum over the ranks as it went in."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pace import examples

from microtrain.distributed.footer import SILENT, Totals, pack, values_of
from microtrain.optim.flat import FOOTER


def added(footers: list[list[float]]) -> list[float]:
    """As the ranks add footers of float32 up."""
    return np.array(footers).astype(np.float32).sum(axis=0, dtype=np.float32).tolist()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.floats(0.5, 1.0), min_size=2, max_size=8), st.integers(-20, 20))
def test_the_loss_survives_float32(values: list[float], exponent: int) -> None:
    """Losses of one size, summed as high and low parts in float32, keep 31 bits and not 24."""
    losses = [value * 2.0**exponent for value in values]
    totals = values_of(added([pack(Totals(1, 1.0, loss, 0), SILENT, []) for loss in losses]))
    assert abs(totals[2] - math.fsum(losses)) <= 2**-31 * math.fsum(losses)


@given(st.lists(st.integers(0, 2**33), min_size=1, max_size=8))
def test_rows_are_counted_exactly(rows: list[int]) -> None:
    totals = values_of(added([pack(Totals(n, float(n), 0.0, 0), SILENT, []) for n in rows]))
    assert totals[0] == sum(rows)


def test_notes_and_uses_are_added_up() -> None:
    footers = [
        pack(Totals(2, 2.0, 1.5, 0), (1.0, 0.0, 0.0, 16.0), [True, False, False]),
        pack(Totals(3, 3.0, 0.25, 1), (1.0, 0.0, 2.0, 4.0), [True, True, False]),
    ]
    assert [len(footer) for footer in footers] == [FOOTER + 3] * 2
    found = added(footers)
    values = values_of(found)
    assert values[:4] == [*Totals(5, 5.0, 1.75, 1)]
    assert values[4:] == [2.0, 0.0, 2.0, 20.0]
    assert [bool(count) for count in found[FOOTER:]] == [True, True, False]


def test_a_loss_that_is_not_finite_stays_so() -> None:
    for loss in (math.inf, -math.inf, math.nan):
        totals = values_of(added([pack(Totals(1, 1.0, x, 0), SILENT, []) for x in (loss, 1.0)]))
        np.testing.assert_equal(totals[2], loss)
