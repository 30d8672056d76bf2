"""Every section and key of the YAML, with its type, range, default and meaning: the one list.

pydantic checks the values. `Expects` is what a message says of a key ("expected a whole number of
at least 1, got ..."); the description says what the key means, for `microtrain show`, the JSON
Schema of editors and the reference in docs/. Keys whose feature is not built yet stand here too,
so that they are refused by name (`NOT_YET`) and never ignored. Only rank 0 imports this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field
from pydantic import ConfigDict as ModelConfig
from pydantic.fields import FieldInfo

from .duration import FORM, Duration


@dataclass(frozen=True)
class Expects:
    """What a value must be, in words that follow `expected`."""

    text: str


Count = Annotated[int, Field(ge=1), Expects("a whole number of at least 1")]
Seed = Annotated[int, Field(ge=0, lt=2**63), Expects("a whole number from 0 to 2**63 - 1")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), Expects("a number greater than 0")]
Flag = Annotated[bool, Expects("true or false")]
Text = Annotated[str, Field(min_length=1), Expects("a text")]
PathText = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]+$"), Expects("a path")]
Fraction = Annotated[
    float, Field(gt=0, le=1, allow_inf_nan=False), Expects("a fraction above 0, at most 1")
]
Name = Annotated[
    str,
    Field(pattern=r"^\w[\w .-]{0,99}$"),
    Expects("a name for a directory: letters, digits, spaces, . _ -"),
]
_SHAPE = Field(json_schema_extra={"pattern": rf"^\s*{FORM}\s*$"})


def _part_of_the_run(text: str) -> Duration:
    duration = Duration(text)
    if duration.unit == "%" and duration.amount > 100:
        raise ValueError("more than the whole run")
    return duration


def _whole_run(text: str) -> Duration:
    duration = Duration(text)
    if duration.unit == "%":
        raise ValueError("a percentage of what?")
    return duration


def _clock(text: str) -> Duration:
    duration = Duration(text)
    if duration.unit != "min":
        raise ValueError("not a time")
    return duration


Span = Annotated[
    str,
    AfterValidator(_part_of_the_run),
    _SHAPE,
    Expects("a duration such as `20 epochs`, `500 steps`, `5%` or `10 min`"),
]
WholeRun = Annotated[
    str,
    AfterValidator(_whole_run),
    _SHAPE,
    Expects("a duration such as `20 epochs`, `500 steps` or `10 min`"),
]
Clock = Annotated[
    Annotated[str, AfterValidator(_clock), _SHAPE] | None, Expects("a time such as `10 min`")
]
MaybeFraction = Annotated[Fraction | None, Expects("a fraction above 0, at most 1, or null")]
MaybePositive = Annotated[Positive | None, Expects("a number greater than 0, or null")]
MaybeText = Annotated[Text | None, Expects("a text, or null")]
MaybePath = Annotated[PathText | None, Expects("a path, or null")]
AutoSpan = Annotated[Literal["auto"] | Span, Expects("auto, or a duration such as `100 steps`")]
AutoFlag = Annotated[Literal["auto"] | bool, Expects("auto, true or false")]
AutoCount = Annotated[Literal["auto"] | Count, Expects("auto, or a whole number above 0")]
AutoPositive = Annotated[Literal["auto"] | Positive, Expects("auto, or a number greater than 0")]


class Section(BaseModel):
    """Unknown keys are refused and no value is converted, except a whole number to a float."""

    model_config = ModelConfig(extra="forbid", strict=True, validate_default=True)


class Component(Section):
    """`{type: NAME, ...arguments}`; the arguments are checked against NAME's own signature."""

    model_config = ModelConfig(extra="allow")

    type: Text = Field(description="A registered name, or an import path such as ./file.py:Name.")


class Split(Section):
    """Fractions of the samples, which add up to 1, and the seed that they are drawn with."""

    train: Fraction = Field(description="What the model is trained on.")
    val: MaybeFraction = Field(default=None, description="What it is measured on during training.")
    test: MaybeFraction = Field(
        default=None, description="What it is measured on once, at the end."
    )
    seed: Seed = Field(
        default=0,
        description="Which samples go where, whatever `seed` is: runs over seeds share their test "
        "rows.",
    )


