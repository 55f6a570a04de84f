"""The text modality: tokenizers, lengths, and the heads and encodings of language models."""

import logging
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dpft.commands.modality import MODALITIES, Modality
from dpft.constants import (
    CAUSAL,
    CLASSES,
    CLASSIFIER,
    LABEL_WORDS,
    MASKED,
    SCORE,
    SEQ2SEQ,
    TEXT,
    Head,
)
from dpft.data.batches import JsonWeights, TextLayout
from dpft.data.chat import ChatEncoding
from dpft.data.classification_rows import LabelWordEncoding, SentenceEncoding, label_word_ids
from dpft.data.corpus_objectives import (
    CorpusEncoding,
)
from dpft.data.encoding import Encoding, TextEncoding
from dpft.data.preference_loss import PreferenceLoss
from dpft.data.preference_rows import PairEncoding, PairLayout, PlainPrompts
from dpft.errors import InputError
from dpft.models.architecture import (
    Architecture,
    language_kind,
    max_positions,
    padding_id,
    takes_position_ids,
    takes_token_types,
)
from dpft.models.loading import add_tokens, known_tokens, language_head, load_tokenizer, meta_model
from dpft.tasks.base import LabeledExample, SeqToSeqTask, Task, TextualTask
from dpft.tasks.classification import CLS, ClassificationTask
from dpft.tasks.corpus import SPANS, CorpusTask
from dpft.tasks.custom import CustomChats, CustomTexts
from dpft.tasks.preference import PreferenceTask

logger = logging.getLogger(__name__)


def _room(positions: int, extra_positions: int) -> int:
    """Return the number of positions left for a text, at least one."""
    if extra_positions >= positions:
        raise InputError(
            f"The prompt or prefix of the method must take fewer than the model's {positions}"
            f" positions, got {extra_positions}. Shorten it, or choose a model with more.",
            key="method",
            value=extra_positions,
        )
    return positions - extra_positions


