"""The configuration section ``privacy``."""

from typing import TYPE_CHECKING, ClassVar, Final, Literal

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.privacy.clipping.options import check_max_grad_norm
from dpft.privacy.plan import CHUNK, EXAMPLE, check_delta, default_delta
from dpft.strict_model import AtLeastOne, Delta, Positive

if TYPE_CHECKING:
    from dpft.privacy.clipping.clipper import ClippingOptions


class PrivacyConfig(Section):
    """Base of the two choices, ``conf/privacy/<name>.yaml``: what both answer to.

    The answers here are those of ordinary training; a guarantee has fields of the same names.
    """

    name: str
    """dp or none; chosen by privacy=NAME."""

    @property
    def guarantee(self) -> "DifferentialPrivacy | None":
        """The settings of the guarantee that training gives, or None where it gives none."""
        return None

    @property
    def has_units(self) -> bool:
        """Whether a unit may have several records."""
        return False

    @property
    def alarm(self) -> str | None:
        """What everybody must be told of a run without a guarantee; None of any other."""
        return None

    @property
    def clips(self) -> "Clipping | None":
        """How each unit's gradient is clipped, with noise or without; None where it is not."""
        return None


class Clipping(PrivacyConfig):
    """How gradients are clipped, which both choices may do."""

    clipping: Literal["flat", "automatic", "automatic_v", "per_layer"] = "flat"
    """flat, automatic (AUTO-S), automatic_v (AUTO-V) or per_layer: how gradients are scaled."""
    groups: tuple[str, ...] | None = None
    """For per_layer: shell patterns over parameter names, one group each; null: one per layer."""
    engine: Literal["auto", "book_keeping", "rows"] = "auto"
    """auto, book_keeping (all rows in one pass) or rows (each row separately): the same sum."""

    @property
    def clipping_norm(self) -> float:
        """The norm that a unit's gradient has at most, where a phase of the method has no own."""
        raise NotImplementedError

    def clipping_options(self, loss_scale: float = 1.0) -> "ClippingOptions":
        """Return what to clip with; ``loss_scale`` is that of the backward pass."""
        from dpft.privacy.clipping.clipper import ClippingOptions

        return ClippingOptions(
            max_grad_norm=self.clipping_norm,
            clipping=self.clipping,
            engine=self.engine,
            groups=self.groups,
            loss_scale=loss_scale,
        )

    def _check_clipping(self) -> None:
        check_max_grad_norm(self.clipping_norm)
        if self.groups is not None and self.clipping != "per_layer":
            raise InputError(
                f"privacy.groups has no effect with privacy.clipping={self.clipping}. Remove the"
                " key, or use per-layer clipping.",
                key="privacy.groups",
                value=self.groups,
                hint="privacy.clipping=per_layer",
            )


class NoPrivacy(Clipping):
    """No noise and no epsilon: ordinary training, or each example clipped as a private run does.

    Clipped, a run is a private one but for its noise: its batches are Poisson draws, too, and what
    divides their sum is the expected batch size.
    """

    num_examples: AtLeastOne | None = Field(default=None, examples=[1000])
    """Number of training examples; null takes the task's."""
    max_grad_norm: float | None = None
    """The clipping norm of each example; null: nothing is clipped."""

    unit: ClassVar[str] = EXAMPLE
    noise_seed: ClassVar[int | None] = None
    show_diagnostics: ClassVar[bool] = True
    """Training losses are shown, which no epsilon covers."""

    def _check_fields(self) -> None:
        if self.max_grad_norm is not None:
            self._check_clipping()
            return
        for name, field in Clipping.model_fields.items():
            if name != "name" and getattr(self, name) != field.default:
                raise InputError(
                    f"privacy.{name}={getattr(self, name)} has no effect with privacy=none, which"
                    " clips no gradients by default. Remove the key, or set a clipping norm.",
                    key=f"privacy.{name}",
                    value=getattr(self, name),
                    hint="privacy.max_grad_norm=1",
                )

    @property
    def clips(self) -> Clipping | None:
        """The settings themselves where there is a clipping norm."""
        return None if self.max_grad_norm is None else self

    @property
    def alarm(self) -> str:
        """What every command says that trains or scores such a run."""
        if self.max_grad_norm is None:
            return "privacy=none: this run is not private"
        return (
            f"privacy=none: this run clips each example's gradient at {self.max_grad_norm:g} and"
            " adds no noise; it is not private"
        )

    @property
    def clipping_norm(self) -> float:
        """The norm that an example's gradient has at most; only where there is one."""
        assert self.max_grad_norm is not None
        return self.max_grad_norm


