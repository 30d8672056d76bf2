"""Every section and key of the YAML, with its type, range, default and meaning: the one list.

A section is a dataclass, checked like any callable with annotated arguments: `values.py` checks
the values, the section's own `wrong` what does not go together, the docstring says what a key
means, for `microtrain show`, the JSON Schema of editors and the reference in docs/. Every rank
holds a `Config`; no module here needs pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Lt, MinLen, Predicate

from ..capture.c_compiler import absent
from ..common.spelling import did_you_mean
from .texts import Duration

Wrong: TypeAlias = Iterator[tuple[str, str]]  # keys, and what is wrong there


@dataclass(frozen=True)
class Expects:
    """What a value must be, in words that follow `expected`; a text may have a form, a regexp."""

    words: str
    pattern: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        schema = handler(source)
        return {**schema, "pattern": self.pattern} if self.pattern else schema

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(schema), "title": self.words}


Count = Annotated[int, Ge(1)]
MOST_SHARDS = 2**16  # each is a pass of its own in every step
Seed = Annotated[int, Ge(0), Lt(2**63), Expects("a whole number from 0 to 2**63 - 1")]
Positive = Annotated[float, Gt(0)]
Text = Annotated[str, MinLen(1)]
PathText = Annotated[str, Expects("a path", r"^[^\x00]+$")]
Fraction = Annotated[float, Gt(0), Le(1), Expects("a fraction above 0, at most 1")]
SHARE = Expects("a fraction above 0, at most 1, or the path of a file, or keys of data")
Part: TypeAlias = Annotated[Fraction | Annotated[str, Path] | dict[str, Any], SHARE]
Name = Annotated[
    str, Expects("a name for a directory: letters, digits, spaces, . _ -", r"^\w[\w .-]{0,99}$")
]
Span = Annotated[Duration, Predicate(lambda span: span.unit != "%" or span.amount <= 100)]
WholeRun = Annotated[
    Duration,
    Predicate(lambda whole: whole.unit != "%"),
    Expects("a duration such as `20 epochs`, `500 steps` or `10 min`"),
]
Time = Annotated[
    Duration, Predicate(lambda time: time.unit == "min"), Expects("a time such as `10 min`")
]
Auto: TypeAlias = Literal["auto"]
EVERY_EPOCH = Duration("1 epoch")
AutoSpan = Annotated[Auto | Span, Expects("auto, or a duration such as `100 steps`")]


class Section:
    """Keys and values that stand below one key."""

    def wrong(self) -> Wrong:
        """What does not go together: keys, and why."""
        return iter(())


@dataclass
class Component(Section):
    """What a name or import path makes, and the arguments it is made with: `build(component)`.

    `component.lr` is the argument `lr`, as `component.arguments["lr"]` is.

    Attributes:
        kind: data, model, loss, metrics, optimizer, schedule or callbacks.
        type: a registered name, an import path, or `python:Name` for an object from Python.
        arguments: those that are given or have plain defaults.
        instance: an object from Python that stands for it; of an optimizer, what makes it.

    Example:
        >>> component = mt.train.Component("optimizer", "sgd", {"lr": 0.1})
        >>> component.lr
        0.1
    """

    kind: str
    type: Text
    arguments: dict[str, Any] = field(default_factory=dict)
    instance: Any = field(default=None, compare=False)

    def __getattr__(self, key: str) -> Any:
        arguments = self.__dict__.get("arguments", {})  # absent while a copy is made
        if key not in arguments:
            raise AttributeError(f"no key {key}{did_you_mean(key, arguments)}")
        return arguments[key]


A_COMPONENT = "a registered name, ./file.py:Name, or {type: NAME, ...arguments}"
AnyComponent = Annotated[Component, Expects(A_COMPONENT)]
KEYS = Expects("keys and values, indented below it")


@dataclass(kw_only=True)
class Split(Section):
    """How samples are split into parts: fractions of the data, which add up to 1, or files.

    Args:
        train: Fraction of the data to train on.
        val: The validation data, evaluated during training: a fraction, a file like that of
            `data`, or those keys of `data` that differ.
        test: The test data, evaluated once, at the end, as `val`.
        seed: Seed of the split. It does not depend on the run's `seed`, so runs with different
            seeds have the same test rows.
        stratify: Give each part the same fraction of every class.
        group: A column; rows with the same value in it stay together in one part.
        time: A column of numbers or dates; the earliest rows are the training data, the latest the
            test data.
        folds: Cut the training part into this many folds, for cross-validation; one of them is
            the validation data.
        fold: Which of the folds that is, from 0; a sweep takes each in turn.
    """

    train: Fraction
    val: Part | None = None
    test: Part | None = None
    seed: Seed = 0
    stratify: bool = False
    group: Text | None = None
    time: Text | None = None
    folds: Annotated[int, Ge(2)] | None = None
    fold: Annotated[int, Ge(0)] | None = None

    @property
    def has_val(self) -> bool:
        """Whether there are validation data."""
        return self.val is not None or self.folds is not None

    @property
    def shares(self) -> dict[str, float]:
        """The parts that are cut from the data, with their fractions."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {part: share for part, share in parts.items() if isinstance(share, float)}

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """The parts that have files of their own, with the keys of `data` that name them."""
        parts: dict[str, Any] = {"val": self.val, "test": self.test}
        return {
            part: share if isinstance(share, dict) else {"path": share}
            for part, share in parts.items()
            if isinstance(share, str | dict)
        }

    def wrong(self) -> Wrong:
        if abs(sum(self.shares.values()) - 1) > 1e-6:
            shown = ", ".join(f"{part}: {share:g}" for part, share in self.shares.items())
            yield "", f"{{{shown}}} adds up to {sum(self.shares.values()):.6g}; expected 1"
        ways = [way for way in ("stratify", "group", "time") if getattr(self, way)]
        both = {"folds": ("val", "time"), **({ways[0]: ways[1:]} if ways else {})}
        for one, others in both.items():
            for key in others if getattr(self, one) else ():
                if getattr(self, key):
                    yield key, f"cannot be combined with {one}; choose one"
        if (self.folds is None) != (self.fold is None):
            given, missing = ("fold", "folds") if self.folds is None else ("folds", "fold")
            yield given, f"needs {missing}: folds are how many, fold is the one held out"
        elif self.folds and self.fold is not None and self.fold >= self.folds:
            yield "fold", f"expected a fold from 0 to {self.folds - 1}, got {self.fold}"


