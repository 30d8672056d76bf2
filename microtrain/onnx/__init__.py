"""Models as ONNX graphs, for runtimes that know no Python; needs the extra `onnx`."""

from .exporter import export

__all__ = ["export"]


def __dir__() -> list[str]:
    return [*__all__]
