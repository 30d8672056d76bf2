"""The components that have a name in YAML files, and where each is imported from."""

from __future__ import annotations

__all__ = ["PARTS", "REGISTERED"]

# By kind and module: each name, and what has it there.
_OF: dict[str, dict[str, str]] = {
    "data": {
        "data.readers.synthetic": "synthetic_linear synthetic_random synthetic_relu",
        "data.readers.csv": "csv",
        "data.readers.npz": "npz",
        "data.readers.bundled": "sklearn",
        "data.readers.parquet": "parquet",
        "data.readers.npy": "npy",
        "data.readers.stores": "hdf5 zarr",
    },
    "model": {
        "train.models_and_losses": "linear_regression logistic_regression mlp "
        "two_layer_relu:TwoLayerReLU",
    },
    "loss": {"train.models_and_losses": "mse cross_entropy mae huber bce poisson"},
    "metrics": {
        "train.metrics.base": "mse:MeanSquaredError rmse:RootMeanSquaredError "
        "mae:MeanAbsoluteError r2:R2 mape:MeanAbsolutePercentageError "
        "median_absolute_error:MedianAbsoluteError explained_variance:ExplainedVariance",
        "train.metrics.classification": "accuracy:Accuracy topk:TopK "
        "balanced_accuracy:BalancedAccuracy precision:Precision recall:Recall f1:F1",
        "train.metrics.probabilities": "roc_auc:RocAuc average_precision:AveragePrecision "
        "log_loss:LogLoss brier:Brier calibration_error:CalibrationError",
    },
    "optimizer": {
        "optim.optimizers": "sgd:SGD adam:Adam adamw:AdamW adadelta:Adadelta adagrad:Adagrad "
        "adamax:Adamax nadam:NAdam radam:RAdam rmsprop:RMSprop",
        "train.penalized_lbfgs": "lbfgs:PenalizedLBFGS",
    },
    "schedule": {
        "train.schedules": "constant:Constant step:Step cosine:Cosine linear:Linear",
    },
    "callbacks": {
        "train.callbacks.early_stopping": "early_stopping:EarlyStopping",
        "train.callbacks.trackers": "mlflow:MLflow tensorboard:TensorBoard wandb:WandB",
    },
    "trainer": {},  # only import paths: a class that inherits from Trainer
}

# By kind: each name, and its import path.
REGISTERED: dict[str, dict[str, str]] = {
    kind: {
        pair.partition(":")[0]: f"microtrain.{module}:{pair.rpartition(':')[2]}"
        for module, pairs in modules.items()
        for pair in pairs.split()
    }
    for kind, modules in _OF.items()
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
