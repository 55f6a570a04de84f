"""Memorization: how much of its records a model writes, given a prefix or a text with gaps.

Ponomareva et al. 2022, "Training Text-to-Text Transformers with Privacy Guarantees", sections 4 and
5.2: records with and without near duplicates among the training records, of those trained on and of
others (the control), are each cut in two (`cut_records`); the model writes on, or fills hidden
spans, greedily; and what it wrote is scored against the record (`scores_of`). Their median edit
distances of up to 229 over 114 tokens cannot be distances of tokens: T5's library, which they used,
compares words. Both are here, by different names.

A record is asked about as the rows of tokens that were trained on, without the end-of-text token;
of a record in chunks each chunk is a row.

- **continuation**: the model is given the first ``prefix_tokens`` tokens. Whatever it did not learn
  to write (the prompt, unless ``task.learn_prompt``) is always among them, however long it is; and
  of a row that is no longer, it is given the first half. A seq2seq model reads the prompt as in
  training; what the prefix holds beyond it, its decoder is given as written already. Of a corpus,
  whose texts have no prompt, a seq2seq model reads the whole prefix, and of a short text as much of
  it as in training.
- **spans**: the model reads the row but for spans that are hidden at places drawn from its own
  tokens alone, as T5 draws them, and fills them: each after its sentinel, or each token of them at
  once, in place of its mask.
"""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from dpft.audit.audited_run import RunRecords, Unseen, check_writes_texts, read_run_records
from dpft.audit.base import CONTINUATION, SPANS, HiddenPart, import_extra
from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import TrainedModel, trained_model_of_run
from dpft.commands.tracking import batch_progress
from dpft.data.corpora import MEAN_SPAN, NOISE_DENSITY, CorpusEncoding, hidden_spans, public_bits
from dpft.data.encoding import TokenEncoding
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.evaluation.evaluate import OnProgress, counter
from dpft.evaluation.predictions import spread
from dpft.evaluation.text_overlap import METHOD, prompt_sets, whole_text
from dpft.generation.decoding import Prefix, batches_by_tokens, continuations, evaluation_mode
from dpft.kinds import IGNORED_LABEL, MASKED, SEQ2SEQ
from dpft.models.loading import quiet_transformers
from dpft.models.losses import token_logits
from dpft.reports.terminal import Grid
from dpft.run_folder import MEMORIZATION, hold_run, private_audit_path
from dpft.strict_model import (
    AtLeastOne,
    Count,
    NotNegative,
    StrictModel,
    Versioned,
    write_model,
)
from dpft.tasks.base import Example, TextTask
from dpft.training.training_config import DeviceConfig

Percent = Annotated[float, Field(ge=0, le=100)]


RecordSet = Literal["train_dup", "train_unique", "valid_in_train", "valid_unique"]
"""Records with and without near duplicates, trained on and not."""
SETS: tuple[RecordSet, ...] = get_args(RecordSet)


_NO_WORD = re.compile(r"[^\w]")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A stretch of a record, what follows a prefix or a hidden span, and what a model wrote."""

    continuation: tuple[int, ...]
    """Tokens of the record; at least one."""
    written: tuple[int, ...]
    """Tokens of the model, which may have stopped before."""
    continuation_text: str
    written_text: str


class MemorizationScores(StrictModel):
    """Scores of a model's texts against records."""

    records: Count
    """Number of records."""
    rows: Count
    """As many as the records, or more where a corpus's records are cut into chunks; each is asked
    about by itself, and what follows is over them."""
    exact_match: Percent
    """Share of the rows of which all that was asked was written, in percent."""
    token_accuracy: Percent
    """Share of the asked tokens that stand in their places, mean over rows, in percent."""
    median_edit_distance: NotNegative
    """Levenshtein distance in tokens, of several spans their sum, median over rows."""
    median_edit_distance_words: NotNegative
    """Levenshtein distance of T5's words, median over rows (``t5_words``)."""
    mean_continuation_tokens: NotNegative
    """How many tokens are asked of a row."""


