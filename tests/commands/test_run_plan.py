import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from dpft.commands.run_plan import (
    PublicSize,
    RunPlan,
    announce,
    curve_of_run,
    plan_run,
    public_size,
    with_batch_size,
)
from dpft.config.hydra_compose import register_resolver
from dpft.config.load import config_directory, load
from dpft.config.schema import TrainCommand
from dpft.data.canaries import CanaryConfig
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.privacy_config import DifferentialPrivacy, NoPrivacy
from dpft.tasks.e2e import E2ETask
from tests.config.test_conf import loaded
from tests.privacy.test_plan import plan
from tests.rejections import rejects

TASK = E2ETask(name="e2e", source="url", num_train_examples=42061, embedded_num_train_examples=80)
DP = DifferentialPrivacy(name="dp", eps=3.0)


def of(task, privacy, **audit):
    config = loaded("train", ["privacy.eps=3"])
    return config.replace(task=task, privacy=privacy, audit=CanaryConfig(**audit))


def never() -> int:
    pytest.fail("the rows were counted")


@pytest.mark.slow
@pytest.mark.parametrize(
    "privacy", [DP.replace(num_examples=40000), NoPrivacy(name="none", num_examples=40000)]
)
def test_the_users_number_of_examples_leads(privacy) -> None:
    size = public_size(of(TASK, privacy), never)
    assert (size.num_examples, size.source) == (40000, "privacy.num_examples")


@pytest.mark.slow
def test_a_published_size_stands_where_the_data_are_the_published_ones() -> None:
    assert public_size(of(TASK, DP), never).num_examples == 42061
    assert public_size(of(TASK.replace(source="embedded"), DP), never).num_examples == 80


@pytest.mark.slow
def test_every_canary_counts_whatever_its_coin_says() -> None:
    size = public_size(of(TASK, DP, canaries=100, exposure_canaries=2), never)
    assert size.num_examples == 42061 + 100 + 2 * (1 + 10 + 100)
    assert size.source == "published size of task e2e, with 322 canaries added"


@pytest.mark.slow
def test_all_copies_of_a_canary_are_one_units() -> None:
    size = public_size(
        of(TASK, DP.replace(unit="customer"), canaries=100, exposure_canaries=2), lambda: 120
    )
    assert size.num_examples == 120 + 100 + 2 * 3


@pytest.mark.slow
def test_a_transferred_sample_rate_sets_the_batch_size_for_this_tasks_size(caplog) -> None:
    """Li et al. 2022, Appendix L: QQP at the sample rate of SST-2 in batches of 1024."""
    config = loaded("train", ["experiment=li2022_qqp", "privacy.eps=3"])
    with caplog.at_level("INFO"):
        transferred = with_batch_size(config, never)
    assert transferred.train.expected_batch_size == round(1024 / 67349 * 363846) == 5532
    assert "train.expected_batch_size: 5532 (the sample rate of sst2)" in caplog.text
    # Written to config.yaml so, it is not transferred a second time.
    assert transferred.train.transfer_sample_rate_from is None
    assert with_batch_size(transferred, never) is transferred


@pytest.mark.slow
def test_a_batch_larger_than_the_other_tasks_data_is_refused() -> None:
    words = ["task=qqp", "model=roberta-base", "privacy.eps=3", "train.expected_batch_size=9000"]
    config = loaded("train", [*words, "train.transfer_sample_rate_from=cola"])
    with rejects("train.expected_batch_size", 9000):
        with_batch_size(config, never)


OWN = ["task=custom", "task.data_dir=notes.csv", 'task.text="{note}"', "privacy.eps=8"]
UNITS = ["privacy.unit=customer_id", "train.micro_batch_size=8"]


@pytest.mark.slow
def test_few_units_of_ones_own_get_a_batch_of_half_of_them_and_a_word_of_all_that_is_chosen(
    caplog,
) -> None:
    with caplog.at_level("INFO"):
        fitted = with_batch_size(loaded("train", [*OWN, *UNITS]), lambda: 365).train
    assert (fitted.expected_batch_size, fitted.epochs, fitted.learning_rate) == (182, 10, 2e-3)
    assert caplog.messages == [
        "defaults for 365 values of customer_id and method=full: train.expected_batch_size=182,"
        " train.epochs=10, train.learning_rate=0.002"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "batch"), [(600, 300), (3000, 1024), (5000, 1024), (20000, 1024), (5, 2), (1, 1)]
)
def test_the_batch_of_ones_own_records(count: int, batch: int) -> None:
    fitted = with_batch_size(loaded("train", OWN), lambda: count)
    assert fitted.train.expected_batch_size == batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "rate"), [("full", 2e-3), ("linear_probe", 5e-2), ("lora", 1e-2), ("bitfit", 1e-2)]
)
def test_the_learning_rate_of_ones_own_records_follows_the_method(method: str, rate: float) -> None:
    fitted = with_batch_size(loaded("train", [*OWN, f"method={method}"]), lambda: 600)
    assert fitted.train.learning_rate == rate


