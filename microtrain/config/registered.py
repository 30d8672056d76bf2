"""The components that have a name in YAML files, and where each is imported from."""

from __future__ import annotations

__all__ = ["PARTS", "REGISTERED"]

REGISTERED: dict[str, dict[str, str]] = {
    "data": {
        "synthetic_linear": "microtrain.data.readers.synthetic:synthetic_linear",
        "synthetic_random": "microtrain.data.readers.synthetic:synthetic_random",
        "synthetic_relu": "microtrain.data.readers.synthetic:synthetic_relu",
        "csv": "microtrain.data.readers.files:csv",
        "npz": "microtrain.data.readers.files:npz",
        "sklearn": "microtrain.data.readers.bundled:sklearn",
        "parquet": "microtrain.data.readers.files:parquet",
        "npy": "microtrain.data.readers.npy:npy",
        "hdf5": "microtrain.data.readers.stores:hdf5",
        "zarr": "microtrain.data.readers.stores:zarr",
    },
    "model": {
        "linear_regression": "microtrain.train.components.models:linear_regression",
        "logistic_regression": "microtrain.train.components.models:logistic_regression",
        "mlp": "microtrain.train.components.models:mlp",
        "two_layer_relu": "microtrain.train.components.models:TwoLayerReLU",
    },
    "loss": {
        "mse": "microtrain.train.components.losses:mse",
        "cross_entropy": "microtrain.train.components.losses:cross_entropy",
        "mae": "microtrain.train.components.losses:mae",
        "huber": "microtrain.train.components.losses:huber",
        "bce": "microtrain.train.components.losses:bce",
    },
    "metrics": {
        "mse": "microtrain.train.metrics.base:MeanSquaredError",
        "rmse": "microtrain.train.metrics.base:RootMeanSquaredError",
        "mae": "microtrain.train.metrics.base:MeanAbsoluteError",
        "r2": "microtrain.train.metrics.base:R2",
        "mape": "microtrain.train.metrics.base:MeanAbsolutePercentageError",
        "median_absolute_error": "microtrain.train.metrics.base:MedianAbsoluteError",
        "explained_variance": "microtrain.train.metrics.base:ExplainedVariance",
        "accuracy": "microtrain.train.metrics.classification:Accuracy",
        "topk": "microtrain.train.metrics.classification:TopK",
        "balanced_accuracy": "microtrain.train.metrics.classification:BalancedAccuracy",
        "precision": "microtrain.train.metrics.classification:Precision",
        "recall": "microtrain.train.metrics.classification:Recall",
        "f1": "microtrain.train.metrics.classification:F1",
        "roc_auc": "microtrain.train.metrics.classification:RocAuc",
        "average_precision": "microtrain.train.metrics.classification:AveragePrecision",
        "log_loss": "microtrain.train.metrics.classification:LogLoss",
        "brier": "microtrain.train.metrics.classification:Brier",
        "calibration_error": "microtrain.train.metrics.classification:CalibrationError",
    },
    "optimizer": {
        "sgd": "microtrain.optim.optimizers:SGD",
        "adam": "microtrain.optim.optimizers:Adam",
        "adamw": "microtrain.optim.optimizers:AdamW",
        "adadelta": "microtrain.optim.optimizers:Adadelta",
        "adagrad": "microtrain.optim.optimizers:Adagrad",
        "adamax": "microtrain.optim.optimizers:Adamax",
        "nadam": "microtrain.optim.optimizers:NAdam",
        "radam": "microtrain.optim.optimizers:RAdam",
        "rmsprop": "microtrain.optim.optimizers:RMSprop",
    },
    "schedule": {
        "constant": "microtrain.train.components.schedules:Constant",
        "step": "microtrain.train.components.schedules:Step",
        "cosine": "microtrain.train.components.schedules:Cosine",
        "linear": "microtrain.train.components.schedules:Linear",
    },
    "callbacks": {
        "early_stopping": "microtrain.train.callbacks.early_stopping:EarlyStopping",
        "mlflow": "microtrain.train.callbacks.trackers:MLflow",
        "tensorboard": "microtrain.train.callbacks.trackers:TensorBoard",
        "wandb": "microtrain.train.callbacks.trackers:WandB",
    },
    "trainer": {},  # only import paths: a class that inherits from Trainer
}

# What `microtrain init --part` writes for a kind, and the page docs/parts/NAME.md explains.
PARTS = {
    "metrics": "metric",
    "loss": "loss",
    "data": "data",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "callbacks": "callback",
    "model": "layer",
}
