"""Modules, layers, losses and their functions, under PyTorch's names."""

from . import functional, init
from .activation import ReLU, Sigmoid, Tanh
from .container import ModuleList, Sequential
from .dropout import Dropout, Dropout1d, Dropout2d
from .linear import Linear
from .loss import CrossEntropyLoss, MSELoss
from .module import Module
from .parameter import Parameter

__all__ = [
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Linear",
    "MSELoss",
    "Module",
    "ModuleList",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Tanh",
    "functional",
    "init",
]
