"""What a model says about a split: the texts it writes and the likelihood it gives to others'.

It stands apart from ``evaluate`` because it alone needs torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.data.collation import collate
from dpft.data.tokenization import tokenize, tokenize_prompts
from dpft.evaluation.groups import Group
from dpft.generation.decoding import DecodeConfig, generate_texts
from dpft.generation.inference import evaluation_mode
from dpft.models.losses import token_nll
from dpft.tasks.base import Example


class Likelihoods(NamedTuple):
    """A model's likelihood of some references, one entry each."""

    nll_sums: list[float]
    """Negative log-likelihood summed over the reference's tokens, in nats."""
    token_counts: list[int]
    """Tokens of the reference, end-of-text included."""


@dataclass(frozen=True, kw_only=True)
class ModelOutputs:
    """A causal language model as evaluation reads it."""

    model: PreTrainedModel
    """On the device it shall run on; left as it was."""
    tokenizer: PreTrainedTokenizerBase
    """Its end-of-text token also pads."""
    max_length: int
    """Longest example in tokens, cut as at training."""
    batch_size: int
    """Inputs at once; memory and speed only."""

    def texts(
        self, groups: Sequence[Group], decode: DecodeConfig, on_batch: Callable[[int], None]
    ) -> list[str]:
        """Returns the model's text for each group.

        A prompt is cut to ``max_length``, or shorter where the model's positions end before
        prompt and answer do.

        Args:
            groups: Inputs; their examples share a prompt.
            decode: How a text is chosen.
            on_batch: Called after each batch with the number of groups it held.

        Raises:
            InputError: ``decode.max_new_tokens`` leaves no room for a prompt.
        """
        positions: int = self.model.config.max_position_embeddings
        prompts = tokenize_prompts(
            [group.examples[0] for group in groups],
            self.tokenizer,
            max_length=min(positions, self.max_length + decode.max_new_tokens),
            max_new_tokens=decode.max_new_tokens,
        )
        return generate_texts(
            self.model,
            self.tokenizer,
            prompts,
            config=decode,
            batch_size=self.batch_size,
            on_batch=on_batch,
        )

    def likelihoods(
        self, examples: Sequence[Example], on_batch: Callable[[int], None]
    ) -> Likelihoods:
        """Returns the model's likelihood of each example's target given its prompt.

        Args:
            examples: Records of the split.
            on_batch: Called after each batch with the number of examples it held.

        Returns:
            One entry per example, in no particular order.
        """
        tokenized = tokenize(examples, self.tokenizer, max_length=self.max_length)
        tokenized.sort(key=lambda example: -len(example.input_ids))
        found = Likelihoods([], [])
        with evaluation_mode(self.model):
            for start in range(0, len(tokenized), self.batch_size):
                rows = tokenized[start : start + self.batch_size]
                batch = collate(rows, self.tokenizer.eos_token_id).to(self.model.device)
                nll_sums, token_counts = token_nll(self.model, batch)
                found.nll_sums.extend(nll_sums.tolist())
                found.token_counts.extend(token_counts.tolist())
                on_batch(len(rows))
        return found
