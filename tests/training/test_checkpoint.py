"""What a checkpoint holds, and the environment that a resumed run is compared by."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dpft.errors import StateError
from dpft.run_folder import KEYS, STATE, WEIGHTS
from dpft.training import checkpoint
from dpft.training.checkpoint import (
    BoundRun,
    checkpoints,
    delete_generator_states,
    environment,
    read_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from dpft.training.optimizers import (
    SCHEDULES,
    SGD,
    Adafactor,
    Adam,
    AdamW,
    SchedulerConfig,
)
from dpft.training.training_state import TrainingState
from tests.rejections import rejects
from tests.slowness import slow_but
from tests.training.toy import (
    plan,
    take_steps,
    tiny_model,
    training_set,
    training_state,
)


def state_after(
    steps: int = 0, *, seed: int = 0, config=None, schedule="linear", factor=None
) -> TrainingState:
    model = tiny_model(seed)
    optimizer = (config or AdamW()).make(model.parameters(), learning_rate=0.1, weight_decay=0.01)
    chosen = SchedulerConfig(name=schedule, **SETTINGS.get(schedule, {}))
    state = training_state(model, optimizer, schedule=chosen, factor=factor)
    take_steps(state, steps)
    return state


def weights(state: TrainingState) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in state.model.parameters()])


def states(state: TrainingState) -> dict[str, list]:
    """The optimizer's state, by parameter and key."""
    names = {parameter: name for name, parameter in state.model.named_parameters()}
    return {
        f"{names[parameter]}/{key}": torch.as_tensor(value).tolist()
        for parameter, entries in state.optimizer.state.items()
        for key, value in entries.items()
    }


SETTINGS = {"rsqrt": {"warmup_steps": 2}}
OPTIMIZERS = [
    AdamW(), Adam(), SGD(), SGD(momentum=0.9), SGD(momentum=0.9, nesterov=True), Adafactor(),
    Adafactor(min_dim_size_to_factor=1),
]  # fmt: skip


@pytest.mark.parametrize(
    "config", slow_but([AdamW(), SGD(momentum=0.9), Adafactor()], OPTIMIZERS), ids=repr
)
@pytest.mark.parametrize("stop", slow_but([2], [0, 2]))
def test_every_optimizer_goes_on_to_the_same_bits(tmp_path, config, stop):
    through = state_after(4, config=config)
    path = save_checkpoint(tmp_path / "checkpoints", stop, state_after(stop, config=config))
    resumed = state_after(1, seed=9, config=config)
    restore_checkpoint(path, resumed)
    take_steps(resumed, 4 - stop)
    assert torch.equal(weights(through), weights(resumed))
    assert states(through) == states(resumed)


@pytest.mark.parametrize("schedule", slow_but(["linear"], SCHEDULES))
def test_every_schedule_goes_on_where_it_was_with_its_factor(tmp_path, schedule):
    def factor(step: int) -> float:
        return 0.25 if step < 3 else 2.0

    through = state_after(4, schedule=schedule, factor=factor)
    first = state_after(2, schedule=schedule, factor=factor)
    path = save_checkpoint(tmp_path / "checkpoints", 2, first)
    resumed = state_after(seed=9, schedule=schedule, factor=factor)
    restore_checkpoint(path, resumed)
    assert resumed.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"]
    take_steps(resumed, 2)
    assert torch.equal(weights(through), weights(resumed))
    assert resumed.scheduler.get_last_lr() == through.scheduler.get_last_lr()


def test_a_tied_weight_is_stored_once_and_stays_tied(tmp_path):
    state = state_after(1)
    restored = state_after(seed=5)
    restore_checkpoint(save_checkpoint(tmp_path / "checkpoints", 1, state), restored)
    assert restored.model.lm_head.weight is restored.model.transformer.wte.weight


def test_only_the_newest_checkpoints_are_kept_and_no_partial_one_is_left(tmp_path):
    folder, state = tmp_path / "checkpoints", state_after()
    for step in range(4):
        save_checkpoint(folder, step, state, keep=2)
    assert [path.name for path in checkpoints(folder)] == ["step-00000002", "step-00000003"]
    assert len(list(folder.iterdir())) == 2