class DifferentialPrivacy(Clipping):
    """DP-SGD under (eps, delta); one of eps, noise_multiplier and total_eps is given."""

    eps: Positive | None = Field(default=None, examples=[3.0])
    """The promised epsilon, which the noise is calibrated to; give it or noise_multiplier."""
    noise_multiplier: Positive | None = Field(default=None, examples=[1.0])
    """Standard deviation of the noise over the sensitivity, where it is given in place of eps."""
    total_eps: Positive | None = Field(default=None, examples=[4.0])
    """In place of eps: the promised epsilon of model.tokenizer and the training together."""
    delta: Delta | None = Field(default=None, examples=[1e-5])
    """The promised delta; null takes 1 / (10 * num_examples) rounded down to one digit, of a
    published task 1 / (2 * num_examples) (task.default_delta)."""
    num_examples: AtLeastOne | None = Field(default=None, examples=[1000])
    """Public number of training examples, or of units; null takes the task's."""
    unit: str = EXAMPLE
    """Whose contribution is hidden: an example's, or that of all rows of one value of a column,
    such as customer_id."""
    records_per_unit: AtLeastOne = 8
    """Most records of a unit that are trained on, where the unit is a column's value."""
    max_grad_norm: float = 0.1
    """The clipping norm: no example or unit moves a step's sum by more."""
    accountant: Literal["prv", "pld", "rdp"] = "prv"
    """prv, pld or rdp: what calibrates the noise, and leads the report."""
    noise_seed: int | None = None
    """For tests: makes the run reproducible, and so not private."""
    show_diagnostics: bool = False
    """Show training losses and gradient norms, which epsilon does not cover."""
    allow_large_delta: bool = False
    """Train under a delta so large that it promises little."""
    resume_overspend: bool = False
    """Let a resumed run that must draw new noise take all its steps, beyond eps."""
    data_id: str | None = None
    """Your public name of the data, by which dpft account runs=DIR tells runs on other data."""

    def _check_fields(self) -> None:
        given_keys = [name for name in NOISE_KEYS if getattr(self, name) is not None]
        if len(given_keys) != 1:
            got = "both" if given_keys else "neither"
            got = got if self.total_eps is None else "privacy.total_eps too"
            raise InputError(
                f"exactly one of privacy.eps and privacy.noise_multiplier must be given, got {got}."
                " Use privacy=none to train without privacy.",
                key="privacy.eps",
                hint="privacy.eps=3",
            )
        check_unit(self.unit)
        self._check_clipping()

    @property
    def has_units(self) -> bool:
        """Whether a unit may have several records."""
        return self.unit not in (EXAMPLE, CHUNK)

    @property
    def guarantee(self) -> "DifferentialPrivacy":
        """The settings themselves."""
        return self

    @property
    def clips(self) -> Clipping:
        """The settings themselves."""
        return self

    @property
    def clipping_norm(self) -> float:
        """``max_grad_norm``."""
        return self.max_grad_norm

    @property
    def has_budget(self) -> bool:
        """Whether an epsilon was promised, alone or with a tokenizer's, and not noise given."""
        return self.eps is not None or self.total_eps is not None

    def unit_definition(self, record: str) -> str:
        """Return what the unit is, in words that follow "the unit is".

        Args:
            record: What a record of the task is, in words that follow "one".
        """
        if self.unit == CHUNK:
            return (
                f"one chunk, a stretch of tokens of one {record}; a record of several chunks is"
                " hidden less: epsilon is of each chunk alone"
            )
        if not self.has_units:
            return f"one {record}"
        return (
            f"all records with one value of {self.unit}, of which at most {self.records_per_unit} "
            "are trained on"
        )


