"""What is said and proved before training, and by whom its steps are taken."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpft.config.schema import TrainConfig
from dpft.data.batches import TextLayout
from dpft.errors import InputError, StateError
from dpft.privacy.clipping.clipper import ClippingChoice, PerExampleClipper
from dpft.privacy.plan import Phase
from dpft.runs import prepared_run
from dpft.runs.prepared_run import check_clipper, train, warn
from dpft.runs.run_plan import RunPlan, plan_run
from dpft.training.checkpoint import BoundRun, Checkpoint, ResumePoint, promises
from tests.runs.configs import settings, with_privacy
from tests.training.toy import tiny_model, training_set


def configuration(*given: str) -> TrainConfig:
    return settings("task=e2e", "train.steps=3", "task.max_length=12", *given)


@pytest.fixture(scope="module")
def private() -> TrainConfig:
    return configuration("privacy.noise_multiplier=1", "privacy.delta=1e-7")


@pytest.fixture(scope="module")
def ordinary() -> TrainConfig:
    return configuration("privacy=none")


def plan(config: TrainConfig) -> RunPlan:
    return plan_run(config, lambda: 40)


def test_a_run_without_privacy_says_so(
    ordinary: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    warn(ordinary, plan(ordinary))
    assert [record.message for record in caplog.records] == [
        "privacy=none: this run is not private"
    ]


def test_a_seed_and_a_large_delta_are_warned_of_and_nothing_else_is(
    private: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    warn(private, plan(private))
    assert caplog.records == []
    config = with_privacy(private, noise_seed=1, num_examples=40000, delta=1 / 40000)
    warn(config, plan(config))
    delta, seed = [record.message for record in caplog.records]
    assert delta.startswith("delta = 2.5e-05 is equal to") and "reproducible: not private" in seed


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[PerExampleClipper]:
    """The clipper of each self-check; none is carried out."""
    clippers: list[PerExampleClipper] = []

    def check(clipper: PerExampleClipper, *_: Any, **__: Any) -> ClippingChoice:
        clippers.append(clipper)
        return ClippingChoice(f"engine {len(clippers)}")

    monkeypatch.setattr(PerExampleClipper, "self_check", check)
    return clippers


def in_two_phases(config: TrainConfig) -> RunPlan:
    whole = plan(config)
    assert whole.privacy is not None
    phases = tuple(
        Phase(method="full", steps=steps, max_grad_norm=norm, sensitivity=norm)
        for steps, norm in ((2, 0.1), (1, 0.7))
    )
    return replace(whole, privacy=whole.privacy.replace(steps=3, phases=phases))


def test_every_phase_has_a_self_check_with_its_own_norm(
    private: TrainConfig, checked: list[PerExampleClipper], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(type(private.method), "begin_step", lambda *given: steps.append(given[-1]))
    model = tiny_model().eval()
    choices = check_clipper(private, in_two_phases(private), model, TextLayout(pad_token_id=0))
    assert [clipper.sensitivity for clipper in checked] == [0.1, 0.7]
    assert [choice.engine for choice in choices] == ["engine 1", "engine 2"]
    assert steps == [0, 2, 0], "the parameters of the first phase are trainable again"
    assert not model.training


def test_a_run_without_privacy_has_no_self_check(
    ordinary: TrainConfig, checked: list[PerExampleClipper]
) -> None:
    layout = TextLayout(pad_token_id=0)
    assert check_clipper(ordinary, plan(ordinary), tiny_model(), layout) == ()
    assert checked == []


class Tokenizer:
    """Stands in for the tokenizer: a file of its own in the model's folder."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """By whom steps would be taken, and what they were handed; none is."""
    calls: list[tuple[str, Any]] = []

    def private(session: Any, plan: Any, *_: Any, **given: Any) -> None:
        calls.append(("private", SimpleNamespace(session=session, plan=plan, **given)))

    def ordinary(session: Any, steps: int, resume_point: Any, **_: Any) -> None:
        calls.append(("ordinary", SimpleNamespace(session=session, steps=steps)))

    monkeypatch.setattr(prepared_run, "train_privately", private)
    monkeypatch.setattr(prepared_run, "train_ordinarily", ordinary)

    def read(*given: Any) -> SimpleNamespace:
        calls.append(("read back", given))
        return SimpleNamespace()

    monkeypatch.setattr(prepared_run, "prepare_training_state", read)
    return calls


def trained(config: TrainConfig, folder: Path, point: ResumePoint | None = None) -> None:
    prepared: Any = SimpleNamespace(
        config=config,
        plan=plan(config),
        model=tiny_model(),
        processor=Tokenizer(),
        training_set=training_set(),
        choices=(),
        shards=None,
    )
    train(prepared, folder, point)


def test_the_plan_decides_by_whom_steps_are_taken(
    private: TrainConfig, ordinary: TrainConfig, tmp_path: Path, taken: list[tuple[str, Any]]
) -> None:
    trained(private, tmp_path)
    trained(ordinary, tmp_path)
    (first, privately), (second, ordinarily) = taken
    assert (first, second) == ("private", "ordinary")
    assert privately.plan == plan(private).privacy
    assert privately.session.num_examples == plan(private).size.num_examples == 42061
    assert (ordinarily.steps, ordinarily.session.phases) == (3, plan(ordinary).phases)


def test_a_model_is_saved_with_its_tokenizer(
    private: TrainConfig, tmp_path: Path, taken: list[tuple[str, Any]]
) -> None:
    trained(private, tmp_path)
    taken[0][1].session.save_model()
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= names


def ended(config: TrainConfig, step: int = 3) -> ResumePoint:
    """Where a run stands that has ended, as far as its checkpoint and its ledger tell."""
    guarantee = config.privacy.guarantee
    run = BoundRun(promises=None if guarantee is None else promises(guarantee))
    ledger = None if guarantee is None else SimpleNamespace(closed=True)
    path = Path("private/checkpoints/step")
    return ResumePoint(checkpoint=Checkpoint(path=path, step=step, run=run), ledger=ledger)


def test_a_run_that_has_ended_takes_no_step_and_is_only_read_back(
    private: TrainConfig, ordinary: TrainConfig, tmp_path: Path, taken: list[tuple[str, Any]]
) -> None:
    keys = tmp_path / "private/checkpoints/step-00000003/generators.json"
    for config in (private, ordinary):
        keys.parent.mkdir(parents=True, exist_ok=True)
        keys.write_text("{}")
        trained(config, tmp_path, ended(config))
        assert not keys.exists()
    assert [name for name, _ in taken] == ["read back"] * 2


def test_trust_rule_9_a_report_promises_nothing_that_the_run_did_not_begin_with(
    private: TrainConfig, tmp_path: Path, taken: list[Any]
) -> None:
    edited = with_privacy(private, noise_seed=1)
    with pytest.raises(InputError, match="got another privacy.noise_seed"):
        trained(edited, tmp_path, ended(private))
    assert taken == []


def test_a_run_without_a_ledger_has_not_ended_before_its_last_step(
    ordinary: TrainConfig, tmp_path: Path, taken: list[Any]
) -> None:
    with pytest.raises(StateError, match="is gone, and the run has taken 2 of 3 steps"):
        trained(ordinary, tmp_path, ended(ordinary, step=2))
    assert taken == []