def test_generator_states_are_a_file_of_their_own_that_can_be_deleted(tmp_path):
    folder, state = tmp_path / "checkpoints", state_after()
    generators = {"noise": ["0102"], "dropout_key": "01"}
    bound = BoundRun(plan=plan())
    path = save_checkpoint(folder, 0, state, generators=generators, run=bound)
    read = read_checkpoint(path)
    assert (read.step, read.run) == (0, bound)
    assert read.read_keys().content["noise"] == ["0102"]
    delete_generator_states(folder)
    assert not (path / KEYS).exists()
    assert restore_checkpoint(path, state) == 0


@pytest.mark.parametrize("name", [WEIGHTS, "optimizer.safetensors"])
def test_one_flipped_byte_is_found(tmp_path, name):
    state = state_after(1)
    path = save_checkpoint(tmp_path / "checkpoints", 1, state)
    content = bytearray((path / name).read_bytes())
    content[-1] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(StateError, match=name) as error:
        restore_checkpoint(path, state)
    assert error.value.exit_code == 3


@pytest.mark.parametrize("text", [None, "[" * 200_000, "", "[]", '{"step": Infinity}'])
def test_a_checkpoint_with_a_damaged_state_is_rejected(tmp_path, text):
    path = save_checkpoint(tmp_path / "checkpoints", 0, state_after())
    (path / STATE).unlink() if text is None else (path / STATE).write_text(text)
    with pytest.raises(StateError, match=str(path)):
        read_checkpoint(path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    path = save_checkpoint(tmp_path / "checkpoints", 0, state_after())
    other = state_after()
    other.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(StateError, match=str(path)):
        restore_checkpoint(path, other)


def test_a_checkpoint_of_another_form_is_refused_by_its_version(tmp_path):
    path = save_checkpoint(tmp_path / "checkpoints", 0, state_after())
    text = (path / STATE).read_text()
    (path / STATE).write_text(text.replace('"schema_version": 2', '"schema_version": 1'))
    with rejects():
        read_checkpoint(path)


def test_what_a_kill_left_of_a_checkpoint_of_another_step_is_removed(tmp_path):
    (tmp_path / "checkpoints/.step-00000009.partial").mkdir(parents=True)
    path = save_checkpoint(tmp_path / "checkpoints", 1, state_after())
    assert list((tmp_path / "checkpoints").iterdir()) == [path]


def test_a_stray_name_is_no_checkpoint_and_stays(tmp_path):
    folder, state = tmp_path / "checkpoints", state_after()
    folder.mkdir()
    for stray in ("step-zzz", "step-00000001.bak", "step-1"):
        (folder / stray).mkdir()
    (folder / "step-notes.txt").write_text("mine")
    path = save_checkpoint(folder, 0, state)
    assert checkpoints(folder) == [path]
    delete_generator_states(folder)
    assert len(list(folder.iterdir())) == 5


def surroundings(**changed: Any) -> dict[str, Any]:
    options = {"engine": "rows", "settings": ("adamw",), **changed}
    return environment(training_set(options.pop("size", 4)), **options)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"engine": "book_keeping"}, "engine"),
        ({"settings": ("sgd",)}, "settings"),
    ],
)
def test_what_a_caller_changes_of_the_environment_is_seen(
    changed: dict[str, Any], key: str
) -> None:
    before, after = surroundings(), surroundings(**changed)
    assert {name for name in before if before[name] != after[name]} == {key}


@pytest.mark.parametrize(
    ("owner", "name", "key"),
    [
        (torch, "get_num_threads", "threads"),
        (torch.backends.cpu, "get_cpu_capability", "cpu"),
        (checkpoint, "version", "packages"),
    ],
)
def test_what_the_machine_changes_of_the_environment_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, key: str
) -> None:
    before = surroundings()
    monkeypatch.setattr(owner, name, lambda *_: "another")
    after = surroundings()
    assert {each for each in before if before[each] != after[each]} == {key}


def test_precision_and_micro_batches_are_of_the_environment() -> None:
    whole = training_set()
    first = environment(whole, engine="rows")
    other = environment(whole, engine="rows", precision="bf16")
    assert {each for each in first if first[each] != other[each]} == {"precision"}
    for field, value in (("micro_batch_size", 3), ("micro_batch_tokens", 64)):
        other = environment(replace(whole, **{field: value}), engine="rows")
        assert {each for each in first if first[each] != other[each]} == {field}
    padded = replace(whole, layout=replace(whole.layout, pad_to_multiple_of=8))
    other = environment(padded, engine="rows")
    assert {each for each in first if first[each] != other[each]} == {"padded_to"}
