"""Modules, layers, losses and their functions, under PyTorch's names."""

from . import functional, init
from .activation import ReLU, Sigmoid, Tanh
from .container import ModuleList, Sequential
from .dropout import Dropout, Dropout1d, Dropout2d
from .linear import Linear
from .loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    NLLLoss,
    PoissonNLLLoss,
    SmoothL1Loss,
    SoftMarginLoss,
    TripletMarginLoss,
)
from .module import Module
from .parameter import Parameter

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "Linear",
    "MSELoss",
    "MarginRankingLoss",
    "Module",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "PoissonNLLLoss",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "Tanh",
    "TripletMarginLoss",
    "functional",
    "init",
]
