"""White-box audit: compare each step's noisy gradient with the gradients of the canaries.

Each canary contains words that no other canary contains, so no other canary contributes to the
gradients of their embeddings. If a step trained on a canary, the canary's contribution to these
embeddings points along its own gradient. The inner product of the step's noisy gradient with this
gradient is therefore larger. This is the white-box attack of Steinke, Nasr and Jagielski (2023),
restricted to the embedding rows of a single canary.

A coin flip decides whether a canary is in the training set. Every step scores all canaries,
regardless of their coin flips and of the sampled batch. It scores them along their gradient at the
step's weights and along their gradient before training. The second direction is constant, so noise
that two steps share cancels in the difference of their scores.

Epsilon covers the noisy gradients. Nevertheless the scores stay in private/, because they reveal
coin flips. An attacker combines the scores of a canary into one number. The weights of this sum
depend on the variance of the scores over all canaries, but on no coin flip.

Shapes: m canaries, v tokens, d embedding width, n tokens that occur in exactly one canary.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dpft.data.batches import Batch
from dpft.data.canaries import COIN, Canary
from dpft.data.encoding import Encoding
from dpft.errors import InputError, StateError
from dpft.generation.decoding import evaluation_mode
from dpft.models.losses import per_example_losses
from dpft.run_folder import WHITE_BOX, write_text
from dpft.strict_model import AtLeastOne, StrictModel, parse
from dpft.tasks.base import Task
from dpft.training.listeners import PublicStep

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


class WhiteBoxLine(StrictModel):
    """Line of private/white_box.jsonl: the scores of all canaries at one step."""

    step: AtLeastOne
    """Number of the step."""
    now: tuple[float, ...]
    """Score of each canary along its gradient at the weights of the step."""
    before: tuple[float, ...]
    """Score of each canary along its gradient before training."""


COMMON = 1
"""Number of directions that are treated as common to all canaries. Removing a direction also
removes signal."""


def embeddings(model: "PreTrainedModel") -> nn.Embedding:
    """Return the input embedding table of a model."""
    table: nn.Embedding = model.get_input_embeddings()  # type: ignore[assignment]
    return table


def check_white_box(model: "PreTrainedModel") -> None:
    """Reject a white-box audit if training does not update the input embeddings."""
    if not embeddings(model).weight.requires_grad:
        raise InputError(
            "audit.white_box=true needs a method that trains the input embeddings, such as"
            " method=full. Use such a method, or train_embeddings=true if the method has it.",
            key="audit.white_box",
            value=True,
            hint="audit.white_box=false",
        )


def summed_gradients(model: "PreTrainedModel", batches: Sequence[Batch]) -> list[Tensor]:
    """Return the sum of all canaries' gradients in each table. No sum depends on a coin flip."""
    moved = tables(model)
    sums = [torch.zeros_like(table) for table in moved]
    with evaluation_mode(model), torch.enable_grad():
        for batch in batches:
            loss = per_example_losses(model, batch).sum()
            for total, gradient in zip(sums, torch.autograd.grad(loss, moved), strict=True):
                total += gradient
    return sums


def common_directions(rows: Tensor) -> Tensor:
    """Return the direction in which rows differ most, shape (1, d).

    Every text makes every word less likely, in proportion to the probability that the model assigns
    to the word there. The embeddings of all words therefore move along one direction, by different
    lengths. This component is about a thousand times larger than the effect of one canary and
    carries no information about it.
    """
    _, _, directions = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    leading_directions: Tensor = directions[:COMMON]
    return leading_directions


def remove_common_directions(rows: Tensor, common: Tensor) -> Tensor:
    """Return rows without their mean and without their component along common directions."""
    centered = rows - rows.mean(dim=0)
    return centered - centered @ common.T @ common


def own_lengths(rows: Sequence[Tensor], owners: Tensor, canaries: int) -> Tensor:
    """Return the norm of each canary's gradient, shape (m,).

    The gradient is with respect to the embeddings of the canary's own words.

    Args:
        rows: For each table, the summed gradients of these words' embeddings without the common
            component. Other canaries contribute almost nothing to these gradients.
        owners: Index of the canary that contains each word.
        canaries: Number of canaries, m.
    """
    squares = torch.zeros(canaries, dtype=torch.float64)
    for gradients in rows:
        squares.index_add_(0, owners.cpu(), gradients.double().square().sum(dim=1).cpu())
    return squares.sqrt()


def tables(model: "PreTrainedModel") -> list[nn.Parameter]:
    """Return the trainable input and output embedding tables; tied tables only once."""
    trainable_tables: dict[nn.Parameter, None] = {}
    for module in (embeddings(model), model.get_output_embeddings()):
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.requires_grad:
            trainable_tables[weight] = None
    return list(trainable_tables)


