import logging
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from dpft.methods.base import MethodPhase, count_parameters
from dpft.methods.two_phase import TwoPhase
from dpft.models.losses import per_example_losses
from dpft.privacy.ledger import read_ledger
from dpft.privacy.plan_building import make_plan
from dpft.training.checkpoint import restore_checkpoint, save_checkpoint
from dpft.training.optimizers import (
    AdamW,
    learning_rate_factor,
)
from dpft.training.synthetic_batches import synthetic_batch
from dpft.training.training_state import TrainingState
from tests.clipped_batches import clipped_batches
from tests.privacy.clipping.oracle import ENGINES, TOLERANCE, distance, unit_gradients
from tests.rejections import rejects
from tests.self_checks import checked_phases
from tests.slowness import slow_but
from tests.training import toy
from tests.training.toy import train_ordinarily, train_privately

STEPS, SWITCH = 5, 2


def two_phase(**settings) -> TwoPhase:
    return TwoPhase(name="two_phase", **settings)


def prepared(model=None, **settings) -> tuple[TwoPhase, torch.nn.Module]:
    method = two_phase(**settings)
    method.phases(STEPS, lambda epochs: SWITCH)
    return method, method.prepare(model or toy.tiny_model())


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=17,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=16,
            num_labels=3,
        )  # fmt: skip
    )


