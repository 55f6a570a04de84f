"""White-box audit: compare each step's noisy gradient with the gradients of the canaries.

A canary's words have embeddings of their own, whose gradient no other canary's words have a part
in. What the canary added to a step lies there along its own gradient, so that their inner product
is larger where it was trained on (the white-box attack of Steinke, Nasr and Jagielski 2023, on the
rows where a canary is alone). All canaries are scored at every step, whatever their coins
and whatever was drawn, along their gradient at the step's weights, and along the one before
training: that direction stays, so that noise which two steps share is gone from the difference.
The noisy gradients are what epsilon covers; the scores stay in private/ all the same, since they
tell of the coins. An attacker makes of a canary's scores one, without a look at a coin: its worth
shows in how much the scores of all canaries vary.

Shapes: m canaries, v tokens, d numbers of an embedding, n tokens that one canary has alone.
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
    """A line of private/white_box.jsonl: what a step's noisy gradient has of every canary's own."""

    step: AtLeastOne
    """Number of the step."""
    now: tuple[float, ...]
    """Along each canary's gradient at the step's own weights."""
    before: tuple[float, ...]
    """Along its gradient before training."""


COMMON = 1
"""Directions that are taken for common to all canaries; each more costs signal."""


def embeddings(model: "PreTrainedModel") -> nn.Embedding:
    """Return the table of what a model reads."""
    table: nn.Embedding = model.get_input_embeddings()  # type: ignore[assignment]
    return table


def check_white_box(model: "PreTrainedModel") -> None:
    """Reject to hold steps against canaries where no step moves the embeddings of their words."""
    if not embeddings(model).weight.requires_grad:
        raise InputError(
            "audit.white_box=true needs a method that trains the input embeddings, such as"
            " method=full. Use such a method, or train_embeddings=true if the method has it.",
            key="audit.white_box",
            value=True,
            hint="audit.white_box=false",
        )


def summed_gradients(model: "PreTrainedModel", batches: Sequence[Batch]) -> list[Tensor]:
    """Return the sum of the canaries' gradients in each table; nothing of it depends on a coin."""
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

    Every text makes every word less likely, by the chance that the model gives it there, so that
    all words' embeddings move along one direction, each by another length. That is a thousand
    times what one canary does to them, and says nothing of it.
    """
    _, _, directions = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    leading_directions: Tensor = directions[:COMMON]
    return leading_directions


def remove_common_directions(rows: Tensor, common: Tensor) -> Tensor:
    """Return rows without their mean and without what lies along common directions."""
    centered = rows - rows.mean(dim=0)
    return centered - centered @ common.T @ common


def own_lengths(rows: Sequence[Tensor], owners: Tensor, canaries: int) -> Tensor:
    """Return the norm of each canary's gradient in the embeddings of its own words, shape (m,).

    Rows are of each table the summed gradients of these words, in which hardly anything comes of
    other canaries once the common part is taken away; owners are the numbers of their canaries.
    """
    squares = torch.zeros(canaries, dtype=torch.float64)
    for gradients in rows:
        squares.index_add_(0, owners.cpu(), gradients.double().square().sum(dim=1).cpu())
    return squares.sqrt()


def tables(model: "PreTrainedModel") -> list[nn.Parameter]:
    """Return the embeddings that train, of what is read and what is written; tied ones once."""
    trainable_tables: dict[nn.Parameter, None] = {}
    for module in (embeddings(model), model.get_output_embeddings()):
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.requires_grad:
            trainable_tables[weight] = None
    return list(trainable_tables)


def owners_of(batches: Sequence[Batch], tokens: int) -> Tensor:
    """Return of each token the number of the row that alone reads it, or -1, shape (tokens,)."""
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
"""The least variance that is believed."""


@dataclass(frozen=True, kw_only=True)
class StepScores:
    """Each canary's score at each step of a run, less the mean of all canaries at that step."""

    now: Tensor
    """Along the canary's gradient at the step's own weights, shape (steps, m), float64."""
    before: Tensor
    """Along its gradient before training, shape (steps, m), float64."""


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
    """Return the sum of each canary's scores, shape (m,).

    Each step counts by how little its scores vary, which tells of no coin: where they vary much,
    it is for what canaries differ in anyway.
    """
    weights = 1 / _variances(scores.now)
    return [float(score) for score in (scores.now * weights).sum(dim=0)]