def owners_of(batches: Sequence[Batch], tokens: int) -> Tensor:
    """Return the index of the only row that contains each token, shape (tokens,).

    The index is -1 for a token that no row or more than one row contains.
    """
    owners = torch.full((tokens,), -1)
    rows = [set(_read(batch, row)) for batch in batches for row in range(len(batch))]
    counts = Counter(token for row in rows for token in row)
    for number, row in enumerate(rows):
        owners[[token for token in row if counts[token] == 1]] = number
    return owners


def _read(batch: Batch, row: int) -> Iterator[int]:
    for name in ("input_ids", "decoder_input_ids"):
        if name in batch.inputs:
            yield from batch.inputs[name][row].tolist()


LEAST_VARIANCE = 1e-30
"""Lower bound for the variance of scores."""


@dataclass(frozen=True, kw_only=True)
class StepScores:
    """Scores of each canary at each step, minus the mean of all canaries at that step."""

    now: Tensor
    """Scores along the canary's gradient at the weights of the step, shape (steps, m), float64."""
    before: Tensor
    """Scores along the canary's gradient before training, shape (steps, m), float64."""


def read_white_box(folder: Path, *, canaries: int, steps: int) -> StepScores:
    """Return the scores of a run."""
    path = folder / WHITE_BOX
    by_step = {line.step: line for line, _ in step_lines(path)}
    if set(by_step) != set(range(1, steps + 1)):
        raise InputError(
            f"{path} must contain scores of all {steps} steps, got {len(by_step)}. Train the run"
            " again with audit.white_box=true, or audit only its final model.",
            key=str(path),
            value=len(by_step),
            hint="audit.white_box=false",
        )
    lines = [by_step[step] for step in sorted(by_step)]
    if any({len(line.now), len(line.before)} != {canaries} for line in lines):
        raise _damaged(path)
    now, before = (
        torch.tensor([getattr(line, name) for line in lines], dtype=torch.float64)
        for name in ("now", "before")
    )
    return StepScores(now=_centered_scores(now), before=_centered_scores(before))


def sums(scores: StepScores) -> list[float]:
    """Return the weighted sum of each canary's scores, shape (m,).

    The weight of a step is the inverse variance of its scores over all canaries, which uses no coin
    flip. A large variance comes from differences between canaries that do not depend on the coins.
    """
    weights = 1 / _variances(scores.now)
    return [float(score) for score in (scores.now * weights).sum(dim=0)]


def differences(scores: StepScores) -> list[float]:
    """Return the weighted sum of each canary's squared score differences, shape (m,).

    The differences are between the scores of consecutive steps. Noise that both steps share
    cancels, and only the effect of canaries that took part in one of the steps remains. Each
    difference is divided by the variance of all canaries' differences, so pairs of steps whose
    noise cancels dominate the sum.
    """
    apart = _centered_scores(scores.before[1:] - scores.before[:-1])
    return [float(score) for score in (apart / _variances(apart)).square().sum(dim=0)]


def _variances(rows: Tensor) -> Tensor:
    return rows.square().mean(dim=1, keepdim=True).clamp(min=LEAST_VARIANCE)


def _centered_scores(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=1, keepdim=True)


def step_lines(path: Path) -> Iterator[tuple[WhiteBoxLine, str]]:
    """Yield the scores of each step and their line in the file; skip an incomplete last line."""
    if not path.exists():
        return
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    for line in lines:
        try:
            yield parse(json.loads(line), WhiteBoxLine), line
        except ValueError as error:
            raise _damaged(path) from error


def _damaged(path: Path) -> StateError:
    return StateError(
        f"{path} is damaged: it must contain one line of scores for each step. Restore it from a"
        " backup."
    )


REACH = 5e-3
"""Distance by which embeddings are moved along a noisy gradient to measure the change of a loss, as
a fraction of their norm. The value is large enough for float32 and small enough for the loss to be
nearly linear."""
SHORTEST = 1e-30
TOGETHER = 64
"""Number of canaries in a batch."""