@dataclass(kw_only=True)
class Data(Component):
    """The data set and its preprocessing.

    Args:
        type: A registered name, or an import path such as ./file.py:Name.
        split: Fractions for training, validation and test.
        standardize: Scale every input column to mean 0 and standard deviation 1, computed on the
            training part.
        standardize_target: Train on a regression's target at mean 0 and deviation 1, by the
            training part; metrics and predictions stay in its own unit.
        log_target: Train on log(1 + target), before any standardize_target; for targets from 0 up.
        clip: Hold the predictions of a regression within the range of the training targets.
        cache: A directory that keeps the prepared rows of files for runs to come, mapped into
            memory as they are used; null: none.
    """

    split: Annotated[Split, Expects("fractions such as {train: 0.8, val: 0.1, test: 0.1}")] = field(
        default_factory=lambda: Split(train=1.0)
    )
    standardize: bool = False
    standardize_target: bool = False
    log_target: bool = False
    clip: bool = False
    cache: Annotated[Annotated[str, Path] | None, Expects("the path of a directory, or null")] = (
        None
    )

    def wrong(self) -> Wrong:
        for part, keys in self.split.files.items():
            if all(self.arguments.get(key) == value for key, value in keys.items()):
                same = ", ".join(f"data.{key}" for key in keys)
                yield f"split.{part}", f"is the file that the model is trained on ({same})"
        of_files = ":" in self.type or {"path", "inputs"} & {*self.arguments}
        if self.cache is not None and not of_files:
            yield ("cache", f"keeps the rows of files; data of type {self.type} have no file")


@dataclass(kw_only=True)
class Train(Section):
    """Training: its length, its batches and its steps. `batch_size` is global.

    Args:
        duration: How long to train.
        batch_size: Samples per optimizer step, over all ranks; all: the whole training part.
        accumulate: Number of micro-batches per batch (gradient accumulation), to save memory.
        clip_norm: Clip the gradient of a step to this norm; null: no clipping.
        eval_every: How often the validation data are evaluated; always at the end, too.
        max_time: Stop after this time, so that the run can be resumed; null: never.
        shuffle: Shuffle the samples every epoch.
        drop_last: Drop the last batch of an epoch if it is incomplete.
        nan: What to do if a loss or gradient is not finite: stop the run, or skip the step.
        compile: The executor of the steps; off runs your Python code at every step.
        init_from: A run or checkpoint to take the initial parameters from; relative to this file.
    """

    duration: WholeRun
    batch_size: Annotated[Count | Literal["all"], Expects("a whole number of at least 1, or all")]
    accumulate: Count = 1
    clip_norm: Positive | None = None
    eval_every: Span = EVERY_EPOCH
    max_time: Annotated[Time | None, Expects("a time such as `10 min`")] = None
    shuffle: bool = True
    drop_last: bool = False
    nan: Literal["stop", "skip"] = "stop"
    compile: Literal["auto", "numpy", "native", "cupy", "off"] = "auto"
    init_from: Annotated[Annotated[str, Path] | None, Expects("a path, or null")] = None

    def wrong(self) -> Wrong:
        if isinstance(self.batch_size, int) and self.accumulate > self.batch_size:
            cut = f"a batch of {self.batch_size} samples into {self.accumulate} micro-batches"
            yield "accumulate", f"cannot cut {cut}"
        if self.compile == "native" and (why := absent()):
            yield "compile", f"{why}; or choose auto or numpy"