def check_unit(unit: str) -> None:
    """Reject a unit without a name."""
    if not unit.strip():
        raise InputError(
            "privacy.unit must be example, or the name of a column such as customer_id, got"
            f" {unit!r}.",
            key="privacy.unit",
            value=unit,
            hint="privacy.unit=example",
        )


Privacy = DifferentialPrivacy | NoPrivacy
"""The section ``privacy`` of a training."""
NOISE_KEYS = ("eps", "noise_multiplier", "total_eps")
"""Of which one says how much noise there is."""
PRIVACY_CHOICES: dict[str, type[PrivacyConfig]] = {"dp": DifferentialPrivacy, "none": NoPrivacy}


def privacy_class(name: str) -> type[PrivacyConfig]:
    """Return the configuration class of ``privacy=<name>``.

    Raises:
        InputError: There is no such choice.
    """
    if name not in PRIVACY_CHOICES:
        raise InputError(
            f"privacy must be one of {', '.join(PRIVACY_CHOICES)}, got {name!r}.",
            key="privacy",
            value=name,
        )
    return PRIVACY_CHOICES[name]


HISTOGRAM: Final = "histogram"
NONE: Final = "none"
NOT_PRIVATE = "made_without_privacy"
"""Key of a tokenizer's own tokenizer_config.json, which goes with it wherever it is copied."""


class HistogramPrivacy(Section):
    """(eps, delta) for a histogram of words; noise is given by eps, or by tokenizer.noise_std."""

    name: Literal["histogram", "none"] = HISTOGRAM
    """What is private: a histogram of words; none (privacy=none): nothing, and no word is left out,
    for comparison and for public texts."""
    eps: Positive | None = Field(default=None, examples=[3.0])
    """The promised epsilon, which the noise is calibrated to; give it or tokenizer.noise_std."""
    delta: Delta | None = Field(default=None, examples=[1e-5])
    """The promised delta, half of it for the noise, half for the threshold; null takes
    1 / (10 * num_examples), of a published task 1 / (2 * num_examples) (task.default_delta)."""
    num_examples: AtLeastOne | None = Field(default=None, examples=[1000])
    """Public number of records, or of units; null takes the task's, or counts what is read."""
    unit: str = EXAMPLE
    """Whose words are hidden: a record's, or those of all rows of one value of a column, such as
    customer_id."""
    allow_large_delta: bool = False
    """Release under a delta so large that it promises little."""
    noise_seed: int | None = None
    """For tests: makes the noise reproducible, and so not private."""

    def _check_fields(self) -> None:
        if not self.promises:
            promised = [
                key for key in ("eps", "delta", "noise_seed") if getattr(self, key) is not None
            ]
            if promised or self.has_units:
                key = f"privacy.{[*promised, 'unit'][0]}"
                raise InputError(
                    f"{key} has no effect with privacy=none, which counts words without a privacy"
                    f" guarantee. Remove {key}, or privacy=none.",
                    key=key,
                )
        check_unit(self.unit)
        if self.unit == CHUNK:
            raise InputError(
                "privacy.unit=chunk is supported only by dpft train, because a tokenizer counts"
                " words in whole records. Use the same unit for both.",
                key="privacy.unit",
                value=self.unit,
                hint="privacy.unit=example",
            )

    @property
    def promises(self) -> bool:
        """Whether there is a guarantee: noise, a threshold and a ledger."""
        return self.name != NONE

    @property
    def has_units(self) -> bool:
        """Whether a unit is all records of one value of a column."""
        return self.unit != EXAMPLE

    def delta_for(self, num_examples: int, rule: str) -> float:
        """Return delta: the given one, or what ``default_delta`` makes of the number of units.

        Raises:
            InputError: It promises nothing, and ``allow_large_delta`` does not say so.
        """
        delta = default_delta(num_examples, rule) if self.delta is None else self.delta
        check_delta(delta, num_examples=num_examples, allow_large=self.allow_large_delta)
        return delta