class Data(Component):
    """Where the samples come from, and what is done to them on the way."""

    split: Annotated[Split, Expects("fractions such as {train: 0.8, val: 0.1, test: 0.1}")] = Field(
        default=Split(train=1.0), description="The shares for training, validation and test."
    )
    standardize: Flag = Field(
        default=False,
        description="Bring every input column to mean 0 and deviation 1, as they are in the "
        "training part.",
    )


class Train(Section):
    """One optimiser step takes `batch_size` samples over all ranks."""

    duration: WholeRun = Field(description="How long to train.")
    batch_size: Count = Field(description="Samples of one optimiser step, over all ranks.")
    accumulate: Count = Field(
        default=1, description="Micro-batches that each batch is cut into, to need less memory."
    )
    clip_norm: MaybePositive = Field(
        default=None,
        description="The largest norm that the gradient of a step may have; null: any.",
    )
    eval_every: Span = Field(
        default="1 epoch", description="How often metrics are measured; always at the end, too."
    )
    max_time: Clock = Field(
        default=None,
        description="Stop after this long, so that the run can be resumed; null: never.",
    )
    shuffle: Flag = Field(default=True, description="Draw a new order of the samples every epoch.")
    drop_last: Flag = Field(
        default=False,
        description="Leave out the samples at the end of an epoch that fill no batch.",
    )
    nan: Annotated[Literal["stop", "skip"], Expects("stop or skip")] = Field(
        default="stop",
        description="What to do about a loss or gradient that is not finite: end the run, or "
        "leave out the step.",
    )
    compile: Annotated[
        Literal["auto", "numpy", "numba", "off"], Expects("auto, numpy, numba or off")
    ] = Field(
        default="auto", description="What executes the steps; off runs your Python at every step."
    )
    init_from: MaybePath = Field(
        default=None,
        description="A run or checkpoint whose parameters the model starts from; relative to this "
        "file.",
    )


class Checkpoint(Section):
    """When checkpoints are written and which are kept; one is always written at the end."""

    every: AutoSpan = Field(
        default="auto",
        description="How often a checkpoint is written; auto: at the ends of epochs, as often as "
        "takes a twentieth of the time at most.",
    )
    keep_last: Count = Field(default=2, description="How many of the newest are kept.")
    keep_best: Annotated[int, Field(ge=0), Expects("a whole number of at least 0")] = Field(
        default=1, description="How many of the best by `monitor` are kept besides."
    )
    monitor: MaybeText = Field(
        default=None,
        description="The value that says which is best, such as val/loss or val/r2; null: "
        "val/loss, or train/loss without validation data.",
    )
    mode: Annotated[Literal["min", "max"], Expects("min or max")] = Field(
        default="min", description="Whether the lowest or the highest `monitor` is best."
    )


class Log(Section):
    """Rows of the report."""

    every: AutoSpan = Field(
        default="auto", description="How often a row is printed; auto: at most 200 rows a run."
    )


class Distributed(Section):
    """How the ranks work together."""

    backend: Annotated[
        Literal["auto", "none", "mpi", "threads", "nccl"], Expects("auto, none or mpi")
    ] = Field(default="auto", description="What connects the ranks; auto: MPI under a launcher.")
    bucket_mb: AutoPositive = Field(
        default="auto", description="Megabytes of gradients that travel in one piece."
    )
    overlap: AutoFlag = Field(
        default="auto", description="Send gradients while the backward pass still computes others."
    )
    compression: Annotated[Literal["none", "fp16", "bf16"], Expects("none, fp16 or bf16")] = Field(
        default="none", description="The format in which gradients travel."
    )
    sync_batchnorm: Flag = Field(
        default=True,
        description="Batch norm with the statistics of the whole batch, not of each rank's.",
    )
    reproducible: Annotated[Literal["run", "world"], Expects("run or world")] = Field(
        default="run",
        description="Where results have the same bits: run, at one number of ranks; world, at "
        "every number that divides `shards`.",
    )
    shards: Count = Field(
        default=8, description="Pieces a batch is cut into by `reproducible: world`."
    )
    warn_s: Positive = Field(
        default=30.0, description="Seconds after which a waiting rank says for whom."
    )
    timeout_s: Positive = Field(
        default=600.0, description="Seconds of waiting after which the run ends."
    )
    blas_threads: AutoCount = Field(
        default="auto",
        description="Threads of each rank's linear algebra; auto: its share of the cores.",
    )
    share_gpu: Flag = Field(default=False, description="Let several ranks of a host use one GPU.")