class TextModality(Modality):
    """Texts, read as tokens."""

    def head(self, task: TextualTask, architecture: Architecture) -> Head:
        """See ``Modality.head``."""
        kind, name = language_head(architecture).kind, architecture.model.name
        if isinstance(task, ClassificationTask):
            if task.objective != CLS:
                return Head(kind=kind)
            if kind == SEQ2SEQ:
                raise InputError(
                    f"task.objective=cls needs an encoder or a causal model, got {name}, which is"
                    " seq2seq and answers with label words.",
                    key="task.objective",
                    value=task.objective,
                    hint="task.objective=infilling",
                )
            return Head(kind=CLASSIFIER, labels=() if task.is_score else task.labels)
        if isinstance(task, CorpusTask):
            task.objective_for(kind)
            return Head(kind=kind)
        if isinstance(task, PreferenceTask) and kind != CAUSAL:
            raise InputError(
                f"task=preference needs a causal model, got {name}, which is {kind}.",
                key="model",
                value=name,
            )
        if isinstance(task, CustomChats) and kind != CAUSAL:
            raise InputError(
                f"task.messages needs a causal model with a chat template, got {name}, which is"
                f" {kind}.",
                key="task.messages",
                value=name,
            )
        if isinstance(task, SeqToSeqTask) and kind != SEQ2SEQ:
            raise InputError(
                f"task={task.name} with task.objective=text2text needs a seq2seq model, got {name},"
                f" which is {kind}. Choose another model or another task.objective.",
                key="task.objective",
                value=kind,
                hint="model=t5-small",
            )
        if kind == MASKED:
            raise InputError(
                f"task={task.name} needs a generative model (causal or seq2seq), got {name}, which"
                " is a masked language model.",
                key="model",
                value=name,
            )
        if isinstance(task, CustomTexts) and task.learn_prompt and kind != CAUSAL:
            raise InputError(
                f"task.learn_prompt=true needs a causal model, but the loss of {name} ({kind})"
                " covers only the target. Remove the key, or choose a causal model.",
                key="task.learn_prompt",
                value=True,
            )
        return Head(kind=kind)

    def fitted(
        self, task: TextualTask, architecture: Architecture, extra_positions: int
    ) -> TextualTask:
        """See ``Modality.fitted``: the longest example, and the objective of a corpus."""
        positions = max_positions(architecture.config())
        room = None if positions is None else _room(positions, extra_positions)
        fitted = task.fitted(room)
        if fitted.longest < task.longest:
            logger.info(
                "task.max_length: %d (default: the longest text of model=%s)",
                fitted.longest,
                architecture.model.name,
            )
        if not isinstance(fitted, CorpusTask) or fitted.objective is not None:
            return fitted
        kind = language_kind(architecture.config())
        return fitted.replace(objective=fitted.objective_for(kind))

    def check_fit(
        self,
        task: TextualTask,
        architecture: Architecture,
        *,
        max_new_tokens: int | None,
        extra_positions: int = 0,
    ) -> None:
        """See ``Modality.check_fit``: reject texts that are longer than the model's positions."""
        positions = max_positions(architecture.config())
        if positions is None:
            return
        room = _room(positions, extra_positions)
        there = f"the model's {positions} positions"
        if extra_positions:
            there = f"{room}, {there} minus {extra_positions} that the method uses"
        if task.longest > room:
            raise InputError(
                f"task.max_length must be at most {there}, got {task.longest}. Lower it, or choose"
                " a model with more positions.",
                key="task.max_length",
                value=task.longest,
                hint=f"task.max_length={room}",
            )
        if max_new_tokens is not None and max_new_tokens >= room:
            raise InputError(
                f"decode.max_new_tokens must be below {there}, got {max_new_tokens}. Lower it, or"
                " choose a model with more positions.",
                key="decode.max_new_tokens",
                value=max_new_tokens,
            )

    def processor(
        self,
        task: TextualTask,
        architecture: Architecture,
        head: Head,
        *,
        folder: Path | None = None,
        tokens: tuple[str, ...] = (),
    ) -> PreTrainedTokenizerBase:
        """See ``Modality.processor``: the tokenizer."""
        if folder is None:
            tokenizer = load_tokenizer(architecture, kind=head.kind)
            add_tokens(tokenizer, tokens)
            return tokenizer
        beside = architecture.model.replace(path=str(folder), tokenizer=None)
        there = replace(architecture, model=beside)
        return load_tokenizer(there, kind=head.kind, added=tokens)

    def layout(self, task: TextualTask, architecture: Architecture, head: Head) -> TextLayout:
        """See ``Modality.layout``."""
        labels = task.labels if isinstance(task, ClassificationTask) else ()
        words = () if head.kind == CLASSIFIER else tuple(range(len(labels)))
        layout = text_layout(task, architecture, head, words=words)
        return pair_layout(task, layout) if isinstance(task, PreferenceTask) else layout

    def encoding(
        self, task: TextualTask, architecture: Architecture, head: Head, processor: Any
    ) -> Encoding:
        """See ``Modality.encoding``.

        Raises:
            InputError: A label word is not one token, the tokenizer lacks a token of the task, or
                ``max_length`` leaves no room for a record.
        """
        causal = head.kind != MASKED
        if head.kind == CLASSIFIER:
            # Rows are padded with the model's own padding id, because the model finds the end of a
            # row by this id.
            layout = text_layout(task, architecture, head, words=())
            return _fitting(
                task, SentenceEncoding(tokenizer=processor, layout=layout, max_length=task.longest)
            )
        if not isinstance(task, ClassificationTask):
            layout = text_layout(task, architecture, head, words=())
            layout = replace(layout, pad_token_id=processor.pad_token_id)
            # A causal model learns the text of a corpus like any other text without a prompt.
            is_plain = head.kind == CAUSAL and task.most_rows == 1
            if isinstance(task, CorpusTask) and not is_plain:
                return CorpusEncoding(
                    tokenizer=processor,
                    layout=layout,
                    max_length=task.longest,
                    span_corruption=task.objective_for(head.kind) == SPANS,
                    chunks=task.chunks_per_record,
                )
            if isinstance(task, CustomTexts) and task.json_weights:
                weights = JsonWeights(weights=task.json_weights, tokenizer=processor)
                layout = replace(layout, token_weights=weights)
            if isinstance(task, PreferenceTask):
                return pair_encoding(task, layout, processor)
            if isinstance(task, CustomChats):
                return ChatEncoding(
                    tokenizer=processor, layout=layout, max_length=task.longest, date=task.date
                )
            return TextEncoding(
                tokenizer=processor,
                layout=layout,
                max_length=task.longest,
                special_tokens=known_tokens(task.name, task.special_tokens, processor),
            )
        is_after_blank = task.blank_before_mask(causal=causal)
        words = label_word_ids(task.words, processor, after_blank=is_after_blank)
        layout = text_layout(task, architecture, head, words=words)
        made = LabelWordEncoding(
            tokenizer=processor,
            layout=replace(layout, pad_token_id=processor.pad_token_id),
            max_length=task.longest,
            pieces=partial(task.pieces, causal=causal),
            distribution=task.distribution,
        )
        return _fitting(task, made)


