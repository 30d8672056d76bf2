"""Every section and key of the YAML, with its type, range and default: the one list of them.

pydantic checks the values; the description of a key is what a message expects ("expected a whole
number of at least 1, got ...") and what the JSON Schema for editors shows. Keys whose feature is
not built yet stand here too, so that they are refused by name (`NOT_YET`) and never ignored.
Only rank 0 imports this module.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field
from pydantic import ConfigDict as ModelConfig

from microtrain.train.duration import Duration

Count = Annotated[int, Field(ge=1, description="a whole number of at least 1")]
Seed = Annotated[int, Field(ge=0, lt=2**63, description="a whole number from 0 to 2**63 - 1")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number greater than 0")]
Flag = Annotated[bool, Field(description="true or false")]
Text = Annotated[str, Field(min_length=1, description="a text")]
Fraction = Annotated[
    float, Field(gt=0, le=1, allow_inf_nan=False, description="a fraction above 0, at most 1")
]
Span = Annotated[
    str,
    AfterValidator(Duration),
    Field(description="a duration such as `20 epochs`, `500 steps` or `5%`"),
]


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


Part = Annotated[Fraction | None, Field(description="a fraction above 0, at most 1, or null")]
MaybePositive = Annotated[Positive | None, Field(description="a number greater than 0, or null")]
MaybeText = Annotated[Text | None, Field(description="a text, or null")]
AutoSpan = Annotated[
    Literal["auto"] | Span, Field(description="auto, or a duration such as `100 steps`")
]
AutoFlag = Annotated[Literal["auto"] | bool, Field(description="auto, true or false")]
AutoCount = Annotated[Literal["auto"] | Count, Field(description="auto, or a whole number above 0")]
AutoPositive = Annotated[
    Literal["auto"] | Positive, Field(description="auto, or a number greater than 0")
]


class Section(BaseModel):
    """Unknown keys are refused and no value is converted, except a whole number to a float."""

    model_config = ModelConfig(extra="forbid", strict=True, validate_default=True)


class Component(Section):
    """`{type: NAME, ...arguments}`; the arguments are checked against NAME's own signature."""

    model_config = ModelConfig(extra="allow")

    type: Text


class Split(Section):
    """Fractions of the samples, which add up to 1."""

    train: Fraction
    val: Part = None
    test: Part = None


class Data(Component):
    """Where the samples come from, and what is done to them on the way."""

    split: Annotated[
        Split, Field(description="fractions such as {train: 0.8, val: 0.1, test: 0.1}")
    ] = Split(train=1.0)
    standardize: Flag = False


class Train(Section):
    """One optimiser step takes `batch_size` samples over all ranks."""

    duration: Annotated[
        str,
        AfterValidator(_whole_run),
        Field(description="a duration such as `20 epochs` or `500 steps`"),
    ]
    batch_size: Count
    accumulate: Count = 1
    clip_norm: MaybePositive = None
    eval_every: Span = "1 epoch"
    max_time: Annotated[
        Annotated[str, AfterValidator(_clock)] | None, Field(description="a time such as `10 min`")
    ] = None
    shuffle: Flag = True
    drop_last: Flag = False
    nan: Annotated[Literal["stop", "skip"], Field(description="stop or skip")] = "stop"
    compile: Annotated[
        Literal["auto", "numpy", "numba", "off"], Field(description="auto, numpy, numba or off")
    ] = "auto"
    init_from: MaybeText = None


class Checkpoint(Section):
    """When checkpoints are written and which are kept; one is always written at the end."""

    every: Span = "1 epoch"
    keep_last: Count = 2
    keep_best: Annotated[int, Field(ge=0, description="a whole number of at least 0")] = 1
    monitor: MaybeText = None  # val/loss with validation data, else train/loss
    mode: Annotated[Literal["min", "max"], Field(description="min or max")] = "min"


class Log(Section):
    """Rows of the report: `auto` keeps them at 200 or fewer a run."""

    every: AutoSpan = "auto"


class Distributed(Section):
    """How the ranks work together."""

    backend: Annotated[
        Literal["auto", "none", "mpi", "threads", "nccl"],
        Field(description="auto, none or mpi"),
    ] = "auto"
    bucket_mb: AutoPositive = "auto"
    overlap: AutoFlag = "auto"
    compression: Annotated[
        Literal["none", "fp16", "bf16"], Field(description="none, fp16 or bf16")
    ] = "none"
    sync_batchnorm: Flag = True
    reproducible: Annotated[Literal["run", "world"], Field(description="run or world")] = "run"
    shards: Count = 8
    warn_s: Positive = 30.0
    timeout_s: Positive = 600.0
    blas_threads: AutoCount = "auto"
    share_gpu: Flag = False


A_COMPONENT = "a registered name, ./file.py:Name, or {type: NAME, ...arguments}"
AnyComponent = Annotated[Component, Field(description=A_COMPONENT)]
Keys = Field(description="keys and values, indented below it")


class Config(Section):
    """One YAML file: one run."""

    name: Annotated[
        str,
        Field(
            pattern=r"^\w[\w .-]{0,99}$",
            description="a name for a directory: letters, digits, spaces, . _ -",
        ),
    ]
    seed: Seed = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="auto, cpu or cuda")] = (
        "auto"
    )
    dtype: Annotated[Literal["float32", "float64"], Field(description="float32 or float64")] = (
        "float32"
    )
    data: Annotated[Data, Field(description=A_COMPONENT)]
    model: AnyComponent
    loss: AnyComponent
    metrics: Annotated[list[AnyComponent], Field(description="a list such as [r2]")] = []
    optimizer: AnyComponent
    schedule: AnyComponent | None = None
    train: Annotated[Train, Keys]
    checkpoint: Annotated[Checkpoint, Keys] = Checkpoint()
    log: Annotated[Log, Keys] = Log()
    distributed: Annotated[Distributed, Keys] = Distributed()
    callbacks: Annotated[list[AnyComponent], Field(description="a list of callbacks")] = []
    run_dir: Text = "runs"
    base: MaybeText = None
    trainer: MaybeText = None


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
    "base": (None,),
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


def expected(loc: tuple[str | int, ...]) -> tuple[int, str]:
    """How many parts of pydantic's error location name a key, and what that key expects.

    The rest of a location names branches of a union, which are not the user's business.
    """
    model: type[BaseModel] = Config
    for depth, part in enumerate(loc, 1):
        below = loc[depth] if depth < len(loc) else None
        if isinstance(part, int):  # an item of a list of components
            model, description = Component, A_COMPONENT
        else:
            field = model.model_fields[part]
            description = field.description or "another value"
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                model = field.annotation
            elif not isinstance(below, int):
                return depth, description
        if below is None or not (isinstance(below, int) or below in model.model_fields):
            return depth, description
    raise AssertionError(f"no key at {loc}")
