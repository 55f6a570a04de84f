"""Each step's noisy gradient against the canaries' own: the scores are the inner products."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from dpft.commands.canary_steps import (
    StepScores,
    WhiteBoxListener,
    check_white_box,
    common_directions,
    differences,
    listener_of,
    own_lengths,
    owners_of,
    read_white_box,
    remove_common_directions,
    summed_gradients,
    sums,
    tables,
)
from dpft.commands.run_cost import check_sharding
from dpft.config.schema import TrainCommand
from dpft.data.batches import Batch
from dpft.errors import StateError
from dpft.models.losses import per_example_losses
from dpft.run_folder import WHITE_BOX
from dpft.training.listeners import PublicStep
from tests.config.test_conf import loaded
from tests.rejections import rejects
from tests.stories.tiny import TRAINING, make_workspace

CANARIES, WORDS, VOCABULARY, SHARED = 4, 3, 24, 0
STEPS = 3


def toy(*, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=tied, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def batches() -> list[Batch]:
    """Two canaries each, of words of their own between two that all share."""
    made = []
    for first in range(0, CANARIES, 2):
        rows = [
            [SHARED, *range(1 + number * WORDS, 1 + (number + 1) * WORDS), SHARED]
            for number in (first, first + 1)
        ]
        ids = torch.tensor(rows)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        made.append(Batch(inputs=inputs, labels=ids))
    return made


def listener(model: LlamaForCausalLM, folder: Path) -> WhiteBoxListener:
    (folder / "private").mkdir()
    made = listener_of(model, batches(), folder / WHITE_BOX)
    generator = torch.Generator().manual_seed(1)
    for table in tables(model):
        table.grad = torch.randn(table.shape, generator=generator)
    return made


def take(steps: WhiteBoxListener, *numbers: int) -> None:
    for step in numbers:
        steps.after_step(PublicStep(step=step, last_step=STEPS, learning_rate=1.0, epsilon=None))


def explicit(model: LlamaForCausalLM, tokens: Tensor, noisy: list[Tensor]) -> Tensor:
    """Each canary's gradient in the rows of ``tokens`` by autograd, times the noisy one."""
    products = []
    for batch in batches():
        for loss in per_example_losses(model, batch):
            gradients = torch.autograd.grad(loss, tables(model), retain_graph=True)
            along = [(g[tokens] * n).sum() for g, n in zip(gradients, noisy, strict=True)]
            products.append(torch.stack(along).sum())
    return torch.stack(products).double()


@pytest.mark.parametrize("tied", [True, False])
def test_scores_are_the_inner_products_of_autograd(tmp_path: Path, tied: bool) -> None:
    model = toy(tied=tied)
    steps = listener(model, tmp_path)
    before = [parameter.clone() for parameter in model.parameters()]
    noisy = steps.noisy_rows()
    expected = explicit(model, steps.tokens, noisy) / steps.lengths
    # float32 losses, REACH apart.
    torch.testing.assert_close(steps.scores(noisy), expected, rtol=2e-3, atol=2e-3)
    assert all(map(torch.equal, before, model.parameters()))


def test_of_the_gradient_before_training_too_and_that_stays(tmp_path: Path) -> None:
    model = toy()
    steps = listener(model, tmp_path)
    noisy = steps.noisy_rows()
    along = (noisy[0] * steps.directions[0]).sum(dim=1).double()
    expected = torch.stack([along[steps.owners == n].sum() for n in range(CANARIES)])
    scores = steps.before(noisy)
    torch.testing.assert_close(scores, expected / steps.lengths)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert torch.equal(steps.before(noisy), scores)


def test_a_resumed_run_forgets_the_scores_of_later_steps(tmp_path: Path) -> None:
    steps = listener(toy(), tmp_path)
    steps.begin(0)
    take(steps, 1, 2, 3)
    first = steps.path.read_text().splitlines()[0]
    with steps.path.open("a") as file:
        file.write('{"step": 4, "no')  # a process that was killed as it wrote
    steps.begin(1)
    assert steps.path.read_text().splitlines() == [first]
    assert steps.path.stat().st_mode & 0o077 == 0
    take(steps, 2, 3)
    found = read_white_box(tmp_path, canaries=CANARIES, steps=STEPS)
    assert found.now.shape == found.before.shape == (STEPS, CANARIES)
    torch.testing.assert_close(found.now.mean(dim=1), torch.zeros(STEPS).double())


