"""Configuration section ``privacy``."""

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
    """Base of both choices in ``conf/privacy/<name>.yaml``, with the properties that they share.

    The values here describe training without a guarantee. ``DifferentialPrivacy`` overrides them.
    """

    name: str
    """dp or none; chosen by privacy=NAME."""

    @property
    def guarantee(self) -> "DifferentialPrivacy | None":
        """Settings of the privacy guarantee, or None if training gives no guarantee."""
        return None

    @property
    def has_units(self) -> bool:
        """Whether a privacy unit can contain several records."""
        return False

    @property
    def alarm(self) -> str | None:
        """Warning that dpft must show for a run without a guarantee; None for a private run."""
        return None

    @property
    def clips(self) -> "Clipping | None":
        """Settings for clipping gradients, with or without noise; None if nothing is clipped."""
        return None


class Clipping(PrivacyConfig):
    """Settings of gradient clipping, which private and non-private training share."""

    clipping: Literal["flat", "automatic", "automatic_v", "per_layer"] = "flat"
    """How gradients are scaled: flat, automatic (AUTO-S), automatic_v (AUTO-V) or per_layer."""
    groups: tuple[str, ...] | None = None
    """For per_layer: shell patterns over parameter names, one group per pattern. null: one group
    per layer."""
    engine: Literal["auto", "book_keeping", "rows"] = "auto"
    """Clipping engine: book_keeping (all rows in one pass), rows (each row separately) or auto. All
    compute the same sum."""

    @property
    def clipping_norm(self) -> float:
        """Clipping norm of each unit's gradient in phases that do not set their own norm."""
        raise NotImplementedError

    def clipping_options(self, loss_scale: float = 1.0) -> "ClippingOptions":
        """Return the options of the clipper.

        Args:
            loss_scale: Loss scale of the backward pass.
        """
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
    """Training without noise and epsilon, optionally with clipped gradients.

    With ``max_grad_norm``, a run differs from a private run only in its noise. Its batches are
    Poisson draws, and the sum of gradients is divided by the expected batch size.
    """

    num_examples: AtLeastOne | None = Field(default=None, examples=[1000])
    """Number of training examples. null: the number that the task states."""
    max_grad_norm: float | None = None
    """Clipping norm of each example's gradient. null: no clipping."""

    unit: ClassVar[str] = EXAMPLE
    noise_seed: ClassVar[int | None] = None
    show_diagnostics: ClassVar[bool] = True
    """Training losses are shown. No epsilon covers them."""

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
        """The settings themselves, or None if there is no clipping norm."""
        return None if self.max_grad_norm is None else self

    @property
    def alarm(self) -> str:
        """Warning that every command shows when it trains or evaluates such a run."""
        if self.max_grad_norm is None:
            return "privacy=none: this run is not private"
        return (
            f"privacy=none: this run clips each example's gradient at {self.max_grad_norm:g} and"
            " adds no noise; it is not private"
        )

    @property
    def clipping_norm(self) -> float:
        """Clipping norm of each example's gradient. There must be one."""
        assert self.max_grad_norm is not None
        return self.max_grad_norm


