"""Tensors in matplotlib: drawn as arrays are, or the error says detach()."""

from collections.abc import Callable
from typing import Any

import pytest

import microtrain as mt

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt: Any = pytest.importorskip("matplotlib.pyplot")

DRAWN: dict[str, Callable[[mt.Tensor], Any]] = {
    "plot": lambda x: plt.plot(x),
    "plot of two": lambda x: plt.plot(x, x * x),
    "plot of columns": lambda x: plt.plot(x.reshape(2, 3)),
    "plot of points": lambda x: plt.plot(x[0], x[1], "o"),
    "scatter": lambda x: plt.scatter(x, x, c=x),
    "bar": lambda x: plt.bar(x, x),
    "hist": lambda x: plt.hist(x),
    "imshow": lambda x: plt.imshow(x.reshape(2, 3)),
    "contourf": lambda x: plt.contourf(x.reshape(2, 3)),
    "fill_between": lambda x: plt.fill_between(x, x, x * 2),
    "errorbar": lambda x: plt.errorbar(x, x, yerr=x),
    "stackplot": lambda x: plt.stackplot(x, x, x),
    "boxplot": lambda x: plt.boxplot(x),
    "limits": lambda x: plt.xlim(x[0], x[1]),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_tensor_is_drawn(name: str) -> None:
    DRAWN[name](mt.linspace(0, 1, 6))
    plt.gcf().canvas.draw()
    plt.close("all")


def test_what_is_drawn_are_the_values() -> None:
    x = mt.linspace(0, 1, 6)
    (line,) = plt.plot(x, x * 2)
    assert line.get_ydata().tolist() == (x * 2).tolist()
    plt.close("all")


WITH_GRADIENT = [name for name in DRAWN if name not in ("limits", "plot of points")]


@pytest.mark.parametrize("computed", [False, True], ids=["leaf", "computed"])
@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_a_tensor_that_requires_grad_says_detach(name: str, computed: bool) -> None:
    x = mt.linspace(0, 1, 6).requires_grad_()
    with pytest.raises(RuntimeError, match=r"Use tensor\.detach\(\)\.numpy\(\) instead"):
        DRAWN[name](x * 2 if computed else x)
    plt.close("all")


def test_pandas_takes_a_tensor() -> None:
    pandas: Any = pytest.importorskip("pandas")
    assert pandas.Series(mt.ones(3)).tolist() == [1, 1, 1]
    assert pandas.DataFrame({"a": mt.arange(3)})["a"].tolist() == [0, 1, 2]
