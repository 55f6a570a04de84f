"""A run whose tokenizer is private too: what both cost together, on the same data.

Ponomareva et al. 2022, Appendix C, adds the two up. The composition here is tighter: the Gaussian
of the tokenizer's histogram and the sampled Gaussians of training by PLD, at the sum of both
deltas, of which the threshold's half of the tokenizer's is taken first. Importing it imports no
torch.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from dpft.config.schema import TrainConfig
from dpft.errors import InputError, StateError
from dpft.files import read_file
from dpft.privacy.accounting import Accountants
from dpft.privacy.accounting.mechanism import AccountantError, Composition, SampledGaussian
from dpft.privacy.accounting.search import smallest_noise
from dpft.privacy.histogram_config import NOT_PRIVATE
from dpft.privacy.plan import EXAMPLE, NEIGHBORING_RELATION, PrivacyPlan, SpentBefore
from dpft.privacy.spending import Noise, added_up, as_mechanisms
from dpft.records.ledger import LedgerHead
from dpft.records.privacy_file import read_privacy, read_vocabulary
from dpft.records.promises import PlanPromise, TokenizerCost, WithTokenizer
from dpft.records.vocabularies import OpenVocabulary
from dpft.run_folder import HISTOGRAM, LEDGER, PRIVACY, TOKENIZER, TOKENIZER_CONFIG
from dpft.runs.spending.bounds import account_taken
from dpft.runs.spending.spent_run import SpentRun, read_spent

logger = logging.getLogger(__name__)
PUBLIC_TOKENIZER = (
    "the tokenizer of model.tokenizer has no ledger and is taken as public"
    " (model.tokenizer_is_public=true): epsilon does not cover what made it"
)


def tokenizer_of(config: TrainConfig) -> SpentRun | None:
    """Returns what a private run's tokenizer cost; None where it has no ledger, or there is none.

    Raises:
        InputError: It is not there, its noise was predictable, it protects another unit than the
            run, or it has no ledger where one is needed.
        StateError: Its ledger is damaged, or the tokenizer is not the one that the ledger's run
            reported.
    """
    guarantee, given = config.privacy.guarantee, config.model.tokenizer
    if guarantee is None or given is None:
        return None
    folder = _run_of(given)
    if folder is None:
        _check_public(config)
        return None
    spent = read_spent(str(folder))
    _check_files(folder)
    if spent.plan.reproducible and guarantee.noise_seed is None:
        raise InputError(
            f"model.tokenizer must be private, got {given!r}, whose noise was predictable"
            " (privacy.noise_seed), so that no epsilon holds with it; make a tokenizer without."
        )
    ours = {
        "unit": guarantee.unit,
        "neighboring_relation": NEIGHBORING_RELATION,
        "unit_definition": guarantee.unit_definition(config.task.unit_definition),
    }
    for name, value in ours.items():
        theirs = getattr(spent.plan, name)
        if name == "unit_definition" and (guarantee.unit != EXAMPLE or theirs is None):
            continue  # a named unit is the same one whatever is counted of it
        if theirs != value:
            raise InputError(
                f"model.tokenizer must protect the {name} of the run, {value!r}, got {theirs!r} of"
                f" {folder}: their epsilons protect different things; make a tokenizer for it."
            )
    return spent


def _run_of(given: str) -> Path | None:
    """Returns the folder of the ``dpft tokenizer`` run that a tokenizer is of; None: of none.

    The tokenizer's own folder in the run's is the run's tokenizer too: what it cost must not be
    left out by naming it.

    Raises:
        InputError: There is nothing of that name.
        StateError: It is such a run's, whose ledger is gone.
    """
    place = Path(given).expanduser()
    if not place.exists():
        raise InputError(
            f"model.tokenizer must be the folder of a dpft tokenizer run, or of a tokenizer, got"
            f" {given!r}, which does not exist; put it back, or name it as it is seen from here."
        )
    here = place.resolve()
    for folder in (place, here.parent) if here.name == TOKENIZER else (place,):
        if (folder / LEDGER).exists():
            return folder
        if (folder / HISTOGRAM).exists():
            raise StateError(
                f"{folder / LEDGER} is gone, so that what the tokenizer cost is not known; put it"
                " back as it was."
            )
    return None


def _check_public(config: TrainConfig) -> None:
    """Refuses a tokenizer of which nothing says what it cost, unless it is said to be public."""
    if config.model.tokenizer_is_public:
        return
    place = Path(str(config.model.tokenizer)).expanduser().resolve()
    record = (place.parent if place.name == TOKENIZER else place) / PRIVACY
    is_open = record.exists() and isinstance(read_privacy(record), OpenVocabulary)
    if is_open or any(map(_says_not_private, (place, place / TOKENIZER))):
        raise InputError(
            f"model.tokenizer must be private, got {config.model.tokenizer!r}, made with"
            " privacy=none; make one with privacy.eps, or, where its texts are public, set"
            " model.tokenizer_is_public=true."
        )
    if config.privacy.guarantee is not None and config.privacy.guarantee.total_eps is not None:
        raise InputError(
            f"privacy.total_eps needs a model.tokenizer with a {LEDGER}, got"
            f" {config.model.tokenizer!r}, which has none; give the folder of a dpft tokenizer run,"
            " or privacy.eps."
        )
    if config.task.corpus_form is not None:
        raise InputError(
            f"model.tokenizer={config.model.tokenizer} has no {LEDGER} that says what it cost; give"
            " the folder of a dpft tokenizer run, or, where no private text made it, set"
            " model.tokenizer_is_public=true."
        )
    logger.warning("%s", PUBLIC_TOKENIZER.replace(" (model.tokenizer_is_public=true)", ""))


def _says_not_private(tokenizer: Path) -> bool:
    """Returns whether a tokenizer's own files say that it was made without privacy."""
    try:
        content = json.loads((tokenizer / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # whoever loads it says what is wrong with it
        return False
    return isinstance(content, dict) and NOT_PRIVATE in content


def _check_files(folder: Path) -> None:
    known = read_vocabulary(folder / PRIVACY).tokenizer_sha256
    found = hashlib.sha256(read_file(folder / TOKENIZER / "tokenizer.json")).hexdigest()
    if known != found:
        raise StateError(
            f"{folder / TOKENIZER} is not the tokenizer that {folder / PRIVACY} names; put it back"
            " as it was."
        )


def spent_before(tokenizer: SpentRun | None) -> SpentBefore | None:
    """Returns what a plan says of a tokenizer's cost, so that it is known without its folder."""
    if tokenizer is None or not tokenizer.ledger.mechanisms:
        return None
    return SpentBefore(
        run_id=str(tokenizer.ledger.run_id),
        lines=tokenizer.ledger.lines,
        head=tokenizer.ledger.head,
        delta=tokenizer.plan.delta,
        mechanism=tokenizer.ledger.mechanisms[0],
    )


def delta_with(delta: float, tokenizer: SpentRun) -> float:
    """Returns the delta of both: a training's and its tokenizer's."""
    return delta + tokenizer.plan.delta


def cost_together(
    taken: Mapping[Noise, int], *, epsilon: float, delta: float, tokenizer: SpentRun
) -> WithTokenizer:
    """Returns what a run and its tokenizer cost together.

    Args:
        taken: The run's own noisy steps.
        epsilon: That the run reports by itself.
        delta: At which it does.
        tokenizer: What its tokenizer cost.
    """
    at = delta_with(delta, tokenizer)
    with Accountants() as accountants:
        both = account_taken(added_up(taken, tokenizer.taken), at, "pld", accountants)
        own = account_taken(tokenizer.taken, tokenizer.plan.delta, "prv", accountants)
    return WithTokenizer(
        epsilon_with_tokenizer=min(both.epsilon, epsilon + own.epsilon),
        delta_with_tokenizer=at,
        tokenizer=TokenizerCost(
            epsilon=own.epsilon,
            delta=tokenizer.plan.delta,
            ledger=LedgerHead(lines=tokenizer.ledger.lines, head=tokenizer.ledger.head),
            simple_composition=epsilon + own.epsilon,
        ),
    )


def planned_with_tokenizer(
    config: TrainConfig, plan: PrivacyPlan, promise: PlanPromise
) -> WithTokenizer:
    """Returns what ``dpft plan`` says of a run and its tokenizer together; nothing without one.

    Args:
        config: Of the run.
        plan: Of its steps.
        promise: What the plan says of them alone.
    """
    tokenizer = tokenizer_of(config)
    if tokenizer is None:
        return WithTokenizer()
    noise = Noise(noise_multiplier=plan.noise_multiplier, sample_rate=plan.sample_rate)
    return cost_together(
        {noise: plan.event().steps}, epsilon=promise.epsilon, delta=plan.delta, tokenizer=tokenizer
    )


def noise_beside(
    tokenizer: SpentRun, *, total_eps: float, delta: float, sample_rate: float, steps: int
) -> float:
    """Returns the least noise with which a training and its tokenizer keep within one epsilon.

    Args:
        tokenizer: What was spent already.
        total_eps: Of both, at the sum of their deltas.
        delta: Of the training.
        sample_rate: Of the training.
        steps: Of the training.

    Raises:
        InputError: The tokenizer leaves too little.
    """
    at = delta_with(delta, tokenizer)
    others = as_mechanisms(tokenizer.taken, at)
    left = others[0].delta

    with Accountants() as accountants:

        def together(noise_multiplier: float) -> float:
            own = SampledGaussian(
                noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=left
            )
            found = accountants.evaluate("pld", Composition(parts=(own, *others)))
            assert found.upper is not None
            return found.upper

        try:
            return smallest_noise(together, total_eps, start=1.0)
        except AccountantError as error:
            spent = account_taken(tokenizer.taken, tokenizer.plan.delta, "prv", accountants).epsilon
            raise InputError(
                f"privacy.total_eps={total_eps:g} is out of reach: the tokenizer alone spent"
                f" {spent:.4g} ({error}); raise it."
            ) from error
