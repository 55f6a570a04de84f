"""Every number that a user may set is refused by its key where its type or range is wrong."""

import copy
import functools
from typing import Any

import pytest
from omegaconf import OmegaConf

from dpft.config import schema
from dpft.config.hydra_compose import compose
from dpft.config.load import load
from dpft.strict_model import members
from tests.rejections import rejects
from tests.slowness import slow_but_every

SECTIONS = ("privacy", "train", "eval", "decode", "optimizer", "scheduler", "metrics", "task")
NOT_A_NUMBER = ("text", "1", True, [1], float("nan"), float("inf"), -float("inf"))
WHOLE = (1.5,)
"""Wrong for a count, and so is what ``NOT_A_NUMBER`` holds."""
POSITIVE, NOT_NEGATIVE, FRACTION, ANY = (-1, 0), (-1,), (-1, 0, 1, 2), ()
HUGE = 10**30
OUT_OF_RANGE: dict[str, tuple[float, ...]] = {
    "privacy.eps": POSITIVE,
    "privacy.noise_multiplier": POSITIVE,
    "privacy.total_eps": POSITIVE,
    "privacy.delta": FRACTION,
    "privacy.num_examples": POSITIVE,
    "privacy.records_per_unit": POSITIVE,
    "privacy.max_grad_norm": POSITIVE,
    "privacy.noise_seed": ANY,
    "train.expected_batch_size": POSITIVE,
    "train.micro_batch_size": POSITIVE,
    "train.micro_batch_tokens": POSITIVE,
    "train.pad_to_multiple_of": POSITIVE,
    "train.epochs": POSITIVE,
    "train.steps": POSITIVE,
    "train.learning_rate": NOT_NEGATIVE,
    "train.weight_decay": NOT_NEGATIVE,
    "train.seed": (*NOT_NEGATIVE, HUGE),
    "train.num_threads": (*POSITIVE, HUGE),
    "train.loss_scale": POSITIVE,
    "train.checkpoint_every": POSITIVE,
    "train.keep": POSITIVE,
    "eval.limit": POSITIVE,
    "eval.batch_size": POSITIVE,
    "eval.every_epochs": POSITIVE,
    "eval.every_steps": POSITIVE,
    "eval.held_out": FRACTION,
    "decode.num_beams": POSITIVE,
    "decode.max_new_tokens": POSITIVE,
    "decode.length_penalty": ANY,
    "decode.no_repeat_ngram_size": NOT_NEGATIVE,
    "decode.repetition_penalty": POSITIVE,
    "decode.top_p": (-1, 0, 2),
    "decode.temperature": POSITIVE,
    "decode.seed": NOT_NEGATIVE,
    "optimizer.beta1": (-1, 1, 2),
    "optimizer.beta2": (-1, 1, 2),
    "optimizer.eps": POSITIVE,
    "scheduler.warmup_steps": NOT_NEGATIVE,
    "scheduler.timescale": POSITIVE,
    "metrics.bertscore_layers": POSITIVE,
    "task.num_train_examples": POSITIVE,
    "task.embedded_num_train_examples": POSITIVE,
    "task.max_length": POSITIVE,
    "task.typical_length": POSITIVE,
}
"""Key to numbers of its own type that it must refuse."""


@functools.cache
def defaults() -> dict[str, Any]:
    """What ``dpft train`` composes."""
    composed = compose("train", ["privacy.noise_multiplier=1"], schema.TrainCommand)
    values: dict[str, Any] = OmegaConf.to_container(composed.values, resolve=True)
    return values


def configured(values: dict[str, Any]) -> schema.TrainCommand:
    config: schema.TrainCommand = load(OmegaConf.create(values), schema.TrainCommand)
    return config


@functools.cache
def number_keys() -> dict[str, set[Any]]:
    """Every key of conf/ in the sections whose type is a number, and its types."""
    config = configured(defaults())
    found = {}
    for section in SECTIONS:
        for name, field in type(getattr(config, section)).model_fields.items():
            types = set(members(field.annotation))
            if types & {int, float}:
                found[f"{section}.{name}"] = types
    return found


@pytest.mark.slow
def test_the_table_names_every_number_that_can_be_set() -> None:
    assert set(number_keys()) == set(OUT_OF_RANGE)


@pytest.mark.slow
@pytest.mark.parametrize("key", slow_but_every(8, OUT_OF_RANGE))
def test_a_number_of_wrong_type_sign_or_range_is_refused_by_its_key(key: str) -> None:
    values = OmegaConf.create(defaults())
    if key == "privacy.eps":
        values.privacy.noise_multiplier = None
    whole = WHOLE if float not in number_keys()[key] else ()
    for value in (*NOT_A_NUMBER, *whole, *OUT_OF_RANGE[key]):
        OmegaConf.update(values, key, value, merge=False)
        with rejects() as faults:
            load(values, schema.TrainCommand)
        # the clipper's own checks name its arguments, and the command line their keys
        assert [fault.key for fault in faults] in ([key], [key.partition(".")[2]]), value


@pytest.mark.parametrize("both", [True, False])
def test_exactly_one_of_epsilon_and_noise_is_taken(both: bool) -> None:
    values = copy.deepcopy(defaults())
    values["privacy"] |= (
        {"eps": 3.0, "noise_multiplier": 1.0} if both else {"noise_multiplier": None}
    )
    with rejects("privacy.eps"):
        configured(values)


@pytest.mark.parametrize("epochs", [None, 10])
def test_steps_that_are_null_follow_epochs_and_epochs_that_are_null_are_ten(
    epochs: int | None,
) -> None:
    values = copy.deepcopy(defaults())
    values["train"] |= {"epochs": epochs, "steps": None}
    train = configured(values).train.for_own_data(42061, method="full", is_user_data=False)
    assert train.planned_steps(42061) == 410