def differences(scores: StepScores) -> list[float]:
    """Return how far each canary's scores at two steps in a row are apart, shape (m,).

    Where both steps had the same noise it is gone, and what is left are the canaries that joined
    one of them alone. Squares are added up, each pair of steps by how little its differences vary:
    one whose noise is gone, by far the most.
    """
    apart = _centered_scores(scores.before[1:] - scores.before[:-1])
    return [float(score) for score in (apart / _variances(apart)).square().sum(dim=0)]


def _variances(rows: Tensor) -> Tensor:
    return rows.square().mean(dim=1, keepdim=True).clamp(min=LEAST_VARIANCE)


def _centered_scores(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=1, keepdim=True)


def step_lines(path: Path) -> Iterator[tuple[WhiteBoxLine, str]]:
    """Yield each step's scores, with its line; none of a line that was never ended."""
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
"""How far embeddings are moved along a noisy gradient, of their own norm, to see what a loss makes
of it: far enough for float32, near enough for the loss to be straight."""
SHORTEST = 1e-30
TOGETHER = 64
"""Canaries that are read at once."""


@dataclass(frozen=True, kw_only=True)
class WhiteBoxListener:
    """Writes down, after each step, the inner products of its noisy gradient."""

    model: "PreTrainedModel"
    batches: Sequence[Batch]
    """The canaries, on the model's device."""
    tokens: Tensor
    """Those that one canary has alone."""
    owners: Tensor
    """Of each such token the number of its canary, shape (n,)."""
    directions: Sequence[Tensor]
    """Of each table the canaries' gradients in the embeddings of such tokens, before training and
    without what they have in common, shape (n, d) each."""
    lengths: Tensor
    """Of each canary the norm of that, shape (m,), float64."""
    common: Sequence[Tensor]
    """Of each table the directions that canaries' gradients have in common, shape (k, d) each."""
    path: Path

    def begin(self, step: int) -> None:
        """Forget the scores of steps that will be taken again."""
        kept = [line for scores, line in step_lines(self.path) if scores.step <= step]
        write_text(self.path, "".join(f"{line}\n" for line in kept), mode=0o600)

    def after_step(self, public: PublicStep) -> None:
        """Add the scores of a step; where that fails the run goes on, and an audit will say so."""
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
        """Return the noisy gradient of the canaries' own words, shape (n, d) of each table.

        What all their rows have in common is taken away, since that says nothing of one canary.
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
        """Return the inner product of the noisy gradient with each canary's own, over its norm.

        Both are of the embeddings of the canary's own words. It is what the canary's loss makes of
        these embeddings moved along the noisy gradient, there and back, so that nothing runs
        backward while the clipper is at work. Other canaries' words are moved as well, which is
        nothing to a canary but where it might have said them.

        Returns:
            Shape (m,), float64; 0 where there is no gradient.
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
        """Return the inner product with the gradient that a canary had before training.

        As ``scores``, along the same direction at every step: noise that two steps have in common
        is the same number in both.
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
    """Return the listener that holds a run's steps against its canaries."""
    coins = [canary for canary in canaries if canary.kind == COIN]
    encoded = encoding.rows([canary.record(task) for canary in coins])
    pieces = [encoded[at : at + TOGETHER] for at in range(0, len(encoded), TOGETHER)]
    batches = [encoding.layout.collate(piece).to(device) for piece in pieces]
    return listener_of(model, batches, path)


def listener_of(model: "PreTrainedModel", batches: Sequence[Batch], path: Path) -> WhiteBoxListener:
    """Return who holds steps against the canaries of some batches, on the model's device."""
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