class DifferentialPrivacy(Clipping):
    """DP-SGD with (eps, delta); exactly one of eps, noise_multiplier and total_eps is given."""

    eps: Positive | None = Field(default=None, examples=[3.0])
    """Target epsilon, to which the noise is calibrated. Set exactly one of eps, noise_multiplier
    and total_eps."""
    noise_multiplier: Positive | None = Field(default=None, examples=[1.0])
    """Standard deviation of the noise divided by the sensitivity. Set it instead of eps."""
    total_eps: Positive | None = Field(default=None, examples=[4.0])
    """Target epsilon of the tokenizer (model.tokenizer) and the training together. Set it instead
    of eps."""
    delta: Delta | None = Field(default=None, examples=[1e-5])
    """Target delta. null: 1 / (10 * num_examples) rounded down to one digit, or 1 / (2 *
    num_examples) for a published task (see task.default_delta)."""
    num_examples: AtLeastOne | None = Field(default=None, examples=[1000])
    """Public number of training examples, or of privacy units. null: the number that the task
    states."""
    unit: str = EXAMPLE
    """The privacy unit, which is hidden as a whole: one example, or all rows with the same value of
    a column such as customer_id."""
    records_per_unit: AtLeastOne = 8
    """Maximum number of records per unit that are used for training, if the unit is a column."""
    max_grad_norm: float = 0.1
    """Clipping norm: one example or unit changes the gradient sum of a step by at most this L2
    norm."""
    accountant: Literal["prv", "pld", "rdp"] = "prv"
    """Accountant that calibrates the noise and gives the headline epsilon: prv, pld or rdp."""
    noise_seed: int | None = None
    """For tests only: makes the run reproducible, and therefore not private."""
    show_diagnostics: bool = False
    """Show training losses and gradient norms, which epsilon does not cover."""
    allow_large_delta: bool = False
    """Allow a delta so large that the guarantee is weak."""
    resume_overspend: bool = False
    """Let a resumed run that must draw new noise take all planned steps, even if this exceeds
    eps."""
    data_id: str | None = None
    """Your public name for the data. dpft account runs=DIR uses this name to recognize runs on
    other data."""

    def _check_fields(self) -> None:
        given_keys = [name for name in NOISE_KEYS if getattr(self, name) is not None]
        if len(given_keys) != 1:
            got = ", ".join(f"privacy.{name}" for name in given_keys) or "none"
            raise InputError(
                "exactly one of privacy.eps, privacy.noise_multiplier and privacy.total_eps must be"
                f" given, got {got}. Use privacy=none to train without privacy.",
                key="privacy.eps",
                hint="privacy.eps=3",
            )
        check_unit(self.unit)
        self._check_clipping()

    @property
    def has_units(self) -> bool:
        """Whether a privacy unit can contain several records."""
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
        """Whether a target epsilon (``eps`` or ``total_eps``) was set, and not the noise."""
        return self.eps is not None or self.total_eps is not None

    def unit_definition(self, record: str) -> str:
        """Return the definition of the privacy unit, as a phrase that follows "the unit is".

        Args:
            record: Description of a record of the task, as a phrase that follows "one".
        """
        if self.unit == CHUNK:
            return (
                f"one chunk, a span of tokens of one {record}; epsilon protects single chunks, so a"
                " record of several chunks is protected less"
            )
        if not self.has_units:
            return f"one {record}"
        return (
            f"all records with one value of {self.unit}, of which at most {self.records_per_unit} "
            "are trained on"
        )


def check_unit(unit: str) -> None:
    """Reject an empty name of a privacy unit."""
    if not unit.strip():
        raise InputError(
            "privacy.unit must be example, or the name of a column such as customer_id, got"
            f" {unit!r}.",
            key="privacy.unit",
            value=unit,
            hint="privacy.unit=example",
        )


Privacy = DifferentialPrivacy | NoPrivacy
"""The section ``privacy`` of a training run."""
NOISE_KEYS = ("eps", "noise_multiplier", "total_eps")
"""Keys of the three ways to set the noise; exactly one of them must be given."""
PRIVACY_CHOICES: dict[str, type[PrivacyConfig]] = {"dp": DifferentialPrivacy, "none": NoPrivacy}


def privacy_class(name: str) -> type[PrivacyConfig]:
    """Return the configuration class of ``privacy=<name>``.

    Raises:
        InputError: There is no choice of this name.
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
"""Key in a tokenizer's tokenizer_config.json, which is copied together with the tokenizer."""


class HistogramPrivacy(Section):
    """(eps, delta) for a histogram of words; the noise is set by eps or by tokenizer.noise_std."""

    name: Literal["histogram", "none"] = HISTOGRAM
    """histogram: a private histogram of words. none (privacy=none): no privacy, and no word is
    dropped. Use none for comparison and for public texts."""
    eps: Positive | None = Field(default=None, examples=[3.0])
    """Target epsilon, to which the noise is calibrated. Set either eps or tokenizer.noise_std."""
    delta: Delta | None = Field(default=None, examples=[1e-5])
    """Target delta, half for the noise and half for the threshold. null: 1 / (10 * num_examples),
    or 1 / (2 * num_examples) for a published task (see task.default_delta)."""
    num_examples: AtLeastOne | None = Field(default=None, examples=[1000])
    """Public number of records, or of privacy units. null: the number that the task states, or else
    the number of records read."""
    unit: str = EXAMPLE
    """The privacy unit, whose words are hidden: one record (example), or all rows with the same
    value of a column such as customer_id."""
    allow_large_delta: bool = False
    """Allow a delta so large that the guarantee is weak."""
    noise_seed: int | None = None
    """For tests only: makes the noise reproducible, and therefore not private."""

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
        """Whether the tokenizer is private: with noise, a threshold and a ledger."""
        return self.name != NONE

    @property
    def has_units(self) -> bool:
        """Whether a unit consists of all records that share a value of a column."""
        return self.unit != EXAMPLE

    def delta_for(self, num_examples: int, rule: str) -> float:
        """Return the given delta, or ``default_delta`` of the number of units.

        Raises:
            InputError: delta is too large, and ``allow_large_delta`` is off.
        """
        delta = default_delta(num_examples, rule) if self.delta is None else self.delta
        check_delta(delta, num_examples=num_examples, allow_large=self.allow_large_delta)
        return delta