def scores_of(rows: Sequence[Sequence[Attempt]], *, records: int) -> MemorizationScores:
    """Returns the scores of attempts at some rows, at least one, each with one stretch or more.

    Guarantees:
        ``exact_match`` is at most ``token_accuracy``, and a distance in tokens is 0 exactly where
        a row matches.
    """
    tokens, words = [], []
    for row in rows:
        tokens.append(sum(edit_distance(one.continuation, one.written) for one in row))
        texts = [(t5_words(one.continuation_text), t5_words(one.written_text)) for one in row]
        words.append(sum(edit_distance(*pair) for pair in texts))
    matches = [all(one.continuation == one.written for one in row) for row in rows]
    asked = [sum(len(one.continuation) for one in row) for row in rows]
    right = [
        sum(a == b for one in row for a, b in zip(one.continuation, one.written, strict=False))
        for row in rows
    ]
    return MemorizationScores(
        records=records,
        rows=len(rows),
        exact_match=100 * statistics.fmean(matches),
        token_accuracy=100 * statistics.fmean(a / b for a, b in zip(right, asked, strict=True)),
        median_edit_distance=statistics.median(tokens),
        median_edit_distance_words=statistics.median(words),
        mean_continuation_tokens=statistics.fmean(asked),
    )


def edit_distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns how many items must be put in, left out or changed to make one of the other."""
    distance: int = import_extra("rapidfuzz.distance").Levenshtein.distance(list(one), list(other))
    return distance


def t5_words(text: str) -> list[str]:
    """Returns a text as ``edit_distance`` of T5's library splits it.

    It is lower-cased and split at every character that is no letter, digit or underscore, so that
    a mark beside a blank makes an empty item.

    >>> t5_words("The Eagle, a pub")
    ['the', 'eagle', '', 'a', 'pub']
    """
    return _NO_WORD.split(text.lower())


Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PromptedRow:
    """A row in two parts."""

    record: int
    """Which of the records it is of."""
    beginning: Prefix
    """The prefix for the model, with the number of tokens that it may write."""
    asked: tuple[Tokens, ...]
    """The stretches that it is to write, in order: one continuation, or the hidden spans. At least
    one, and none empty."""
    sentinels: Tokens = ()
    """Tokens that part what is written, each stretch after its own; none: they follow each
    other."""

    def written(self, tokens: Sequence[int]) -> list[Tokens]:
        """Return the tokens that a model generated for each span; empty for a skipped span."""
        if not self.sentinels:
            starts = [sum(map(len, self.asked[:at])) for at in range(len(self.asked))]
            stops = [*starts[1:], len(tokens)]
            return [tuple(tokens[a:b]) for a, b in zip(starts, stops, strict=True)]
        places = [at for at, token in enumerate(tokens) if token in self.sentinels]
        by_sentinel: dict[int, Tokens] = {}
        for start, stop in zip(places, [*places, len(tokens)][1:], strict=True):
            by_sentinel.setdefault(tokens[start], tuple(tokens[start + 1 : stop]))
        return [by_sentinel.get(sentinel, ()) for sentinel in self.sentinels[: len(self.asked)]]


def hidden_of(asked: HiddenPart | None, encoding: TokenEncoding) -> HiddenPart:
    """Returns which part of a record is hidden from the model, ``CONTINUATION`` or ``SPANS``."""
    masked = encoding.layout.kind == MASKED
    fills = masked or (isinstance(encoding, CorpusEncoding) and encoding.span_corruption)
    hidden = asked or (SPANS if fills else CONTINUATION)
    if hidden == SPANS and not fills:
        raise InputError(
            "audit.hidden=spans needs a run of task.objective=span_corruption or mlm, whose model"
            " has learned to fill spans; leave it out."
        )
    if hidden == CONTINUATION and masked:
        raise InputError(
            "audit.hidden=continuation needs a model that writes, got a masked language model,"
            " which fills spans; leave it out."
        )
    return hidden


def cut_records(
    records: Sequence[Example],
    encoding: TokenEncoding,
    *,
    hidden: HiddenPart | None = None,
    prefix_tokens: int,
    continuation_tokens: int,
    rows: Sequence[Sequence[int]] | None = None,
) -> list[PromptedRow]:
    """Return the rows of the records in two parts; skip rows of which nothing can be asked.

    Args:
        records: Of a task of texts.
        encoding: How they became rows in training.
        hidden: As ``hidden_of``.
        prefix_tokens: That the model is given, where it writes on.
        continuation_tokens: Most that it is to write of a row.
        rows: Of each record the numbers of the rows that are asked about; None: all.
    """
    spans = hidden_of(hidden, encoding) == SPANS
    encoded, counts = encoding.rows_in_chunks(records)
    ends = counts.cumsum()
    cut: list[PromptedRow] = []
    for number in range(len(records)):
        every = range(int(ends[number] - counts[number]), int(ends[number]))
        chosen = every if rows is None else [every[at] for at in rows[number]]
        for row in (encoded[at] for at in chosen):
            if spans:
                assert isinstance(encoding, CorpusEncoding)
                cut += _for_spans(number, row, encoding, continuation_tokens)
            else:
                cut += _for_continuation(number, row, encoding, prefix_tokens, continuation_tokens)
    return cut


def _for_continuation(
    number: int, row: TokenizedExample, encoding: TokenEncoding, prefix: int, most: int
) -> list[PromptedRow]:
    """Return a row that the model continues, or an empty list if nothing of it can be asked."""
    seq2seq = encoding.layout.kind == SEQ2SEQ
    end = encoding.tokenizer.eos_token_id
    read, target = _given_and_learned(row, seq2seq=seq2seq)
    target = target[:-1] if target[-1:] == [end] else target
    begun: list[int] = []
    if seq2seq and isinstance(encoding, CorpusEncoding):
        whole = target if encoding.span_corruption else read + target
        half = len(whole) // 2 if encoding.span_corruption else len(read)
        ends = [end] if encoding.span_corruption else []
        place = prefix if len(whole) > prefix else half
        place = max(1, min(place, encoding.max_length - len(ends)))
        read, rest = whole[:place] + ends, whole[place : place + encoding.max_length]
    else:
        source = len(read) - seq2seq  # A source ends with an end-of-text token of its own.
        # A causal model reads at least one token.
        min_prefix = source if seq2seq else max(1, source)
        length = source + len(target)
        place = max(min_prefix, prefix if length > prefix else length // 2) - source
        begun, rest = target[:place], target[place:]
    asked = tuple(rest[:most])
    if not asked:
        return []
    beginning = Prefix(
        read=tuple(read if seq2seq else read + begun),
        decoder_tokens=tuple(begun) if seq2seq else (),
        max_new_tokens=len(asked),
    )
    return [PromptedRow(record=number, beginning=beginning, asked=(asked,))]


def _given_and_learned(row: TokenizedExample, *, seq2seq: bool) -> tuple[list[int], list[int]]:
    """Return the tokens of a row that the model only reads, and the tokens that it learns."""
    labels = [int(label) for label in row.labels]
    learned = [label for label in labels if label != IGNORED_LABEL]
    if seq2seq:
        return row.input_ids, learned
    num_read = len(labels) - len(learned)
    return row.input_ids[:num_read], row.input_ids[num_read:]


def _for_spans(
    number: int, row: TokenizedExample, encoding: CorpusEncoding, most: int
) -> list[PromptedRow]:
    """Returns a row whose spans are to be filled, or nothing."""
    ids, before = row.input_ids, 0
    if encoding.layout.kind == MASKED:
        before = len(encoding.around[0])
        ids = ids[before : len(ids) - len(encoding.around[1])]
    bits = public_bits(row)
    places = hidden_spans(len(ids), density=NOISE_DENSITY, mean_span=MEAN_SPAN, bits=bits)
    asked: list[Tokens] = []
    for start, stop in places:
        room = most - sum(map(len, asked))
        if stop > start and room > 0:
            asked.append(tuple(ids[start : min(stop, start + room)]))
    if not asked:
        return []
    count = sum(map(len, asked))
    if encoding.layout.kind == MASKED:
        read = list(row.input_ids)
        for (start, _), stretch in zip(places, asked, strict=False):
            hidden = slice(before + start, before + start + len(stretch))
            read[hidden] = [int(encoding.tokenizer.mask_token_id)] * len(stretch)
        beginning = Prefix(read=tuple(read), max_new_tokens=count)
        return [PromptedRow(record=number, beginning=beginning, asked=tuple(asked))]
    view = encoding.view
    assert view is not None
    # Each stretch is written after its sentinel.
    beginning = Prefix(read=tuple(view(row, bits).input_ids), max_new_tokens=count + len(asked))
    return [
        PromptedRow(
            record=number, beginning=beginning, asked=tuple(asked), sentinels=encoding.sentinels
        )
    ]


OWNERS = "private: it is about the training records, no epsilon covers it, and it stays with the"
OWNERS += " owner of the data"
WHOLE = {CONTINUATION: "whole continuations written", SPANS: "texts of which every span is filled"}
NO_NEAR = {
    "train_dup": "no training record has a near duplicate",
    "train_unique": "every training record has a near duplicate",
    "valid_in_train": "no record that was not trained on is near to one that was",
    "valid_unique": "every record that was not trained on is near to one that was",
}
"""Why a set is empty though its records were read."""


class MemorizationAudit(Versioned):
    """How much of its records a model writes on by itself.

    For records with and without near duplicates, trained on and not.
    """

    audit: Literal["memorization"] = "memorization"
    """Which audit."""
    note: str = OWNERS
    """A sentence that says that the result is for the owner of the data alone."""
    private: Literal[True] = True
    """Always: the result tells of the records, and stays with their owner."""
    near_duplicates: str = METHOD
    """What counts as a near duplicate, in words."""
    hidden: HiddenPart
    """What the model is to write: what follows a prefix, or hidden spans."""
    prefix_tokens: AtLeastOne
    """Tokens that the model is given."""
    continuation_tokens: AtLeastOne
    """Most tokens that are asked of it."""
    limit: AtLeastOne
    """Most records of each set."""
    not_there: Mapping[RecordSet, str]
    """Why sets are not there, by set."""
    scores: Mapping[RecordSet, MemorizationScores]
    """The scores of the others."""

    def parts(self) -> list[Grid | str]:
        """Returns the scores for people, a line for each set, and what they are."""
        rows = [
            (
                name,
                f"{one.records}" if one.rows == one.records else f"{one.records} ({one.rows} rows)",
                f"{one.exact_match:.2f}",
                f"{one.token_accuracy:.2f}",
                f"{one.median_edit_distance:g}",
                f"{one.median_edit_distance_words:g}",
            )
            for name, one in self.scores.items()
        ]
        return [
            Grid(columns=("set", "records", "EM %", "TA %", "MED", "MED words"), rows=rows),
            *[f"{name} is not there: {why}." for name, why in self.not_there.items()],
            f"EM: {WHOLE[self.hidden]}; TA: tokens in their places; MED: median edit distance in"
            " tokens, and in words as T5 splits them.",
            f"This is {OWNERS}.",
        ]

    def file(self, run: Path) -> str:
        """Returns a sentence that says where the scores are kept."""
        return f"The scores, for the owner of the data alone: {run / MEMORIZATION}"


def audit_memorization(
    run: Path,
    *,
    hidden: HiddenPart | None,
    prefix_tokens: int,
    continuation_tokens: int,
    limit: int,
    device: DeviceConfig,
) -> MemorizationAudit:
    """Let a run's model complete the run's records, and write the scores into its private/.

    Raises:
        InputError: The run cannot be read, its model generates no texts, its records are missing
            or not known, or a library is missing.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()
    config = saved_run(str(run))
    task = check_writes_texts(config)
    for module in ("datasketch", "rapidfuzz"):
        import_extra(module)
    with hold_run(run):
        trained = trained_model_of_run(run, config)
        encoding = trained.encoding(task, max_new_tokens=None)
        assert isinstance(encoding, TokenEncoding)  # a task of texts is in tokens
        hidden = hidden_of(hidden, encoding)
        sets, not_there = _sets(read_run_records(run, config, encoding), limit)
        cut = partial(
            cut_records,
            encoding=encoding,
            hidden=hidden,
            prefix_tokens=prefix_tokens,
            continuation_tokens=continuation_tokens,
        )
        writer = _Writer(trained, task, encoding, device, batch_size=config.eval.batch_size)
        scores: dict[RecordSet, MemorizationScores] = {}
        with batch_progress("memorization", counts=False) as show:
            for name, chosen in sets.items():
                set_scores = writer.scores(cut(chosen.records, rows=chosen.rows), name, show)
                if set_scores is None:
                    not_there[name] = "of no record is anything left to write"
                else:
                    scores[name] = set_scores
        result = MemorizationAudit(
            hidden=hidden,
            prefix_tokens=prefix_tokens,
            continuation_tokens=continuation_tokens,
            limit=limit,
            scores=scores,
            not_there=not_there,
        )
        write_model(private_audit_path(run, MEMORIZATION), result, mode=0o600)
    return result


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """The records of a set."""

    records: list[Example]
    rows: list[Sequence[int]] | None
    """Of each the numbers of the rows that were trained on; None: of others, all."""


