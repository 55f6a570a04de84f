"""A plan says what training would do and cost, from no more of a model than its config.json."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dpft.config.schema import PlanConfig
from dpft.errors import InputError
from dpft.estimates import step_time as estimate
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.records.form import as_json
from dpft.records.plans import OpenPlan
from dpft.reports.epsilon import delta_warnings
from dpft.runs import planned_run
from dpft.runs.planned_run import describe_run, measure_step
from tests.config.test_conf import loaded
from tests.runs.configs import with_privacy, with_train, without_weights
from tests.training.toy import tiny_model


@dataclass(frozen=True)
class Measured:
    """In place of a measurement."""

    seconds: float = 1.0


@pytest.fixture(autouse=True)
def _quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PlanConfig:
    """Of a model without weights, on a task whose size is published."""
    base = without_weights(tmp_path_factory.mktemp("plan") / "base")
    given = [
        "task=e2e", "model=gpt2", f"model.path={base}", "task.max_length=16",
        "decode.max_new_tokens=8", "privacy.noise_multiplier=1", "privacy.accountant=rdp",
        "train.steps=3",
    ]  # fmt: skip
    planned = loaded("plan", given)
    assert isinstance(planned, PlanConfig)
    return planned


@pytest.fixture(autouse=True)
def _shared_accounting(shared_accounting: None) -> None:
    """Every plan here shares its accountants."""


def test_a_plan_has_the_mechanism_and_the_parameters(config: PlanConfig) -> None:
    planned = describe_run(config)
    record, plan = planned.record, planned.plan.privacy
    assert plan is not None and planned.accounting is not None
    assert (record.steps, record.num_examples) == (3, 42061)
    assert record.num_examples_source == "published size of task e2e"
    assert record.noise_multiplier == plan.noise_multiplier == 1.0
    assert record.epsilon == planned.accounting.epsilon
    assert record.trainable_parameters == record.total_parameters > 0
    best = 3**0.5 * 1024 / record.total_parameters**0.5
    assert record.signal_to_noise == pytest.approx(best)
    assert not {"ledger", "steps_taken", "measured"} & as_json(record).keys()


def test_time_and_memory_are_estimated_where_nothing_is_measured(
    config: PlanConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = describe_run(config).record.estimated
    assert short.typical_length == 16, "the task's own, as far as task.max_length has room"
    assert short.seconds_total > 3 * short.seconds_per_step > 0
    assert short.peak_memory_bytes > 0
    monkeypatch.setattr(planned_run, "measure", lambda *_, **__: Measured())
    measured = describe_run(replace(config, plan=replace(config.plan, measure=True))).record
    assert measured.measured == Measured() and measured.estimated is None


def own_text(folder: Path, *given: str) -> PlanConfig:
    (folder / "own.csv").write_text("text\n" + "a short note\n" * 40)
    planned = loaded(
        "plan",
        [
            *("task=custom", f"task.data_dir={folder / 'own.csv'}", "task.text='{text}'"),
            *("model=tiny", "privacy.noise_multiplier=1", "privacy.accountant=rdp", *given),
        ],
    )
    assert isinstance(planned, PlanConfig)
    return planned


def test_the_lengths_of_private_records_reach_no_estimate_but_that_of_their_owners_terminal(
    tmp_path: Path,
) -> None:
    config = own_text(tmp_path, "task.max_length=200")
    assert describe_run(config).record.estimated.typical_length == 150
    shown = describe_run(config, is_shown=True).record.estimated
    assert 3 <= shown.typical_length <= 20
    stated = own_text(tmp_path, "task.max_length=200", "task.typical_length=30")
    for is_shown in (False, True):
        found = describe_run(stated, is_shown=is_shown).record.estimated
        assert found.typical_length == 30


def test_a_plan_whose_size_is_stated_reads_no_record_for_its_length(tmp_path: Path) -> None:
    config = own_text(tmp_path, "task.max_length=200", "privacy.num_examples=500")
    (tmp_path / "own.csv").unlink()
    assert describe_run(config, is_shown=True).record.estimated.typical_length == 150


def test_a_plan_without_privacy_costs_nothing(config: PlanConfig) -> None:
    plain = loaded("plan", ["task=e2e", "privacy=none"])
    assert isinstance(plain, PlanConfig)
    planned = describe_run(replace(config, privacy=plain.privacy))
    assert planned.accounting is None and planned.plan.privacy is None
    assert isinstance(planned.record, OpenPlan)


def test_a_delta_that_training_refuses_is_refused_unless_allowed(
    config: PlanConfig, caplog: pytest.LogCaptureFixture
) -> None:
    large = with_privacy(config, delta=0.03)
    with pytest.raises(InputError, match=r"privacy\.delta must be at most 1/num_examples"):
        describe_run(large)
    record = describe_run(with_privacy(large, allow_large_delta=True)).record
    (warning,) = delta_warnings(0.03, 42061, source="given")
    assert warning in record.warnings and warning in caplog.text


def test_what_training_would_refuse_is_refused(config: PlanConfig) -> None:
    with pytest.raises(InputError, match="at most the 42061 examples, got 50000"):
        describe_run(with_train(config, expected_batch_size=50_000))
    with pytest.raises(InputError, match="task.max_length"):
        describe_run(replace(config, task=replace(config.task, max_length=5000)))


def test_groups_of_the_models_own_names_are_no_hindrance_to_an_estimate(config: PlanConfig) -> None:
    grouped = with_privacy(config, clipping="per_layer", groups=("*wte*", "*attn*", "*"))
    record = describe_run(grouped).record
    assert record.estimated.seconds_per_step > 0


def test_a_plan_says_what_an_automatic_micro_batch_is(config: PlanConfig) -> None:
    assert describe_run(config).record.micro_batch_size == 32
    auto = with_train(config, micro_batch_size="auto", expected_batch_size=40)
    assert describe_run(auto).record.micro_batch_size == 40


def test_tokens_below_a_record_are_refused_by_a_plan_too(config: PlanConfig) -> None:
    with pytest.raises(InputError, match="train.micro_batch_tokens must be at least 16"):
        describe_run(with_train(config, micro_batch_tokens=15))


@pytest.mark.parametrize("options", [ClippingOptions(max_grad_norm=0.1), None])
def test_time_and_memory_are_measured_and_extrapolated_to_all_steps(options):
    measured = measure_step(
        tiny_model(),
        max_length=16,
        typical_length=8,
        micro_batch_size=4,
        expected_batch_size=8,
        steps=10,
        options=options,
    )
    assert measured.seconds_per_step > 0
    assert measured.seconds_total == pytest.approx(10 * measured.seconds_per_step)
    assert measured.peak_memory_bytes > 2**20
    assert measured.typical_length == 8


@pytest.mark.parametrize("options", [ClippingOptions(max_grad_norm=0.1), None])
def test_the_longest_records_are_run_once_and_the_typical_ones_are_timed(options, monkeypatch):
    made, run = planned_run.synthetic_losses, []

    def counted(model, count, length, **options):
        losses = made(model, count, length, **options)
        return lambda: run.append(length) or losses()

    monkeypatch.setattr(planned_run, "synthetic_losses", counted)
    sizes = {"max_length": 16, "typical_length": 8, "micro_batch_size": 2}
    measure_step(tiny_model(), **sizes, expected_batch_size=2, steps=1, options=options)
    first = run.index(8)
    assert set(run[:first]) == {16} and set(run[first:]) == {8}
