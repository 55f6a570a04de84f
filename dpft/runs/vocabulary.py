"""A model and a tokenizer with the tokens that a task adds, the same way in every command."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.batch_mixing import check_model
from dpft.errors import InputError
from dpft.kinds import Head
from dpft.models.architecture import Architecture
from dpft.models.loading import load_model, load_tokenizer
from dpft.models.vocabulary import add_tokens, grow, start_rows
from dpft.tasks.base import Task


def load_with_tokens(
    architecture: Architecture, head: Head, tokens: Sequence[str], *, seed: int
) -> PreTrainedModel:
    """Returns a model on the CPU, with a row for each of the tokens.

    A token that the model's own tokenizer knows has its row already, and keeps it.

    Args:
        architecture: Of the model.
        head: What it answers with.
        tokens: ``Task.special_tokens``.
        seed: As in ``load_model``.

    Raises:
        InputError: It cannot be found or understood, or mixes examples.
    """
    loaded = load_model(architecture, seed=seed, head=head)
    check_model(loaded)
    if tokens:
        start_rows(loaded, add_tokens(load_tokenizer(architecture, kind=head.kind), tokens))
    return loaded


def grow_as_planned(
    loaded: PreTrainedModel, architecture: Architecture, head: Head, tokens: Sequence[str]
) -> None:
    """Gives a model as many rows as ``load_with_tokens`` would, of no particular values.

    A plan needs no more than config.json: where there is no tokenizer, each row of the vocabulary
    is taken to be a token's.

    Args:
        loaded: The model, which may be on the meta device.
        architecture: As in ``load_with_tokens``.
        head: As in ``load_with_tokens``.
        tokens: As in ``load_with_tokens``.
    """
    if not tokens:
        return
    try:
        tokenizer = load_tokenizer(architecture, kind=head.kind)
    except InputError:
        grow(loaded, architecture.vocabulary_size + len(tokens))
        return
    add_tokens(tokenizer, tokens)
    grow(loaded, len(tokenizer))


def known_tokens(task: Task, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Returns the task's tokens, once the tokenizer is known to have them.

    Raises:
        InputError: It lacks one, as that of a run of another task does.
    """
    missing = [token for token in task.special_tokens if token not in tokenizer.get_vocab()]
    if missing:
        raise InputError(
            f"task={task.name} needs a tokenizer with {missing[0]}, which training it adds, got"
            " one without; give a run of this task."
        )
    return task.special_tokens
