"""Outputs of a model on a split: generated texts, predicted labels, likelihoods of references.

This module is separate from ``evaluate`` because only this module needs torch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from dpft.constants import SEQ2SEQ
from dpft.data.batches import Batch
from dpft.data.corpus_objectives import (
    CorpusEncoding,
)
from dpft.data.encoding import Encoding, TextEncoding
from dpft.errors import InputError
from dpft.generation.decoding import (
    DecodeConfig,
    Draws,
    batches_by_tokens,
    evaluation_mode,
    generate_texts,
)
from dpft.models.architecture import max_positions
from dpft.models.losses import answer_values, token_hits, token_nll
from dpft.parallel.ranks import ALONE, Ranks, in_turn, put_together
from dpft.tasks.base import Example, LabeledExample, LabeledImage, Record


class Likelihoods(NamedTuple):
    """A model's likelihoods of references, with one entry per reference."""

    nll_sums: list[float]
    """Negative log-likelihood, summed over the tokens of the reference, in nats."""
    token_counts: list[int]
    """Number of tokens of the reference, including end-of-text."""


class NextTokens(NamedTuple):
    """Numbers of reference tokens that a model predicts correctly, with one entry per reference."""

    right_counts: list[int]
    """Number of tokens that the model ranks first, given the previous tokens."""
    token_counts: list[int]
    """Number of tokens of the reference, including end-of-text."""


class PairLikelihoods(NamedTuple):
    """A model's log-likelihoods of preference pairs, with one entry per pair, in nats."""

    chosen: list[float]
    rejected: list[float]
    tokens: list[int]
    """Number of tokens of the chosen answer, including end-of-text."""