@dataclass(frozen=True, kw_only=True)
class WhiteBoxListener:
    """Listener that records the inner products of the noisy gradient after each step."""

    model: "PreTrainedModel"
    batches: Sequence[Batch]
    """Canaries, on the device of the model."""
    tokens: Tensor
    """Tokens that occur in exactly one canary, shape (n,)."""
    owners: Tensor
    """Index of the canary that contains each of these tokens, shape (n,)."""
    directions: Sequence[Tensor]
    """For each table, the gradients of the canaries in the embeddings of these tokens before
    training, without the common component, shape (n, d) each."""
    lengths: Tensor
    """Norm of these gradients for each canary, shape (m,), float64."""
    common: Sequence[Tensor]
    """For each table, the directions that the gradients have in common, shape (k, d) each."""
    path: Path

    def begin(self, step: int) -> None:
        """Delete the scores of steps that will be taken again."""
        kept = [line for scores, line in step_lines(self.path) if scores.step <= step]
        write_text(self.path, "".join(f"{line}\n" for line in kept), mode=0o600)

    def after_step(self, public: PublicStep) -> None:
        """Append the scores of a step; if scoring fails, log a warning and continue the run.

        An audit of the run reports missing scores.
        """
        try:
            noisy = self.noisy_rows()
            scores = {"now": _written(self.scores(noisy)), "before": _written(self.before(noisy))}
        except RuntimeError as error:
            logger.warning("audit.white_box: step %d not scored: %s", public.step, error)
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": public.step, **scores}) + "\n")

    @torch.no_grad()
    def noisy_rows(self) -> list[Tensor]:
        """Return the noisy gradient of the canaries' own words, shape (n, d) for each table.

        The common component of all rows is removed, because it carries no information about one
        canary.
        """
        rows = [
            torch.zeros_like(table[self.tokens]) if table.grad is None else table.grad[self.tokens]
            for table in tables(self.model)
        ]
        return [
            remove_common_directions(table_rows, some)
            for table_rows, some in zip(rows, self.common, strict=True)
        ]

    @torch.no_grad()
    def scores(self, noisy: Sequence[Tensor]) -> Tensor:
        """Return the inner product of the noisy gradient with each canary's gradient.

        Both gradients are restricted to the embeddings of the canary's own words. The product is
        divided by the norm of the canary's gradient before training. It is computed as the central
        difference of the canary's loss along the noisy gradient, so no backward pass runs while the
        clipper is active. The embeddings of other canaries' words move as well. This affects a
        canary only through the probabilities that the model assigns to these words.

        Returns:
            Scores, shape (m,), float64; 0 without a gradient.
        """
        moved = tables(self.model)
        rows = [table[self.tokens].clone() for table in moved]
        steep = _norm(noisy)
        if steep == 0:
            return torch.zeros(len(self.lengths), dtype=torch.float64)
        reach = REACH * _norm(rows) / steep

        def losses(way: float) -> Tensor:
            for table, values, gradient in zip(moved, rows, noisy, strict=True):
                table[self.tokens] = values + way * reach * gradient
            return losses_of(self.model, self.batches)

        try:
            risen = losses(1.0) - losses(-1.0)
        finally:
            for table, values in zip(moved, rows, strict=True):
                table[self.tokens] = values
        return risen / (2 * reach) / self.lengths.clamp(min=SHORTEST)

    @torch.no_grad()
    def before(self, noisy: Sequence[Tensor]) -> Tensor:
        """Return the inner product of the noisy gradient with each canary's initial gradient.

        The initial gradient is the gradient before training. The product is divided by the norm of
        this gradient, as in ``scores``. The direction is the same at every step, so noise that two
        steps share contributes the same number to both scores.
        """
        products = torch.zeros_like(self.lengths)
        for table_rows, direction in zip(noisy, self.directions, strict=True):
            along = (table_rows.double() * direction.double()).sum(dim=1)
            products.index_add_(0, self.owners.cpu(), along.cpu())
        return products / self.lengths.clamp(min=SHORTEST)


def losses_of(model: "PreTrainedModel", batches: Sequence[Batch]) -> Tensor:
    """Return each canary's loss, shape (m,), float64, on the CPU."""
    with evaluation_mode(model):
        return torch.cat([per_example_losses(model, batch).double().cpu() for batch in batches])


def white_box(
    model: "PreTrainedModel",
    encoding: Encoding,
    task: Task,
    canaries: Sequence[Canary],
    device: torch.device,
    path: Path,
) -> WhiteBoxListener:
    """Return the listener that compares the steps of a run with its canaries."""
    coins = [canary for canary in canaries if canary.kind == COIN]
    encoded = encoding.rows([canary.record(task) for canary in coins])
    pieces = [encoded[at : at + TOGETHER] for at in range(0, len(encoded), TOGETHER)]
    batches = [encoding.layout.collate(piece).to(device) for piece in pieces]
    return listener_of(model, batches, path)


def listener_of(model: "PreTrainedModel", batches: Sequence[Batch], path: Path) -> WhiteBoxListener:
    """Return the listener that compares steps with the canaries in some batches.

    Args:
        model: The model before training.
        batches: The canaries, on the device of the model.
        path: The file to append scores to.
    """
    table = embeddings(model).weight
    owners = owners_of(batches, len(table)).to(table.device)
    tokens = (owners >= 0).nonzero().flatten()
    rows = [total[tokens] for total in summed_gradients(model, batches)]
    common = [common_directions(table_rows) for table_rows in rows]
    directions = [
        remove_common_directions(table_rows, some)
        for table_rows, some in zip(rows, common, strict=True)
    ]
    return WhiteBoxListener(
        model=model,
        batches=batches,
        tokens=tokens,
        owners=owners[tokens],
        directions=directions,
        lengths=own_lengths(directions, owners[tokens], sum(map(len, batches))),
        common=common,
        path=path,
    )


def _written(scores: Tensor) -> list[float]:
    return [float(f"{score:.6e}") for score in scores.tolist()]


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