def test_missing_steps_and_damaged_scores_are_refused(tmp_path: Path) -> None:
    steps = listener(toy(), tmp_path)
    steps.begin(0)
    take(steps, 1, 3)
    with rejects(str(steps.path), 2):
        read_white_box(tmp_path, canaries=CANARIES, steps=STEPS)
    take(steps, 2)
    with pytest.raises(StateError, match=steps.path.name):
        read_white_box(tmp_path, canaries=CANARIES + 1, steps=STEPS)


def test_a_step_counts_by_how_little_its_scores_vary() -> None:
    rows = torch.tensor([[1.0, -1, 0, 0], [0, 0, 100, -100]]).double()
    quiet, loud = sums(StepScores(now=rows, before=rows))[0::2]
    assert quiet == pytest.approx(100 * loud)


def test_differences_show_who_joined_one_of_two_steps_of_the_same_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 100 * torch.randn((4, 200), generator=generator, dtype=torch.float64)
    noise[1] = noise[0]
    joined = torch.zeros_like(noise)
    joined[1, :50] = 1.0
    apart = differences(StepScores(now=noise, before=noise + joined))
    assert min(apart[:50]) > max(apart[50:])


def test_a_method_that_leaves_the_embeddings_alone_is_refused() -> None:
    model = toy()
    check_white_box(model)
    model.get_input_embeddings().weight.requires_grad_(False)
    with rejects("audit.white_box", True):
        check_white_box(model)


ASKED = (*TRAINING, "audit.white_box=true", "audit.canaries=5", "train.steps=2",
         "privacy.noise_multiplier=1")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rgp", "bitfit"])
def test_a_run_without_such_gradients_is_refused(
    tmp_path: Path, shared_accounting: None, method: str
) -> None:
    sentence = make_workspace(tmp_path).refusal("train", *ASKED, f"method={method}")
    assert "audit.white_box=true" in sentence


@pytest.mark.slow
def test_a_sharded_model_is_refused() -> None:
    command = loaded("train", [*ASKED, "parallel=fsdp"])
    assert isinstance(command, TrainCommand)
    with rejects("audit.white_box", True):
        check_sharding(command.settings())


def batch(*rows: list[int]) -> Batch:
    ids = torch.tensor(rows)
    return Batch(inputs={"input_ids": ids, "attention_mask": torch.ones_like(ids)}, labels=ids)


def test_a_token_has_an_owner_where_one_canary_alone_reads_it() -> None:
    batches = [batch([0, 1, 1], [0, 2, 3]), batch([3, 4, 4])]
    assert owners_of(batches, 6).tolist() == [-1, 0, 1, -1, 2, -1]


@pytest.mark.parametrize("tied", [True, False])
def test_tied_tables_count_once_and_frozen_ones_not_at_all(tied: bool) -> None:
    model = toy(tied=tied)
    assert len(tables(model)) == (1 if tied else 2)
    model.get_input_embeddings().weight.requires_grad_(False)
    assert len(tables(model)) == (0 if tied else 1)


def test_the_sum_of_gradients_is_that_of_all_canaries_and_leaves_nothing_behind() -> None:
    model, batches = toy(tied=True), [batch([0, 1, 1], [0, 2, 3]), batch([3, 4, 4])]
    (total,) = summed_gradients(model, batches)
    losses = torch.cat([per_example_losses(model, each) for each in batches])
    (expected,) = torch.autograd.grad(losses.sum(), tables(model))
    torch.testing.assert_close(total, expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_rows_have_in_common_is_taken_away_whatever_its_length() -> None:
    generator = torch.Generator().manual_seed(0)
    own = 0.01 * torch.randn((4000, 6), generator=generator, dtype=torch.float64)
    along = torch.zeros(6, dtype=torch.float64)
    along[2] = 1.0
    lengths = torch.randn((4000, 1), generator=generator, dtype=torch.float64)
    rows = own + 3.0 + 100 * lengths * along
    left = remove_common_directions(rows, common_directions(rows))
    rest = [at for at in range(6) if at != 2]
    centered = (own - own.mean(dim=0))[:, rest]
    torch.testing.assert_close(left[:, rest], centered, atol=3e-3, rtol=0)
    torch.testing.assert_close(left.mean(dim=0), torch.zeros(6).double())
    assert float(left[:, 2].abs().max()) < 1e-3


def test_a_canary_is_as_long_as_its_rows_of_all_tables_together() -> None:
    tables_rows = [torch.tensor([[3.0, 0], [0, 1]]), torch.tensor([[0.0, 4], [0, 0]])]
    assert own_lengths(tables_rows, torch.tensor([1, 2]), 3).tolist() == [0.0, 5.0, 1.0]