A_COMPONENT = "a registered name, ./file.py:Name, or {type: NAME, ...arguments}"
AnyComponent = Annotated[Component, Expects(A_COMPONENT)]
KEYS = Expects("keys and values, indented below it")


class Config(Section):
    """One YAML file: one run."""

    name: Name = Field(description="What the run is called; the file's name unless given.")
    seed: Seed = Field(
        default=0, description="Where all random numbers start: data, parameters, order, dropout."
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], Expects("auto, cpu or cuda")] = Field(
        default="auto", description="Where to compute; auto: a GPU where there is one."
    )
    dtype: Annotated[Literal["float32", "float64"], Expects("float32 or float64")] = Field(
        default="float32", description="The type of parameters and data."
    )
    data: Annotated[Data, Expects(A_COMPONENT)] = Field(description="Where the samples come from.")
    model: AnyComponent = Field(description="What is trained.")
    loss: AnyComponent = Field(description="What training makes small.")
    metrics: Annotated[list[AnyComponent], Expects("a list such as [r2]")] = Field(
        default=[], description="What else is measured of the model, of the validation data if any."
    )
    optimizer: AnyComponent = Field(description="How a step changes the parameters.")
    schedule: AnyComponent | None = Field(
        default=None, description="How the learning rate changes during the run; null: not at all."
    )
    train: Annotated[Train, KEYS] = Field(description="How long and in which steps to train.")
    checkpoint: Annotated[Checkpoint, KEYS] = Field(
        default=Checkpoint(), description="When checkpoints are written and which are kept."
    )
    log: Annotated[Log, KEYS] = Field(default=Log(), description="What is reported during the run.")
    distributed: Annotated[Distributed, KEYS] = Field(
        default=Distributed(), description="How the ranks work together."
    )
    callbacks: Annotated[list[AnyComponent], Expects("a list of callbacks")] = Field(
        default=[], description="What else happens during the run."
    )
    run_dir: PathText = Field(
        default="runs",
        description="The directory of all runs, in the working directory unless absolute.",
    )
    base: MaybeText = Field(
        default=None,
        description="A YAML file, relative to this one, whose keys hold where this has none.",
    )
    trainer: MaybeText = Field(
        default=None,
        description="The import path of a class of your own that inherits from Trainer.",
    )


COMPONENTS = ("data", "model", "loss", "optimizer", "schedule")
LISTS = ("metrics", "callbacks")  # of components
SECTIONS: dict[str, type[BaseModel]] = {
    "": Config,
    "data.split": Split,
    "train": Train,
    "checkpoint": Checkpoint,
    "log": Log,
    "distributed": Distributed,
}


# Features that are not built yet: the values of a key that work today. All else is refused.
NOT_YET: dict[str, tuple[object, ...]] = {
    "distributed.backend": ("auto", "none", "mpi"),
}


def refused(path: str, value: object) -> str | None:
    """Why the value of the key at `path` does not work yet, or None if it does (or is wrong)."""
    works = NOT_YET.get(path)
    if works is None or any(value == each and type(value) is type(each) for each in works):
        return None
    named = [str(each) for each in works if each is not None]
    way_out = f"so far only {', '.join(named)}" if named else "leave this key out"
    return f"not yet available; {way_out}"


def expectation(field: FieldInfo) -> str:
    """What a key's value must be, in words."""
    found = [each.text for each in field.metadata if isinstance(each, Expects)]
    return found[0] if found else A_COMPONENT


def expected(loc: tuple[str | int, ...]) -> tuple[int, str]:
    """How many parts of pydantic's error location name a key, and what that key expects.

    The rest of a location names branches of a union, which are not the user's business.
    """
    model: type[BaseModel] = Config
    for depth, part in enumerate(loc, 1):
        below = loc[depth] if depth < len(loc) else None
        if isinstance(part, int):  # an item of a list of components
            model, text = Component, A_COMPONENT
        else:
            field = model.model_fields[part]
            text = expectation(field)
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                model = field.annotation
            elif not isinstance(below, int):
                return depth, text
        if below is None or not (isinstance(below, int) or below in model.model_fields):
            return depth, text
    raise AssertionError(f"no key at {loc}")