@dataclass(kw_only=True)
class Checkpoint(Section):
    """When checkpoints are written and which are kept; the end of a run always writes one.

    Args:
        every: How often a checkpoint is written; auto: at the end of epochs, using at most a
            twentieth of the time.
        keep_last: Number of newest checkpoints to keep.
        keep_best: Number of best checkpoints by `monitor` to keep in addition.
        monitor: The value that decides which is best, such as val/loss or val/r2; null: val/loss,
            or train/loss without validation data.
        mode: Whether the lowest or the highest `monitor` is best.
    """

    every: AutoSpan = "auto"
    keep_last: Count = 2
    keep_best: Annotated[int, Ge(0)] = 1
    monitor: Text | None = None
    mode: Literal["min", "max"] = "min"


@dataclass(kw_only=True)
class Log(Section):
    """Rows of metrics on the terminal and in log.txt.

    Args:
        every: How often a row is printed; auto: at most 200 rows per run.
    """

    every: AutoSpan = "auto"


@dataclass(kw_only=True)
class Distributed(Section):
    """How the ranks work together.

    Args:
        backend: Communication between the ranks; auto: MPI under a launcher; nccl: MPI, and NCCL
            for gradients on GPUs.
        bucket_mb: Size of a gradient bucket in megabytes.
        overlap: Send gradients while the backward pass is still running.
        compression: Format in which gradients are sent; none: uncompressed.
        sync_batchnorm: Use batch norm statistics of the global batch, not of each rank's rows.
        reproducible: Bit-for-bit reproducible results: run, for one number of ranks; world, for
            every number up to `shards`.
        shards: Number of slices of a batch under `reproducible: world`.
        warn_s: Seconds after which a waiting rank reports which ranks it waits for.
        timeout_s: Seconds of waiting after which the run ends.
        blas_threads: Threads per rank, of BLAS and native code; auto: its share of the cores.
        share_gpu: Let several ranks of a host use one GPU.
        restarts: How often microtrain launch may start the job again after a fault.
    """

    backend: Literal["auto", "none", "mpi", "nccl"] = "auto"
    bucket_mb: Auto | Positive = "auto"
    overlap: Annotated[Auto | bool, Expects("auto, true or false")] = "auto"
    compression: Literal["none", "fp16", "bf16"] = "none"
    sync_batchnorm: bool = True
    reproducible: Literal["run", "world"] = "run"
    shards: Annotated[int, Ge(1), Le(MOST_SHARDS)] = 8
    warn_s: Positive = 30.0
    timeout_s: Positive = 600.0
    blas_threads: Auto | Count = "auto"
    share_gpu: bool = False
    restarts: Annotated[int, Ge(0)] = 0

    def wrong(self) -> Wrong:
        world, sent_early = self.reproducible == "world", self.overlap is True
        compressed = self.compression != "none"
        if not world and self.shards != 8:
            yield "shards", "only world mode has shards; set distributed.reproducible to world"
        if world and compressed:
            yield "compression", "rounds by rank, but reproducible: world wants the same bits"
        if world and sent_early:
            yield "overlap", "reproducible: world adds up the shards when all are there"
        elif compressed and sent_early:
            yield "overlap", "compressed gradients are reduced at once; set compression to none"
        if self.backend == "nccl" and world:
            yield "backend", "nccl adds up in its own order; reproducible: world has a fixed one"
        if self.backend == "nccl" and (compressed or sent_early):
            key = "compression" if compressed else "overlap"
            yield key, "nccl adds up whole gradients, when the backward pass is over"
        if world and self.blas_threads not in ("auto", 1):
            yield "blas_threads", "reproducible: world needs 1; with more, sums have different bits"
        if self.warn_s >= self.timeout_s:
            message = f"no warning can come after {self.warn_s:g} s: the run ends after"
            key = "timeout_s" if self.warn_s == Distributed.warn_s else "warn_s"
            yield key, f"{message} {self.timeout_s:g} s"