def trainable(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def biases(model) -> set[str]:
    return {name for name, _ in model.named_parameters() if name.endswith("bias")}


def test_the_run_is_full_for_the_epochs_asked_for_and_bias_only_from_there():
    method = two_phase(full_epochs=1.5, bitfit_learning_rate=0.5, bitfit_max_grad_norm=0.2)
    assert method.phases(10, lambda epochs: int(4 * epochs)) == (
        MethodPhase(method="full", steps=6),
        MethodPhase(method="bitfit", steps=4, max_grad_norm=0.2, learning_rate=0.5),
    )


@pytest.mark.parametrize("steps", [3, 4])
def test_a_run_that_ends_before_the_switch_stays_full_and_says_so(steps, caplog):
    with caplog.at_level(logging.WARNING):
        phases = two_phase().phases(steps, lambda epochs: 4)
    assert phases == (MethodPhase(method="full", steps=steps),)
    assert [record.message.count("\n") for record in caplog.records] == [0]
    assert "all steps are full fine-tuning" in caplog.text


def test_what_trains_follows_from_the_step_whatever_trained_before():
    method, model = prepared()
    everything = trainable(model)
    assert everything == {name for name, _ in model.named_parameters()}
    for step in (0, SWITCH - 1, SWITCH, STEPS - 1, 0, SWITCH):
        method.begin_step(model, step)
        assert trainable(model) == (everything if step < SWITCH else biases(model))


def test_new_modules_and_embeddings_train_in_the_second_phase_where_they_are_asked_for():
    new = frozenset({"classifier.weight", "classifier.bias"})
    embedding = "bert.embeddings.word_embeddings.weight"
    for train_new, train_embeddings in ((True, False), (False, True)):
        model = bert()
        method = two_phase(train_new_modules=train_new, train_embeddings=train_embeddings)
        method.phases(STEPS, lambda epochs: SWITCH)
        method.prepare(model, new)
        assert trainable(model) == {name for name, _ in model.named_parameters()}
        method.begin_step(model, SWITCH)
        extra = set(new) if train_new else {embedding}
        assert trainable(model) == biases(model) | extra


def test_a_model_without_a_bias_is_refused():
    config = T5Config(vocab_size=17, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with rejects("method", "two_phase"):
        two_phase().prepare(T5ForConditionalGeneration(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "engine"), slow_but([(SWITCH, "book_keeping")], product((0, SWITCH), ENGINES))
)
def test_clipped_sums_of_both_phases_are_those_of_examples_executed_separately(step, engine):
    method, model = prepared()
    method.begin_step(model.eval(), step)
    batch = synthetic_batch(model, 3, 7)
    expected = unit_gradients(model, per_example_losses, batch)
    got = clipped_batches(model, [batch], 0.05, engine=engine)
    assert (got.choice.engine == "rows") == (engine == "rows")
    assert distance(got, expected, 0.05) <= TOLERANCE


def run_privately(folder: Path, **settings) -> list[dict[str, torch.Tensor]]:
    """Return the weights after each of the steps, the last two of them bias-only."""
    method, model = prepared(**settings)
    phases = method.phases(STEPS, lambda epochs: SWITCH)
    own = toy.session(folder, model, checkpoint_every=1, keep=STEPS + 1, weight_decay=0.1)
    object.__setattr__(own, "method", method)
    object.__setattr__(own, "phases", phases)
    privacy = toy.privacy()
    plan = make_plan(privacy, num_examples=12, expected_batch_size=6, phases=phases)
    object.__setattr__(own, "choices", checked_phases(model, method, plan))
    train_privately(own, plan, privacy, epsilon_after=toy.spent)
    folders = sorted((folder / "private" / "checkpoints").glob("step-*"))
    return [load_file(path / "model.safetensors") for path in folders]


@pytest.mark.slow
def test_weights_stay_in_the_second_phase_and_the_ledger_has_each_phases_sensitivity(tmp_path):
    """Under AdamW with momentum and weight decay, which moves whatever has a gradient.

    Weights are bit-identical throughout it, biases move; the noise multiplier is one.
    """
    weights = run_privately(tmp_path, bitfit_max_grad_norm=0.02, bitfit_learning_rate=0.1)
    model = toy.tiny_model()
    for step in range(STEPS):
        before, after = weights[step], weights[step + 1]
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        second = step >= SWITCH
        assert moved == (biases(model) if second else {n for n, _ in model.named_parameters()})

    mechanisms = read_ledger(tmp_path / "ledger.jsonl").mechanisms
    assert [step.sensitivity for step in mechanisms] == [0.1, 0.1, 0.02, 0.02, 0.02]
    assert {(step.noise_multiplier, step.sample_rate) for step in mechanisms} == {(1.0, 0.5)}


@pytest.mark.slow
def test_ordinary_training_has_the_same_phases(tmp_path):
    method, model = prepared()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    method.phases(4, lambda epochs: 1)
    own = toy.session(tmp_path, model, checkpoint_every=1, keep=9)
    object.__setattr__(own, "method", method)
    train_ordinarily(own, 4)
    first = load_file(tmp_path / "private/checkpoints/step-00000001/model.safetensors")
    for name, parameter in model.named_parameters():
        assert not torch.equal(first[name], start[name])
        assert torch.equal(parameter, first[name]) == (name not in biases(model))


def training_state(method: TwoPhase, model: torch.nn.Module) -> TrainingState:
    method.begin_step(model, 0)
    optimizer = AdamW().make(method.moved_parameters(model), learning_rate=0.1, weight_decay=0.1)
    phases = (
        MethodPhase(method="full", steps=SWITCH),
        MethodPhase(method="bitfit", steps=STEPS - SWITCH, learning_rate=0.3),
    )
    factor = learning_rate_factor(phases, 0.1)
    return toy.training_state(model, optimizer, steps=STEPS, factor=factor)


@pytest.mark.slow
@pytest.mark.parametrize("reset", [True, False])
def test_the_second_phase_begins_with_a_new_optimizer_where_it_is_asked_for(tmp_path, reset):
    """After the switch a new Adam has seen one gradient, and knows of the biases alone."""
    method, model = prepared(reset_optimizer=reset)
    phases = method.phases(STEPS, lambda epochs: SWITCH)
    own = toy.session(tmp_path, model, checkpoint_every=1, keep=STEPS + 1)
    object.__setattr__(own, "method", method)
    object.__setattr__(own, "phases", phases)
    privacy = toy.privacy()
    plan = make_plan(privacy, num_examples=12, expected_batch_size=6, phases=phases)
    object.__setattr__(own, "choices", checked_phases(model, method, plan))
    train_privately(own, plan, privacy, epsilon_after=toy.spent)
    for step in range(1, STEPS + 1):
        path = tmp_path / f"private/checkpoints/step-{step:08d}/optimizer.safetensors"
        gradients_seen = {
            label.removesuffix("/step"): int(number)
            for label, number in load_file(path).items()
            if label.endswith("/step")
        }
        forgot = reset and step > SWITCH
        everything = {name for name, _ in model.named_parameters()}
        assert gradients_seen.keys() == (biases(model) if forgot else everything)
        of_biases = {gradients_seen[name] for name in biases(model)}
        assert of_biases == {step - SWITCH if forgot else step}


def take_steps(method: TwoPhase, state: TrainingState, steps: range) -> None:
    for step in steps:
        method.begin_step(state.model, step)
        generator = torch.Generator().manual_seed(step)
        for parameter in state.model.parameters():
            parameter.grad = None
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        method.begin_update(state.optimizer, step)
        state.optimizer.step()
        state.scheduler.step()


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("stopped_after", [SWITCH, SWITCH + 1])
def test_going_on_in_the_second_phase_is_bit_identical_to_never_having_stopped(
    tmp_path, stopped_after, reset
):
    method, model = prepared(reset_optimizer=reset)
    first = training_state(method, model)
    take_steps(method, first, range(stopped_after))
    path = save_checkpoint(tmp_path / "checkpoints", stopped_after, first)
    take_steps(method, first, range(stopped_after, STEPS))
    again, model = prepared(toy.tiny_model(seed=9), reset_optimizer=reset)
    second = training_state(again, model)
    assert restore_checkpoint(path, second) == stopped_after
    take_steps(again, second, range(stopped_after, STEPS))
    for (name, one), (_, other) in zip(
        first.model.named_parameters(), second.model.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name
    assert first.optimizer.param_groups[0]["lr"] == second.optimizer.param_groups[0]["lr"]


def test_the_saved_model_is_whole_and_counts_are_those_of_the_first_phase(tmp_path: Path):
    method, model = prepared()
    counts = count_parameters(model)
    assert counts.trainable == counts.total
    method.begin_step(model, STEPS - 1)
    method.save(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, GPT2LMHeadModel)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name))
