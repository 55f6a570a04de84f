from dataclasses import replace

import pytest

from dpft.data.canaries import CanaryConfig
from dpft.errors import InputError
from dpft.privacy.privacy_config import DifferentialPrivacy, NoPrivacy
from dpft.runs.run_plan import plan_run, public_size, with_batch_size
from dpft.tasks.e2e import E2ETask
from tests.config.test_conf import loaded

TASK = E2ETask(name="e2e", source="url", num_train_examples=42061, embedded_num_train_examples=80)
DP = DifferentialPrivacy(name="dp", eps=3.0)


def of(task, privacy, **audit):
    config = loaded("train", ["privacy.eps=3"])
    return replace(config, task=task, privacy=privacy, audit=CanaryConfig(**audit))


def never() -> int:
    pytest.fail("the rows were counted")


@pytest.mark.parametrize(
    "privacy", [replace(DP, num_examples=40000), NoPrivacy(name="none", num_examples=40000)]
)
def test_the_users_number_of_examples_leads(privacy) -> None:
    size = public_size(of(TASK, privacy), never)
    assert (size.num_examples, size.source) == (40000, "privacy.num_examples")


def test_a_published_size_stands_where_the_data_are_the_published_ones() -> None:
    assert public_size(of(TASK, DP), never).num_examples == 42061
    assert public_size(of(replace(TASK, source="embedded"), DP), never).num_examples == 80


def test_local_rows_are_counted() -> None:
    size = public_size(of(replace(TASK, data_dir="x"), DP), lambda: 12)
    assert (size.num_examples, size.source) == (12, "counted in the data")


def test_every_canary_counts_whatever_its_coin_says() -> None:
    size = public_size(of(TASK, DP, canaries=100, exposure_canaries=2), never)
    assert size.num_examples == 42061 + 100 + 2 * (1 + 10 + 100)
    assert size.source == "published size of task e2e, with 322 canaries added"


def test_all_copies_of_a_canary_are_one_units() -> None:
    size = public_size(
        of(TASK, replace(DP, unit="customer"), canaries=100, exposure_canaries=2), lambda: 120
    )
    assert size.num_examples == 120 + 100 + 2 * 3


def test_a_transferred_sample_rate_sets_the_batch_size_for_this_tasks_size(caplog) -> None:
    """Li et al. 2022, Appendix L: QQP at the sample rate of SST-2 in batches of 1024."""
    config = loaded("train", ["experiment=li2022_qqp", "privacy.eps=3"])
    with caplog.at_level("INFO"):
        transferred = with_batch_size(config, never)
    assert transferred.train.expected_batch_size == round(1024 / 67349 * 363846) == 5532
    assert "train.expected_batch_size=5532: the sample rate of sst2" in caplog.text
    # Written to config.yaml so, it is not transferred a second time.
    assert transferred.train.transfer_sample_rate_from is None
    assert with_batch_size(transferred, never) is transferred


def test_a_batch_larger_than_the_other_tasks_data_is_refused() -> None:
    words = ["task=qqp", "model=roberta-base", "privacy.eps=3", "train.expected_batch_size=9000"]
    config = loaded("train", [*words, "train.transfer_sample_rate_from=cola"])
    with pytest.raises(InputError, match="at most the 8551 examples of cola.*got 9000"):
        with_batch_size(config, never)


OWN = ["task=custom", "task.data_dir=notes.csv", 'task.text="{note}"', "privacy.eps=8"]
UNITS = ["privacy.unit=customer_id", "train.micro_batch_size=8"]


def test_few_units_of_ones_own_get_a_batch_of_half_of_them_and_a_word_of_all_that_is_chosen(
    caplog,
) -> None:
    with caplog.at_level("INFO"):
        fitted = with_batch_size(loaded("train", [*OWN, *UNITS]), lambda: 365).train
    assert (fitted.expected_batch_size, fitted.epochs, fitted.learning_rate) == (182, 10, 2e-3)
    assert caplog.messages == [
        "train.expected_batch_size=182, train.epochs=10, train.learning_rate=0.002: chosen for 365"
        " values of customer_id and method=full, since none is given"
    ]


@pytest.mark.parametrize(
    ("count", "batch"), [(600, 300), (3000, 1024), (5000, 1024), (20000, 1024), (5, 2), (1, 1)]
)
def test_the_batch_of_ones_own_records(count: int, batch: int) -> None:
    fitted = with_batch_size(loaded("train", OWN), lambda: count)
    assert fitted.train.expected_batch_size == batch


@pytest.mark.parametrize(
    ("method", "rate"), [("full", 2e-3), ("linear_probe", 5e-2), ("lora", 1e-2), ("bitfit", 1e-2)]
)
def test_the_learning_rate_of_ones_own_records_follows_the_method(method: str, rate: float) -> None:
    fitted = with_batch_size(loaded("train", [*OWN, f"method={method}"]), lambda: 600)
    assert fitted.train.learning_rate == rate


def test_an_explicit_key_wins_over_what_would_be_chosen(caplog) -> None:
    given = ["train.expected_batch_size=64", "train.epochs=3", "train.learning_rate=4e-3"]
    config = loaded("train", [*OWN, *given])
    with caplog.at_level("INFO"):
        assert with_batch_size(config, never) is config
        steps = loaded("train", [*OWN, "train.steps=7", "train.learning_rate=4e-3"])
        assert with_batch_size(steps, lambda: 600).train.planned_steps(600) == 7
    assert caplog.messages == [
        "train.expected_batch_size=300: chosen for 600 examples and method=full, since none is"
        " given"
    ]


def test_a_published_task_keeps_its_recipe_wherever_its_files_lie(caplog) -> None:
    words = ["task=e2e", "task.data_dir=e2e", "method=lora", "privacy.eps=8"]
    with caplog.at_level("INFO"):
        fitted = with_batch_size(loaded("train", words), lambda: 600).train
    assert (fitted.expected_batch_size, fitted.epochs, fitted.learning_rate) == (150, 10, 2e-3)
    assert caplog.messages == [
        "train.expected_batch_size=150: chosen for 600 examples and method=lora, since none is"
        " given"
    ]


def test_a_batch_size_that_was_given_stays_and_is_refused_in_the_units_words() -> None:
    config = loaded("train", [*OWN, *UNITS, "train.expected_batch_size=1024"])
    config = with_batch_size(config, never)
    assert config.train.expected_batch_size == 1024
    with pytest.raises(InputError, match="at most the 365 values of customer_id, got 1024"):
        plan_run(config, lambda: 365)


def test_many_examples_have_the_published_batch_size_without_a_word(caplog) -> None:
    config = loaded("train", ["task=e2e", "privacy.eps=8"])
    with caplog.at_level("INFO"):
        assert with_batch_size(config, never).train.expected_batch_size == 1024
    assert caplog.messages == []
