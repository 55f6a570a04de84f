"""From a task and a model to what joins them: the model's head, its tokenizer and the encoding."""

from dataclasses import replace
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.config.schema import TrainConfig
from dpft.data.collation import CLASSES, LABEL_WORDS, SCORE, TEXT, Layout
from dpft.data.encoding import Encoding, TextEncoding
from dpft.data.label_words import LabelWordEncoding, label_word_ids
from dpft.data.sentences import SentenceEncoding
from dpft.errors import InputError
from dpft.kinds import CLASSIFIER, MASKED, SEQ2SEQ, Head
from dpft.models.checks import check_model
from dpft.models.heads import language_kind
from dpft.models.loading import load_config, load_model, meta_model, new_names, seeded
from dpft.models.positions import max_positions, takes_position_ids
from dpft.models.source import ModelConfig
from dpft.tasks.base import Task
from dpft.tasks.glue import CLS, GlueTask


def head_of(task: Task, model: ModelConfig) -> Head:
    """Returns what the model must answer with to do the task.

    Raises:
        InputError: The model cannot do the task, or cannot be found.
    """
    kind = language_kind(load_config(model))
    if isinstance(task, GlueTask):
        if task.objective != CLS:
            return Head(kind=kind)
        if kind == SEQ2SEQ:
            raise InputError(
                f"task.objective=cls needs an encoder or a causal model, got {model.name}, which is"
                " seq2seq; it answers with label words, task.objective=infilling."
            )
        return Head(kind=CLASSIFIER, labels=() if task.max_score is not None else task.labels)
    if kind == MASKED:
        raise InputError(
            f"task={task.name} needs a model that writes, causal or seq2seq, got {model.name},"
            " which is a masked language model."
        )
    return Head(kind=kind)


def layout_of(task: Task, model: ModelConfig, head: Head, *, words: tuple[int, ...]) -> Layout:
    """Returns how the task's rows lie in a batch of that model; reads config.json alone.

    Args:
        task: The task.
        model: The model.
        head: What it answers with.
        words: Token ids of the label words; empty for tasks without.
    """
    architecture = load_config(model)
    # T5's own configurations leave it out where it is the padding token.
    start = getattr(architecture, "decoder_start_token_id", None)
    pad = architecture.pad_token_id
    return Layout(
        kind=head.kind,
        answer=_answer(task, head),
        pad_token_id=(architecture.eos_token_id or 0) if pad is None else pad,
        takes_position_ids=takes_position_ids(meta_model(model, head)),
        decoder_start_token_id=(pad or 0) if start is None else start,
        words=words,
        outputs=head.num_outputs,
    )


def encoding_of(
    task: Task, model: ModelConfig, head: Head, tokenizer: PreTrainedTokenizerBase
) -> Encoding:
    """Returns how the task's records become what that model reads.

    Raises:
        InputError: A label word is not one token of the tokenizer, or there is no such model.
    """
    causal = head.kind != MASKED
    if not isinstance(task, GlueTask) or head.kind == CLASSIFIER:
        layout = replace(
            layout_of(task, model, head, words=()), pad_token_id=tokenizer.pad_token_id
        )
        made = SentenceEncoding if isinstance(task, GlueTask) else TextEncoding
        return made(tokenizer=tokenizer, layout=layout, max_length=task.max_length)
    words = label_word_ids(task.words, tokenizer, after_blank=task.blank_before_mask(causal=causal))
    layout = layout_of(task, model, head, words=words)
    return LabelWordEncoding(
        tokenizer=tokenizer,
        layout=replace(layout, pad_token_id=tokenizer.pad_token_id),
        max_length=task.max_length,
        pieces=partial(task.pieces, causal=causal),
        distribution=task.distribution,
    )


def prepare_model(config: TrainConfig, head: Head) -> tuple[PreTrainedModel, frozenset[str]]:
    """Returns the model that the method makes of the configured one, and its new parameters.

    The names are those of the model before the method changed it.

    Raises:
        InputError: The model cannot be loaded or mixes examples, or the method does not fit it.
    """
    new = new_names(config.model, head)
    model = load_model(config.model, seed=config.train.seed, head=head)
    check_model(model)
    with seeded(config.train.seed):
        return config.method.prepare(model, new), new


def check_lengths(task: Task, model: ModelConfig, *, max_new_tokens: int | None) -> None:
    """Refuses texts longer than the model's positions.

    Args:
        task: Says how long its records may be.
        model: The model.
        max_new_tokens: Tokens it may write; None where it writes none.

    Raises:
        InputError: Records, or an input with its prediction, may not fit.
    """
    positions = max_positions(load_config(model))
    if positions is None:
        return
    if task.max_length > positions:
        raise InputError(
            f"task.max_length must be at most the model's {positions} positions, got "
            f"{task.max_length}; lower it, or choose a model with more."
        )
    if max_new_tokens is not None and max_new_tokens >= positions:
        raise InputError(
            f"decode.max_new_tokens must be below the model's {positions} positions, got "
            f"{max_new_tokens}; lower it, or choose a model with more."
        )


def _answer(task: Task, head: Head) -> str:
    """Returns what the task's labels are to that model."""
    if not isinstance(task, GlueTask):
        return TEXT
    if head.kind != CLASSIFIER:
        return LABEL_WORDS
    return SCORE if task.max_score is not None else CLASSES
