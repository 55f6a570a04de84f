"""A plan says what training would do and cost, from no more of a model than its config.json."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from dpft.commands.plan import account_for_plan, describe_run
from dpft.config.schema import PlanConfig, PlanSettings
from dpft.privacy.accounting.calibration import Calibration
from dpft.reports.epsilon import delta_warnings
from dpft.strict_model import as_json
from tests.commands.configs import with_privacy, with_train, without_weights
from tests.config.test_conf import loaded
from tests.rejections import rejects


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


@pytest.mark.slow
def test_a_plan_has_the_mechanism_and_the_parameters(config: PlanConfig) -> None:
    planned = describe_run(config)
    record, plan = planned.record, planned.plan.privacy
    assert plan is not None and planned.accounting is not None
    assert (record.plan.steps, record.plan.num_examples) == (3, 42061)
    assert record.num_examples_source == "published size of task e2e"
    assert record.plan == plan and plan.noise_multiplier == 1.0
    assert record.epsilon == planned.accounting.epsilon
    assert record.parameters.trainable == record.parameters.total > 0
    best = 3**0.5 * 1024 / record.parameters.total**0.5
    assert record.signal_to_noise == pytest.approx(best)
    assert not {"ledger", "steps_taken"} & as_json(record).keys()


@pytest.mark.slow
def test_epsilon_of_a_plan_is_that_of_the_accountant_that_calibrated_the_noise(
    config: PlanConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epsilon by another accountant could be above the target."""
    chosen = Calibration(accountant="pld", epsilon=0.5, grid="", target=0.5)
    privacy = describe_run(config).plan.privacy
    assert privacy is not None
    calibrated = privacy.replace(noise_multiplier=2.0, calibration=chosen)
    planned = account_for_plan(config, SimpleNamespace(privacy=calibrated))  # type: ignore[arg-type]
    assert planned is not None and planned.accountant == "pld"


@pytest.mark.slow
def test_the_time_is_measured_at_the_tasks_public_length_unless_it_is_not_wanted(
    config: PlanConfig,
) -> None:
    measured = describe_run(config).record.measured
    assert measured.tokens_per_example == 16, "the task's own, as far as task.max_length has room"
    assert measured.seconds_total == pytest.approx(3 * measured.seconds_per_step)
    assert describe_run(config.replace(plan=PlanSettings(measure=False))).record.measured is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("dpft.commands.run_cost.usable_memory", lambda _: 10**6, "has not enough memory"),
        ("dpft.commands.plan.MOST_ON_A_CPU", 10, "takes too long on a CPU"),
    ],
)
def test_a_model_that_is_too_large_for_this_machine_is_not_measured(
    config: PlanConfig,
    place: str,
    value: object,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(place, value)
    with caplog.at_level("INFO"):
        record = describe_run(config).record
    assert record.measured is None and reason in caplog.text
    assert record.memory_per_rank_bytes.total > 0


@pytest.mark.slow
def test_each_process_is_taken_to_have_an_equal_share_of_the_examples(config: PlanConfig) -> None:
    parallel = config.parallel.replace(name="ddp", world_size=8)
    one, many = (describe_run(each) for each in (config, config.replace(parallel=parallel)))
    assert one.record.measured.seconds_per_step > 4 * many.record.measured.seconds_per_step


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


@pytest.mark.slow
def test_the_time_does_not_depend_on_the_lengths_of_private_records(tmp_path: Path) -> None:
    config = own_text(tmp_path, "task.max_length=200")
    assert describe_run(config).record.measured.tokens_per_example == 150
    stated = own_text(tmp_path, "task.max_length=200", "task.typical_length=30")
    assert describe_run(stated).record.measured.tokens_per_example == 30


@pytest.mark.slow
def test_a_delta_that_training_refuses_is_refused_unless_allowed(
    config: PlanConfig, caplog: pytest.LogCaptureFixture
) -> None:
    large = with_privacy(config, delta=0.03)
    with rejects("privacy.delta", 0.03):
        describe_run(large)
    record = describe_run(with_privacy(large, allow_large_delta=True)).record
    (warning,) = delta_warnings(0.03, 42061, source="given")
    assert warning in record.warnings and warning in caplog.text


@pytest.mark.slow
def test_what_training_rejects_is_rejected(config: PlanConfig) -> None:
    for key, value in (("expected_batch_size", 50_000), ("micro_batch_tokens", 15)):
        with rejects(f"train.{key}", value):
            describe_run(with_train(config, **{key: value}))
    with rejects("task.max_length", 5000):
        describe_run(config.replace(task=config.task.replace(max_length=5000)))


@pytest.mark.slow
def test_groups_of_the_models_own_names_are_measured(config: PlanConfig) -> None:
    grouped = with_privacy(config, clipping="per_layer", groups=("*wte*", "*attn*", "*"))
    record = describe_run(grouped).record
    assert record.measured.seconds_per_step > 0


@pytest.mark.slow
def test_a_plan_says_what_an_automatic_micro_batch_is(config: PlanConfig) -> None:
    assert describe_run(config).record.micro_batch_size == 32
    auto = with_train(config, micro_batch_size="auto", expected_batch_size=40)
    assert describe_run(auto).record.micro_batch_size == 40
