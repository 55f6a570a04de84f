"""From a task and a model to what joins them: the model's head, its tokenizer and the encoding."""

import logging
from dataclasses import replace
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.config.schema import TrainConfig
from dpft.data.chat import ChatEncoding
from dpft.data.collation import TextLayout
from dpft.data.corpus_rows import CorpusEncoding
from dpft.data.encoding import Encoding, TextEncoding
from dpft.data.label_words import LabelWordEncoding, label_word_ids
from dpft.data.sentences import SentenceEncoding
from dpft.errors import InputError
from dpft.generation.decoding import DecodeConfig
from dpft.kinds import CAUSAL, CLASSES, CLASSIFIER, LABEL_WORDS, MASKED, SCORE, SEQ2SEQ, TEXT, Head
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.checkpoint_rows import (
    CheckpointRows,
    NotInShards,
    RowsOfModel,
    checkpoint_rows,
)
from dpft.models.heads import padding_id
from dpft.models.loading import language_head, meta_model, new_names, seeded
from dpft.models.positions import takes_position_ids, takes_token_types
from dpft.models.source import loading_errors
from dpft.models.vocabulary import grow_as_planned, known_tokens, load_with_tokens
from dpft.runs.fused_heads import with_fused_head
from dpft.runs.lengths import check_lengths, with_max_length
from dpft.tasks.base import LabelTask, SeqToSeqTask, Task
from dpft.tasks.classification import CLS, ClassificationTask
from dpft.tasks.corpus import SPANS, CorpusTask
from dpft.tasks.custom_chats import CustomChats
from dpft.tasks.custom_texts import CustomTexts
from dpft.tasks.records import LabelledExample

logger = logging.getLogger(__name__)


def head_of(task: Task, architecture: Architecture) -> Head:
    """Returns what the model must answer with to do the task.

    Raises:
        InputError: The model cannot do the task.
    """
    kind, name = language_head(architecture).kind, architecture.model.name
    if isinstance(task, ClassificationTask):
        if task.objective != CLS:
            return Head(kind=kind)
        if kind == SEQ2SEQ:
            raise InputError(
                f"task.objective=cls needs an encoder or a causal model, got {name}, which is"
                " seq2seq; it answers with label words, task.objective=infilling."
            )
        return Head(kind=CLASSIFIER, labels=() if task.is_score else task.labels)
    if isinstance(task, CorpusTask):
        task.objective_for(kind)
        return Head(kind=kind)
    if isinstance(task, CustomChats) and kind != CAUSAL:
        raise InputError(
            f"task.messages needs a causal model with a chat template, got {name}, which is {kind}."
        )
    if isinstance(task, SeqToSeqTask) and kind != SEQ2SEQ:
        raise InputError(
            f"task={task.name} with task.objective=text2text needs a seq2seq model, got {name},"
            f" which is {kind}; choose one, such as model=t5-small, or another task.objective."
        )
    if kind == MASKED:
        raise InputError(
            f"task={task.name} needs a model that writes, causal or seq2seq, got {name},"
            " which is a masked language model."
        )
    if isinstance(task, CustomTexts) and task.learn_prompt and kind != CAUSAL:
        raise InputError(
            f"task.learn_prompt=true needs a causal model, got {name}, which is {kind}: it reads"
            " its prompt and writes the target alone; drop it, or choose a causal model."
        )
    return Head(kind=kind)


def layout_of(
    task: Task, architecture: Architecture, head: Head, *, words: tuple[int, ...]
) -> TextLayout:
    """Returns how the task's rows lie in a batch of that model; needs no more than config.json.

    Args:
        task: The task.
        architecture: Of the model.
        head: What it answers with.
        words: Token ids of the label words; empty for tasks without.
    """
    config = architecture.config()
    # T5's own configurations leave it out where it is the padding token.
    start = getattr(config, "decoder_start_token_id", None)
    return TextLayout(
        kind=head.kind,
        answer=_answer(task, head),
        pad_token_id=padding_id(config),
        takes_position_ids=takes_position_ids(meta_model(architecture, head)),
        takes_token_types=takes_token_types(config),
        decoder_start_token_id=(config.pad_token_id or 0) if start is None else start,
        words=words,
        outputs=head.num_outputs,
    )


def encoding_of(
    task: Task, architecture: Architecture, head: Head, tokenizer: PreTrainedTokenizerBase
) -> Encoding:
    """Returns how the task's records become what that model reads.

    Raises:
        InputError: A label word is not one token of the tokenizer, a token of the task's is not
            known to it, or ``max_length`` leaves no room for a record.
    """
    causal = head.kind != MASKED
    if head.kind == CLASSIFIER:
        # Padded with the model's own id, by which it finds a row's end.
        layout = layout_of(task, architecture, head, words=())
        return _fitting(
            task,
            SentenceEncoding(tokenizer=tokenizer, layout=layout, max_length=task.longest),
        )
    if not isinstance(task, ClassificationTask):
        layout = layout_of(task, architecture, head, words=())
        layout = replace(layout, pad_token_id=tokenizer.pad_token_id)
        if isinstance(task, CorpusTask) and not _is_plain(task, head):
            return CorpusEncoding(
                tokenizer=tokenizer,
                layout=layout,
                max_length=task.longest,
                span_corruption=task.objective_for(head.kind) == SPANS,
                chunks=task.chunks_per_record,
            )
        kind = ChatEncoding if isinstance(task, CustomChats) else TextEncoding
        return kind(
            tokenizer=tokenizer,
            layout=layout,
            max_length=task.longest,
            special_tokens=known_tokens(task.name, task.special_tokens, tokenizer),
        )
    words = label_word_ids(task.words, tokenizer, after_blank=task.blank_before_mask(causal=causal))
    layout = layout_of(task, architecture, head, words=words)
    made = LabelWordEncoding(
        tokenizer=tokenizer,
        layout=replace(layout, pad_token_id=tokenizer.pad_token_id),
        max_length=task.longest,
        pieces=partial(task.pieces, causal=causal),
        distribution=task.distribution,
    )
    return _fitting(task, made)