def _sets(records: RunRecords, limit: int) -> tuple[dict[RecordSet, _Chosen], dict[RecordSet, str]]:
    """Return the non-empty sets, each cut to the limit, and why each other set is empty."""
    has_unseen = isinstance(records.unseen, Unseen)
    unseen = records.unseen.records if isinstance(records.unseen, Unseen) else []
    places = prompt_sets([*map(whole_text, records.training)], [*map(whole_text, unseen)])
    sets: dict[RecordSet, _Chosen] = {}
    not_there: dict[RecordSet, str] = {}
    for name in SETS:
        of_training = name.startswith("train")
        source = records.training if of_training else unseen
        chosen: Sequence[int] = getattr(places, name)
        if chosen:
            sample = [chosen[at] for at in spread(len(chosen), limit)]
            rows = [records.rows[at] for at in sample] if of_training else None
            sets[name] = _Chosen(records=[source[at] for at in sample], rows=rows)
        else:
            missing = not of_training and not has_unseen
            not_there[name] = str(records.unseen) if missing else NO_NEAR[name]
    return sets, not_there


class _Writer:
    """A run's model, which writes records on, or fills spans of them."""

    def __init__(
        self,
        trained: TrainedModel,
        task: TextTask,
        encoding: TokenEncoding,
        device: DeviceConfig,
        *,
        batch_size: int,
    ) -> None:
        self._encoding, self._batch_size = encoding, batch_size
        self._model = trained.on_device(task, device.prepare())

    def scores(
        self, cut: Sequence[PromptedRow], name: str, show: OnProgress
    ) -> MemorizationScores | None:
        """Return the scores of a set, or None if nothing of its records can be asked."""
        write = self._filled if self._encoding.layout.kind == MASKED else self._continued
        written = write([row.beginning for row in cut], counter(name, len(cut), show))
        if not cut:
            return None
        attempts = [
            [self._attempt(*pair) for pair in zip(row.asked, row.written(tokens), strict=True)]
            for row, tokens in zip(cut, written, strict=True)
        ]
        return scores_of(attempts, records=len({row.record for row in cut}))

    def _continued(
        self, beginnings: Sequence[Prefix], count: Callable[[int], None]
    ) -> Sequence[Sequence[int]]:
        return continuations(
            self._model,
            self._encoding.tokenizer,
            beginnings,
            batch_size=self._batch_size,
            on_batch=count,
        )

    def _filled(
        self, beginnings: Sequence[Prefix], count: Callable[[int], None]
    ) -> Sequence[Sequence[int]]:
        """Return the most likely token for each mask; all masks of a row are filled at once."""
        mask = self._encoding.tokenizer.mask_token_id
        filled: list[list[int]] = [[] for _ in beginnings]
        lengths = [len(beginning.read) for beginning in beginnings]
        with evaluation_mode(self._model):
            for places in batches_by_tokens(lengths, self._batch_size):
                rows = [list(beginnings[at].read) for at in places]
                batch = self._encoding.layout.collate(
                    [TokenizedExample(input_ids=row, labels=row) for row in rows]
                )
                logits = token_logits(self._model, batch.to(self._model.device))
                likeliest = logits.argmax(dim=-1).tolist()
                for at, row, tokens in zip(places, rows, likeliest, strict=True):
                    filled[at] = [tokens[n] for n, token in enumerate(row) if token == mask]
                count(len(places))
        return filled

    def _attempt(self, continuation: tuple[int, ...], written: tuple[int, ...]) -> Attempt:
        return Attempt(
            continuation=continuation,
            written=written,
            continuation_text=self._text(continuation),
            written_text=self._text(written),
        )

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._encoding.tokenizer.decode(list(tokens), skip_special_tokens=True))
