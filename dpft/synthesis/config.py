"""The configuration of ``dpft synthesize``, conf/synthesize.yaml."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from omegaconf import DictConfig
from pydantic import Field

from dpft.config.hydra_compose import Words, given_overrides
from dpft.config.load import load, load_saved
from dpft.config.output_keys import Output
from dpft.config.schema import AnyMethod, AnyOptimizer, check_units_fit
from dpft.config.section import ChosenBy, CrossCheck, Root, Section, by_name
from dpft.errors import InputError
from dpft.generation.decoding import DecodeConfig
from dpft.models.source import ModelConfig
from dpft.privacy.plan import CHUNK
from dpft.privacy.privacy_config import (
    DifferentialPrivacy,
    NoPrivacy,
    privacy_class,
)
from dpft.run_folder import SYNTHESIS
from dpft.strict_model import AtLeastOne, Count, Positive, values_of
from dpft.training.optimizers import SchedulerConfig
from dpft.training.training_config import TrainingConfig

DRAFT = "draft"
"""The value of ``schema`` that requests a draft."""
ENDINGS = (".csv", ".jsonl", ".parquet")


class SharedPrivacy(DifferentialPrivacy):
    """One epsilon for the histogram of the condition and the training together."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The share of epsilon that the histogram spends by itself."""

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.eps is None:
            raise InputError(
                "dpft synthesize needs privacy.eps instead of noise_multiplier or total_eps,"
                " because the histogram and the training share one epsilon.",
                key="privacy.eps",
                hint="privacy.eps=4",
            )
        if self.unit == CHUNK:
            raise InputError(
                "privacy.unit must be example or a column, got chunk, because rows of a table are"
                " not split into chunks.",
                key="privacy.unit",
                value=CHUNK,
                hint="privacy.unit=example",
            )


class OpenSynthesis(NoPrivacy):
    """No noise in the histogram and the training, for comparison and for public tables."""

    share: float = 0.05
    """Not used without privacy."""


CLASSES = {DifferentialPrivacy: SharedPrivacy, NoPrivacy: OpenSynthesis}
SynthesisPrivacy = Annotated[
    SharedPrivacy | OpenSynthesis, ChosenBy(by_name(lambda name: CLASSES[privacy_class(name)]))
]


class DrawConfig(DecodeConfig):
    """How rows are drawn; the schema determines their length."""

    max_new_tokens: int | None = None  # type: ignore[assignment]
    """Cannot be set; it follows from the schema's ``max_tokens``."""

    def _check_fields(self) -> None:
        if self.max_new_tokens is not None:
            raise InputError(
                "decode.max_new_tokens follows from the schema's max_tokens. Remove the key.",
                key="decode.max_new_tokens",
                value=self.max_new_tokens,
            )
        self.limited_to(1)
        if not self.draws:
            raise InputError(
                f"decode must be nucleus, got {self.strategy}, which generates the same row each"
                " time.",
                key="decode",
                value=self.strategy,
                hint="decode=nucleus",
            )

    def limited_to(self, max_new_tokens: int) -> DecodeConfig:
        """Return the settings for generating at most ``max_new_tokens`` tokens."""
        values = values_of(self, DecodeConfig)
        return DecodeConfig(**(values | {"max_new_tokens": max_new_tokens}))


class ControlConfig(Section):
    """Configuration of the controls: rows that neither the histogram nor the model uses."""

    held_out: Annotated[float, Field(gt=0, lt=1)] | None = 0.1
    """Share of the rows or units that are controls; null uses no controls and writes no private
    page."""
    limit: AtLeastOne = 2000
    """Maximum number of rows of each kind that the private page compares."""