def _is_plain(task: CorpusTask, head: Head) -> bool:
    """Returns whether a corpus's texts are rows as any text to learn as a whole is."""
    return head.kind == CAUSAL and task.chunks_per_record == 1


def prepare_model(
    config: TrainConfig,
    architecture: Architecture,
    head: Head,
    *,
    planned: bool = False,
    rows: CheckpointRows | None = None,
) -> tuple[PreTrainedModel, frozenset[str]]:
    """Returns the model that the method makes of the configured one, and its new parameters.

    The task's tokens have their rows before the method sees it. The names are those of the model
    before the method changed it.

    Args:
        config: Says which method and task.
        architecture: Of the model.
        head: What the model answers with.
        planned: Only the shapes matter, so that no tokenizer is needed.
        rows: As in ``load_model``.

    Raises:
        InputError: The model cannot be loaded or mixes examples, or the method does not fit it.
    """
    new = new_names(architecture, head)
    tokens = config.task.special_tokens
    started = () if planned else tokens
    model = load_with_tokens(architecture, head, started, seed=config.train.seed, rows=rows)
    if planned:
        grow_as_planned(model, architecture, head, tokens)
    with seeded(config.train.seed):
        prepared = config.method.prepare(model, new)
    return with_fused_head(prepared, config, architecture, head), new


def prepare_in_shards(
    config: TrainConfig, architecture: Architecture, head: Head
) -> tuple[PreTrainedModel, frozenset[str], RowsOfModel | None]:
    """Returns what ``prepare_model`` does, the checkpoint's weights on the meta device.

    Each rank reads its own rows of them once the model is cut; what the checkpoint lacks is real.
    A model whose weights cannot be read so is loaded whole, and nothing is left to read: one that
    does not come from a checkpoint, or gets rows for new tokens, or of whose weights the method
    makes others.

    Raises:
        InputError: As ``prepare_model``.
    """
    try:
        rows = _rows_of(architecture)
        model, new = prepare_model(config, architecture, head, rows=rows)
        return model, new, rows.emptied(model)
    except NotInShards as error:
        reason = str(error)
    except (InputError, RuntimeError):
        reason = "its weights are changed when it is loaded"  # else it fails again, and says why
    model, new = prepare_model(config, architecture, head)
    logger.warning("parallel=fsdp: each process loads the whole model first: %s", reason)
    return model, new, None


def _rows_of(architecture: Architecture) -> CheckpointRows:
    """Returns the checkpoint of a model.

    Raises:
        NotInShards: There is none.
    """
    if architecture.model.init != "pretrained":
        raise NotInShards("it starts at random")
    with loading_errors(architecture.model):
        return checkpoint_rows(architecture.model)


def training_head(config: TrainConfig, architecture: Architecture) -> Head:
    """Returns what the model of a run answers with, once the run is known to fit it.

    Raises:
        InputError: As ``head_of``, ``new_names`` and ``check_lengths``.
    """
    head = head_of(config.task, architecture)
    new_names(architecture, head)
    check_lengths(
        config.task,
        architecture,
        max_new_tokens=written_tokens(config.task, config.decode) if config.eval.enabled else None,
        extra_positions=config.method.extra_positions,
    )
    return head


def written_tokens(task: Task, decode: DecodeConfig) -> int | None:
    """Returns the most tokens that evaluation writes after a prompt; None for labels."""
    return None if isinstance(task, LabelTask) else decode.max_new_tokens


def check_fit(config: TrainConfig) -> None:
    """Refuses a run whose task, model and method do not go together.

    Raises:
        InputError: As ``training_head``.
    """
    architecture = read_architecture(config.model)
    training_head(with_max_length(config, architecture), architecture)


def _fitting(task: Task, encoding: Encoding) -> Encoding:
    """Returns the encoding of a task's labels once it has made a row of an empty record.

    What must not be cut is the same in every record, so no record need be read to refuse it.
    """
    texts = task.texts_per_record if isinstance(task, ClassificationTask) else 1
    encoding.rows([LabelledExample(texts=("",) * texts, label=0.0)])
    return encoding


def _answer(task: Task, head: Head) -> str:
    """Returns what the task's labels are to that model."""
    if not isinstance(task, ClassificationTask):
        return TEXT
    if head.kind != CLASSIFIER:
        return LABEL_WORDS
    return SCORE if task.is_score else CLASSES
