"""Section: a dict of configuration whose keys can be read as attributes.

It is what `load_config` returns and every rank holds: plain values, JSON and pickle take it, and
beside each key the origin that the run directory's config.yaml shows.
"""

from __future__ import annotations

from typing import Any

from ..spelling import did_you_mean


class Section(dict[str, Any]):
    """`config.train.batch_size` is `config["train"]["batch_size"]`.

    `origins` maps a key to where its value came from (`linreg.yaml:6`, `command line`,
    `default`). `kind` is what a component is: data, model, loss, metrics, optimizer, or "".
    `given` is an object that stands for a component, where Python gave one; it is not copied.
    A key named like a method of dict (`items`) is read with brackets.
    """

    __slots__ = ("given", "kind", "origins")

    def __init__(self, *args: Any, kind: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kind = kind
        self.origins: dict[str, str] = {}
        self.given: Any = None

    def fill(self, key: str, value: Any, origin: str) -> None:
        """Set a value and note where it came from."""
        self[key] = value
        self.origins[key] = origin

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"no key {key}{did_you_mean(key, self)}") from None