@dataclass(kw_only=True)
class Sweep(Section):
    """Many runs as one: every combination of what varies is a member.

    Args:
        seeds: Number of seeds, from `seed` on, or a list of them.
        folds: Cross-validation: cut the training part into this many folds, and hold out each.
        grid: Lists of values by dotted key, such as {optimizer.lr: [0.1, 0.01]}; every combination.
        random: A count of combinations to draw, and by key what from, such as
            {count: 50, optimizer.lr: log 0.001..1}; also 1..8 or a list.
        stop: Stop bad settings early; halving: after 1/9 and 1/3 of the steps the best third of
            them goes on.
    """

    seeds: Annotated[
        Count | Annotated[list[Seed], MinLen(1)], Expects("a number of seeds, or a list of them")
    ] = 1
    folds: Annotated[int, Ge(2)] | None = None
    grid: Annotated[
        dict[str, Any], Expects("lists of values by key, such as {optimizer.lr: [0.1, 0.01]}")
    ] = field(default_factory=dict)
    random: Annotated[
        dict[str, Any], Expects("a count, and by key a range such as log 0.001..1")
    ] = field(default_factory=dict)
    stop: Literal["halving"] | None = None


@dataclass(kw_only=True)
class Config:
    """One YAML file: one run, or a sweep of them.

    Args:
        name: Name of the run; default: the file's name.
        seed: Seed of all random numbers: data, parameters, order, dropout.
        device: Device to train on; auto: a GPU if there is one.
        dtype: Type of parameters and data.
        data: The data set, and its preprocessing.
        model: The model to train.
        loss: The loss to minimize.
        metrics: Other values to compute, on the validation data if there are any.
        optimizer: The optimizer, which updates the parameters at each step.
        schedule: The learning rate schedule; null: a constant rate.
        train: Training: its length, its batches and its steps.
        checkpoint: When checkpoints are written and which are kept.
        log: How often rows are printed.
        distributed: How the ranks work together.
        callbacks: Your own code, called during the run.
        run_dir: The directory of all runs, relative to the working directory.
        base: A YAML file, relative to this one, that provides the keys missing here.
        trainer: Import path of your own subclass of Trainer.
        sweep: Train many models that differ in these settings; null: one.

    Attributes:
        origins: where what is not a default came from, by dotted path: "train.batch_size" from
            "linreg.yaml:8", "optimizer.lr" from "command line".

    Example:
        >>> config = mt.train.load_config("configs/linreg.yaml")
        >>> config.optimizer.type, config.train.batch_size
        ('sgd', 64)
    """

    name: Name
    seed: Seed = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    data: Annotated[Data, Expects(A_COMPONENT)]
    model: AnyComponent
    loss: AnyComponent
    metrics: Annotated[list[Component], Expects("a list such as [r2]")] = field(
        default_factory=list
    )
    optimizer: AnyComponent
    schedule: AnyComponent | None = None
    train: Annotated[Train, KEYS]
    checkpoint: Annotated[Checkpoint, KEYS] = field(default_factory=Checkpoint)
    log: Annotated[Log, KEYS] = field(default_factory=Log)
    distributed: Annotated[Distributed, KEYS] = field(default_factory=Distributed)
    callbacks: Annotated[list[Component], Expects("a list of callbacks")] = field(
        default_factory=list
    )
    run_dir: PathText = "runs"
    base: Annotated[Text | None, Expects("the path of a YAML file")] = None
    trainer: Annotated[Text | None, Expects("an import path: ./file.py:Name")] = None
    sweep: Annotated[Sweep | None, KEYS] = None
    origins: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    Attributes:
        number: from 0.
        setting: number of the combination of values that it shares with other seeds and folds.
        varied: what its configuration has of its own, by dotted key.
        config: the whole of it, without `sweep`.
    """

    number: int
    setting: int
    varied: dict[str, Any]
    config: Config


@dataclass(frozen=True)
class Members:
    """What a file describes.

    Attributes:
        config: that of the first member, with the section `sweep`; of a file without one the run.
        members: in order; empty without `sweep`.
    """

    config: Config
    members: list[Member]


COMPONENTS = ("data", "model", "loss", "optimizer", "schedule")
LISTS = ("metrics", "callbacks")  # of components
SECTIONS: dict[str, type] = {
    "": Config,
    "data.split": Split,
    "train": Train,
    "checkpoint": Checkpoint,
    "log": Log,
    "distributed": Distributed,
    "sweep": Sweep,
}
# Keys that stand beside a component's arguments and are the section's own.
TARGET_KEYS = ("standardize_target", "log_target", "clip")
OWN_KEYS = {"data": ("split", "standardize", *TARGET_KEYS, "cache")}