def pair_layout(task: PreferenceTask, layout: TextLayout) -> PairLayout:
    """Return the layout of pairs in a batch, given the layout of their single rows."""
    loss = PreferenceLoss(
        objective=task.objective, beta=task.beta, label_smoothing=task.label_smoothing
    )
    settings = {field.name: getattr(layout, field.name) for field in fields(layout)}
    return PairLayout(**settings, loss=loss)


def pair_encoding(
    task: PreferenceTask, layout: TextLayout, tokenizer: PreTrainedTokenizerBase
) -> PairEncoding:
    """Return the encoding of pairs as rows: by the model's chat template, or as plain text.

    Raises:
        InputError: The task requires a chat template, but the tokenizer has none.
    """
    has_template = tokenizer.chat_template is not None
    if task.chat_template and not has_template:
        raise InputError(
            "task.chat_template=true needs a tokenizer with a chat template, but the model's"
            " tokenizer has none. Choose an instruction-tuned model, or train on plain text.",
            key="task.chat_template",
            value=True,
            hint="task.chat_template=false",
        )
    single: TextEncoding = PlainPrompts(tokenizer=tokenizer, layout=layout, max_length=task.longest)
    if task.chat_template or (task.chat_template is None and has_template):
        single = ChatEncoding(
            tokenizer=tokenizer, layout=layout, max_length=task.longest, date=task.date
        )
    return PairEncoding(
        tokenizer=tokenizer,
        layout=pair_layout(task, layout),
        max_length=task.longest,
        single=single,
    )


def text_layout(
    task: Task, architecture: Architecture, head: Head, *, words: tuple[int, ...]
) -> TextLayout:
    """Return the layout of the task's rows in a batch for that model; this needs only config.json.

    Args:
        task: The task.
        architecture: The architecture of the model.
        head: The head of the model.
        words: Token ids of the label words; empty for tasks without label words.
    """
    config = architecture.config()
    # T5's own configurations omit this id if it is the id of the padding token.
    start = getattr(config, "decoder_start_token_id", None)
    return TextLayout(
        kind=head.kind,
        answer=_answer(task, head),
        pad_token_id=padding_id(config),
        takes_position_ids=takes_position_ids(meta_model(architecture, head)),
        takes_token_types=takes_token_types(config),
        decoder_start_token_id=(config.get_text_config().pad_token_id or 0)
        if start is None
        else start,
        words=words,
        outputs=head.num_outputs,
    )


def _fitting(task: Task, encoding: Encoding) -> Encoding:
    """Return the encoding of a task with labels, after checking that it can encode an empty record.

    Text that must not be cut is the same in every record. An encoding without room for this text
    can therefore be rejected before any record is read.
    """
    texts = task.texts_per_record if isinstance(task, ClassificationTask) else 1
    encoding.rows([LabeledExample(texts=("",) * texts, label=0.0)])
    return encoding


def _answer(task: Task, head: Head) -> str:
    """Return the kind of answer that the model learns: text, label words, a score or classes."""
    if not isinstance(task, ClassificationTask):
        return TEXT
    if head.kind != CLASSIFIER:
        return LABEL_WORDS
    return SCORE if task.is_score else CLASSES


MODALITIES.register("text")(TextModality())