@dataclass(frozen=True, kw_only=True)
class ModelOutputs:
    """A model with everything that is necessary to compute its outputs for evaluation."""

    model: PreTrainedModel
    """The model, on the device to run on; it is not changed."""
    encoding: Encoding
    """Encoding of records as model inputs."""
    batch_size: int
    """Batch size for the longest inputs; batches of shorter inputs contain the same number of
    tokens. Affects only memory and speed."""
    extra_positions: int = 0
    """Number of positions of the model that a prompt or prefix occupies before the text."""
    ranks: Ranks = ALONE
    """The processes that have this model. Each process computes a share of the outputs and receives
    all outputs."""

    def texts(
        self,
        examples: Sequence[Example],
        decode: DecodeConfig,
        on_batch: Callable[[int], None],
        draws: Draws | None = None,
    ) -> list[str]:
        """Return the model's text for the prompt of each example.

        A prompt is truncated to ``max_length``, or to fewer tokens if the model has too few
        positions for prompt and answer.

        Args:
            examples: One example of each distinct input; their targets are not read.
            decode: The decoding method.
            on_batch: Called after each batch with the number of its examples.
            draws: See ``generate_texts``.

        Raises:
            InputError: ``decode.max_new_tokens`` leaves no positions for a prompt.
        """
        encoding = self.encoding
        if not isinstance(encoding, TextEncoding | CorpusEncoding):
            raise InputError(
                "This command needs a task with text answers, but the answers of the task are"
                " labels.",
                key="task",
            )
        # The answer of a seq2seq model does not take up positions of its prompt.
        written = 0 if encoding.layout.kind == SEQ2SEQ else decode.max_new_tokens
        room = encoding.max_length + written
        positions = max_positions(self.model.config)
        mine = in_turn(len(examples), self.ranks)
        prompts = encoding.prompts(
            [examples[at] for at in mine],
            max_length=room if positions is None else min(positions - self.extra_positions, room),
            max_new_tokens=decode.max_new_tokens,
        )
        places = range(len(examples)) if draws is None else draws.places
        local_draws = Draws(
            places=[places[at] for at in mine], attempt=0 if draws is None else draws.attempt
        )
        with self.ranks.failing_together():
            texts = generate_texts(
                self.model,
                encoding.tokenizer,
                prompts,
                config=decode,
                batch_size=self.batch_size,
                on_batch=self._of_all(on_batch),
                draws=local_draws,
                sentinels=encoding.asked_sentinels,
                answer_ids=encoding.answer_ids,
            )
        return put_together([encoding.answer(text) for text in texts], self.ranks)

    def reference(self, example: Example) -> str:
        """Return the text that ``texts`` would return if the model generated the target exactly."""
        encoding = self.encoding
        return encoding.reference(example) if isinstance(encoding, TextEncoding) else example.target

    def likelihoods(
        self, examples: Sequence[Example], on_batch: Callable[[int], None]
    ) -> Likelihoods:
        """Return the model's likelihood of each example's target given its prompt.

        The tokens of the prompt do not count, even if the model learned to generate them.

        Returns:
            One entry per example, in no particular order.
        """
        return Likelihoods(*self._of_targets(token_nll, examples, on_batch))

    def next_tokens(
        self, examples: Sequence[Example], on_batch: Callable[[int], None]
    ) -> NextTokens:
        """Return the number of target tokens of each example that the model ranks first."""
        return NextTokens(*self._of_targets(token_hits, examples, on_batch))

    def pairs(
        self, examples: Sequence[Example], on_batch: Callable[[int], None]
    ) -> PairLikelihoods:
        """Return the model's log-likelihoods of both answers of each preference pair.

        Returns:
            One entry per pair, in no particular order.
        """
        chosen: list[float] = []
        rejected: list[float] = []
        tokens: list[int] = []
        mine = [examples[at] for at in in_turn(len(examples), self.ranks)]
        with self.ranks.failing_together():
            for places, batch in self._batches(mine):
                nll_sums, counts = token_nll(self.model, batch)
                chosen += (-nll_sums[::2]).tolist()
                rejected += (-nll_sums[1::2]).tolist()
                tokens += counts[::2].tolist()
                self._of_all(on_batch)(len(places))
        columns = (put_together(column, self.ranks) for column in (chosen, rejected, tokens))
        return PairLikelihoods(*columns)

    def _of_targets(
        self,
        measure: Callable[[PreTrainedModel, Batch], tuple[Tensor, Tensor]],
        examples: Sequence[Example],
        on_batch: Callable[[int], None],
    ) -> tuple[list[Any], list[int]]:
        """Return the two results of ``measure`` for each target, in no particular order."""
        columns: tuple[list[Any], list[int]] = ([], [])
        mine = in_turn(len(examples), self.ranks)
        targets = [replace(examples[at], learns_prompt=False) for at in mine]
        with self.ranks.failing_together():
            for _, batch in self._batches(targets):
                for numbers, more in zip(columns, measure(self.model, batch), strict=True):
                    numbers.extend(more.tolist())
                self._of_all(on_batch)(len(batch))
        return put_together(columns[0], self.ranks), put_together(columns[1], self.ranks)

    def answers(
        self, examples: Sequence[LabeledExample | LabeledImage], on_batch: Callable[[int], None]
    ) -> list[list[float]]:
        """Return the model's answer to each record, in order.

        Returns:
            For each record, the probabilities of label words, classes or attributes, or a score.
        """
        mine = [examples[at] for at in in_turn(len(examples), self.ranks)]
        answers: dict[int, list[float]] = {}
        with self.ranks.failing_together():
            for indices, batch in self._batches(mine):
                values = answer_values(self.model, batch)
                answers.update(zip(indices, values.tolist(), strict=True))
                self._of_all(on_batch)(len(batch))
        return put_together([answers[index] for index in range(len(mine))], self.ranks)

    def _of_all(self, on_batch: Callable[[int], None]) -> Callable[[int], None]:
        """Return ``on_batch`` scaled by the number of processes, which have equal shares."""
        return lambda count: on_batch(count * self.ranks.size)

    def _batches(self, examples: Sequence[Record]) -> Iterator[tuple[list[int], Batch]]:
        """Yield the records in batches on the model's device, longest first, without dropout.

        Each batch is preceded by the positions of its records in ``examples``.
        """
        rows = self.encoding.rows(examples)
        with evaluation_mode(self.model):
            for indices in batches_by_tokens(
                [*map(self.encoding.layout.cost, rows)], self.batch_size
            ):
                batch = self.encoding.layout.collate([rows[index] for index in indices])
                yield indices, batch.to(self.model.device)
