"""The components that have a name in YAML files, and where each is imported from."""

from __future__ import annotations

__all__ = ["PARTS", "REGISTERED"]

REGISTERED: dict[str, dict[str, str]] = {
    "data": {
        "synthetic_linear": "microtrain.data.synthetic:synthetic_linear",
        "synthetic_random": "microtrain.data.synthetic:synthetic_random",
        "synthetic_relu": "microtrain.data.synthetic:synthetic_relu",
        "csv": "microtrain.data.files:csv",
        "npz": "microtrain.data.files:npz",
        "sklearn": "microtrain.data.scikit_learn:sklearn",
        "parquet": "microtrain.data.files:parquet",
        "npy": "microtrain.data.mapped:npy",
        "hdf5": "microtrain.data.stores:hdf5",
        "zarr": "microtrain.data.stores:zarr",
    },
    "model": {
        "linear_regression": "microtrain.train.models:linear_regression",
        "logistic_regression": "microtrain.train.models:logistic_regression",
        "mlp": "microtrain.train.models:mlp",
        "two_layer_relu": "microtrain.train.models:TwoLayerReLU",
    },
    "loss": {
        "mse": "microtrain.train.losses:mse",
        "cross_entropy": "microtrain.train.losses:cross_entropy",
        "mae": "microtrain.train.losses:mae",
        "huber": "microtrain.train.losses:huber",
        "bce": "microtrain.train.losses:bce",
    },
    "metrics": {
        "mse": "microtrain.train.metrics:MeanSquaredError",
        "rmse": "microtrain.train.metrics:RootMeanSquaredError",
        "mae": "microtrain.train.metrics:MeanAbsoluteError",
        "r2": "microtrain.train.metrics:R2",
        "mape": "microtrain.train.metrics:MeanAbsolutePercentageError",
        "median_absolute_error": "microtrain.train.metrics:MedianAbsoluteError",
        "explained_variance": "microtrain.train.metrics:ExplainedVariance",
        "accuracy": "microtrain.train.class_metrics:Accuracy",
        "topk": "microtrain.train.class_metrics:TopK",
        "balanced_accuracy": "microtrain.train.class_metrics:BalancedAccuracy",
        "precision": "microtrain.train.class_metrics:Precision",
        "recall": "microtrain.train.class_metrics:Recall",
        "f1": "microtrain.train.class_metrics:F1",
        "roc_auc": "microtrain.train.class_metrics:RocAuc",
        "average_precision": "microtrain.train.class_metrics:AveragePrecision",
        "log_loss": "microtrain.train.class_metrics:LogLoss",
        "brier": "microtrain.train.class_metrics:Brier",
        "calibration_error": "microtrain.train.class_metrics:CalibrationError",
    },
    "optimizer": {
        "sgd": "microtrain.optim.sgd:SGD",
        "adam": "microtrain.optim.adam:Adam",
        "adamw": "microtrain.optim.adam:AdamW",
        "adadelta": "microtrain.optim.adadelta:Adadelta",
        "adagrad": "microtrain.optim.adagrad:Adagrad",
        "adamax": "microtrain.optim.adamax:Adamax",
        "nadam": "microtrain.optim.nadam:NAdam",
        "radam": "microtrain.optim.radam:RAdam",
        "rmsprop": "microtrain.optim.rmsprop:RMSprop",
    },
    "schedule": {
        "constant": "microtrain.train.schedules:Constant",
        "step": "microtrain.train.schedules:Step",
        "cosine": "microtrain.train.schedules:Cosine",
        "linear": "microtrain.train.schedules:Linear",
    },
    "callbacks": {
        "early_stopping": "microtrain.train.early_stopping:EarlyStopping",
        "mlflow": "microtrain.train.trackers:MLflow",
        "tensorboard": "microtrain.train.trackers:TensorBoard",
        "wandb": "microtrain.train.trackers:WandB",
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