class SynthesizeConfig(Root):
    """The configuration of ``dpft synthesize``: a private table in, a synthetic table out."""

    command_examples: ClassVar[tuple[str, ...]] = (
        "data=visits.csv schema=draft",
        "data=visits.csv privacy.eps=4",
        "data=visits.csv privacy.eps=4 privacy.unit=patient condition=[ward,year] num=10000",
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "data",
        "schema",
        "privacy.eps",
        "privacy.unit",
        "condition",
        "num",
        "to",
        "model",
        "method",
        "train.epochs",
    )

    model: ModelConfig
    method: AnyMethod
    privacy: SynthesisPrivacy
    train: TrainingConfig
    optimizer: AnyOptimizer
    scheduler: SchedulerConfig
    decode: DrawConfig = Field(default_factory=lambda: DrawConfig(strategy="nucleus"))
    eval: ControlConfig = Field(default_factory=ControlConfig)
    data: str | None = None
    """File of the private table."""
    schema_file: str | None = Field(default=None, alias="schema")
    """File that declares the public facts of the table, or draft to write a draft; null takes the
    data's name with the ending .schema.yaml."""
    condition: tuple[str, ...] = ()
    """Columns whose joint histogram determines the number of rows of each kind."""
    num: AtLeastOne | None = Field(default=None, examples=[1000])
    """Rows to write; null takes the public number of rows or units."""
    to: str | None = None
    """File to write, .csv, .jsonl or .parquet; null takes synthetic.csv in the run's folder."""
    form: Literal["object", "array"] = "object"
    """Format in which the model reads and writes a row: object with column names, or array without
    names."""
    text_weight: Positive = 1.0
    """Loss weight of the tokens of a text; the tokens of other columns have weight 1."""
    invalid: Literal["error", "missing", "skip"] = "error"
    """Treatment of a row that the schema does not allow: error rejects the data, missing empties
    the cell, and skip skips the row. If the cell may not be empty, missing skips the row."""
    retries: Count = 5
    """Maximum number of times that a row is drawn again because it breaks a rule between columns or
    cannot be parsed."""
    batch_size: AtLeastOne = 64
    """Rows generated at once; affects only memory and speed."""
    resume: str | None = None
    """Folder of an interrupted synthesis."""
    output: Output = "table"
    """table for people, or json for one object on stdout."""

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = ((("privacy", "train"), check_units_fit),)

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.data is None and self.resume is None:
            raise InputError(
                "data must be the file of a table, got none. To continue a synthesis, use"
                " resume=RUN.",
                key="data",
                hint="data=notes.csv",
            )
        if self.to is not None and not self.to.endswith(ENDINGS):
            raise InputError(
                f"to must end in {', '.join(ENDINGS)}, got {self.to!r}.", key="to", value=self.to
            )


def expand(overrides: list[str]) -> list[str]:
    """Return the overrides, preceded by ``method=lora`` for a large model without a method.

    A draft of a schema draws no noise, so a missing epsilon is set to an arbitrary value.
    """
    values = given_overrides(overrides)
    if values.get("schema") == DRAFT and "privacy.eps" not in values:
        overrides = [*overrides, "privacy.eps=1"]
    is_small = values.get("model") == "tiny" or {"method", "resume"} & set(values)
    return overrides if is_small else ["method=lora", *overrides]


def configuration(composed: DictConfig, words: Words) -> SynthesizeConfig:
    """Return the composed configuration, or with ``resume=RUN`` that synthesis's configuration.

    Raises:
        InputError: The configuration is incomplete or invalid, or ``resume`` is combined with any
            key except ``output``.
    """
    if composed.get("resume") is None:
        return load(composed, SynthesizeConfig)
    others = sorted(set(words.keys) - {"resume", "output"})
    if others:
        raise InputError(
            f"dpft synthesize resume=RUN keeps all settings, got {others[0]} too. Remove the key.",
            key=others[0],
        )
    folder = str(composed.resume)
    path = Path(folder) / SYNTHESIS
    saved: SynthesizeConfig = load_saved(path, SynthesizeConfig)
    return saved.replace(resume=folder, output=str(composed.output))