@pytest.mark.slow
def test_an_explicit_key_wins_over_what_would_be_chosen(caplog) -> None:
    given = ["train.expected_batch_size=64", "train.epochs=3", "train.learning_rate=4e-3"]
    config = loaded("train", [*OWN, *given])
    with caplog.at_level("INFO"):
        assert with_batch_size(config, never) is config
        steps = loaded("train", [*OWN, "train.steps=7", "train.learning_rate=4e-3"])
        assert with_batch_size(steps, lambda: 600).train.planned_steps(600) == 7
    assert caplog.messages == [
        "defaults for 600 examples and method=full: train.expected_batch_size=300"
    ]


@pytest.mark.slow
def test_a_published_task_keeps_its_recipe_wherever_its_files_lie(caplog) -> None:
    words = ["task=e2e", "task.data_dir=e2e", "method=lora", "privacy.eps=8"]
    with caplog.at_level("INFO"):
        fitted = with_batch_size(loaded("train", words), lambda: 600).train
    assert (fitted.expected_batch_size, fitted.epochs, fitted.learning_rate) == (150, 10, 2e-3)
    assert caplog.messages == [
        "defaults for 600 examples and method=lora: train.expected_batch_size=150"
    ]


@pytest.mark.slow
def test_a_batch_size_that_was_given_stays_and_is_refused_in_the_units_words() -> None:
    config = loaded("train", [*OWN, *UNITS, "train.expected_batch_size=1024"])
    config = with_batch_size(config, never)
    assert config.train.expected_batch_size == 1024
    with rejects("train.expected_batch_size", 1024) as faults:
        plan_run(config, lambda: 365)
    assert "365 values of customer_id" in faults[0].message


@pytest.mark.slow
def test_many_examples_have_the_published_batch_size_without_a_word(caplog) -> None:
    config = loaded("train", ["task=e2e", "privacy.eps=8"])
    with caplog.at_level("INFO"):
        assert with_batch_size(config, never).train.expected_batch_size == 1024
    assert caplog.messages == []


RDP = Calibration(accountant="rdp", epsilon=9.0, grid="")


def config(accountant: str = "prv") -> Any:
    return SimpleNamespace(
        privacy=SimpleNamespace(guarantee=SimpleNamespace(accountant=accountant))
    )


def run_plan(**changes: Any) -> RunPlan:
    size = PublicSize(num_examples=40, source="")
    return RunPlan(size=size, steps=3, phases=(), privacy=changes.get("privacy", plan()))


def test_a_run_that_rdp_calibrated_keeps_rdps_bound_whatever_is_configured() -> None:
    curve = curve_of_run(config("prv"), run_plan(privacy=plan(calibration=RDP)))
    assert curve is not None and set(curve.accountants) == {"rdp"}


def command(*words: str) -> TrainCommand:
    register_resolver()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        return load(compose("train", list(words)), TrainCommand)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["privacy.eps=3"],
            "training model=gpt2 on task=e2e by method=full, under eps=3 for each example",
        ),
        (
            ["privacy.eps=8", "privacy.delta=1e-5", "privacy.unit=customer_id", "method=retrain"],
            "training model=gpt2 from random weights on task=e2e by method=retrain,"
            " under eps=8, delta=1e-05 for each value of customer_id",
        ),
        (
            ["privacy=none", "model=tiny", "privacy.max_grad_norm=0.1"],
            "training model=tiny on task=e2e by method=full,"
            " without privacy: each example clipped at 0.1, no noise",
        ),
    ],
)
def test_the_first_line_says_what_is_trained_and_what_is_promised(
    caplog: pytest.LogCaptureFixture, words: list[str], line: str
) -> None:
    with caplog.at_level("INFO"):
        announce(command(*words))
    assert caplog.messages == [line]


@pytest.mark.slow
def test_a_training_logs_before_torch_is_imported(tmp_path: Path) -> None:
    program = """
import logging, sys
from dpft.cli.main import main

class Stop(logging.Filter):
    def filter(self, record):
        sys.exit(100 if "torch" in sys.modules else 50)

logging.getLogger("dpft.commands.run_plan").addFilter(Stop())
sys.exit(main(["train", "model=tiny", "task.source=embedded", "privacy.eps=3"]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.returncode == 50, done.stderr


@pytest.mark.slow
def test_a_faulty_row_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,good\nb,\n")
    program = """
import sys
from dpft.cli.main import main

code = main([
    "train", "model=tiny", "task=custom", "task.data_dir=rows.csv", "task.text='{text}'",
    "task.label=label", "task.labels=[bad,good]", "privacy.eps=3",
])
sys.exit(100 if "torch" in sys.modules else code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "rows.csv, line 3" in done.stderr and "label" in done.stderr
