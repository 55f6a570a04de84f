"""``audit=memorization``: measure how many training records a run's model reproduces.

Ponomareva et al. 2022, "Training Text-to-Text Transformers with Privacy Guarantees", sections 4 and
5.2: records with and without near duplicates among the training records, of those trained on and of
others (the control), are each split in two (`dpft.audit.prompted_rows`); the model writes on, or
fills hidden spans, greedily; and what it wrote is scored against the record (`scores_of`). Their
median edit distances of up to 229 over 114 tokens cannot be distances of tokens: T5's library,
which they used, compares words. Both are here, by different names.
"""

import importlib
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field

from dpft.audit.base import AUDITS, CONTINUATION, SPANS, Audit, AuditedRun, Finding, HiddenPart
from dpft.constants import (
    MASKED,
)
from dpft.errors import InputError
from dpft.evaluation.predictions import spread
from dpft.evaluation.text_overlap import METHOD, prompt_sets, whole_text
from dpft.generation.decoding import (
    DecodingPrompt,
    batches_by_tokens,
    continuations,
    evaluation_mode,
)
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

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dpft.audit.prompted_rows import PromptedRow
    from dpft.data.encoding import TokenEncoding

Percent = Annotated[float, Field(ge=0, le=100)]
RecordSet = Literal["train_dup", "train_unique", "valid_in_train", "valid_unique"]
"""Records with and without near duplicates, trained on and not."""
SETS: tuple[RecordSet, ...] = get_args(RecordSet)
NO_WORD = re.compile(r"[^\w]")
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


@AUDITS.register("memorization")
class MemorizationConfig(Audit):
    """conf/audit/memorization.yaml."""

    name: str = "memorization"
    prefix_tokens: AtLeastOne = 512
    """Tokens of a record that the model is given; of a record that has no more, the first half (of
    task.objective=prefix_lm as much as training reads), and always the whole prompt of a task that
    has one. With audit.hidden=spans all of it is given but the spans."""
    continuation_tokens: AtLeastOne = 114
    """Most tokens that are asked of it; fewer where a record has no more left."""
    hidden: HiddenPart | None = None
    """What the model is to write: continuation, what follows the prefix; or spans, 15 % of the
    tokens, three together on average, as T5 hides them, of a corpus learned by span_corruption or
    mlm. null: spans for these two, continuation for all others. Table 3 of Ponomareva et al. 2022
    has continuation for span_corruption, too."""
    limit: AtLeastOne = 1000
    """Most records of each set, evenly spread over it."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``; the scores are written into the run's private/."""
        from dpft.audit.audited_run import Unseen, check_writes_texts, read_run_records
        from dpft.audit.prompted_rows import hidden_part, prompted_rows
        from dpft.commands.progress_bars import (
            batch_progress,
        )
        from dpft.commands.task_model import trained_model_of_run
        from dpft.data.encoding import TokenEncoding
        from dpft.evaluation.evaluate import counter

        task = check_writes_texts(run.config)
        for module in ("datasketch", "rapidfuzz"):
            import_extra(module)
        with hold_run(run.folder):
            # 1. The run's model, and what it is to write of the records of each set.
            trained = trained_model_of_run(run.folder, run.config)
            encoding = trained.encoding(task, max_new_tokens=None)
            assert isinstance(encoding, TokenEncoding)  # a task of texts is in tokens
            hidden = hidden_part(self.hidden, encoding)
            read = read_run_records(run.folder, run.config, encoding)
            unseen = read.unseen.records if isinstance(read.unseen, Unseen) else []
            sets = prompt_sets([*map(whole_text, read.training)], [*map(whole_text, unseen)])
            rows_of_sets: dict[RecordSet, list[PromptedRow]] = {}
            not_there: dict[RecordSet, str] = {}
            for name in SETS:
                of_training = name.startswith("train")
                records = read.training if of_training else unseen
                places: Sequence[int] = getattr(sets, name)
                places = [places[at] for at in spread(len(places), self.limit)]
                if not places:
                    is_missing = not of_training and isinstance(read.unseen, str)
                    not_there[name] = str(read.unseen) if is_missing else NO_NEAR[name]
                    continue
                rows_of_sets[name] = prompted_rows(
                    [records[at] for at in places],
                    encoding,
                    hidden=hidden,
                    prefix_tokens=self.prefix_tokens,
                    continuation_tokens=self.continuation_tokens,
                    rows=[read.rows[at] for at in places] if of_training else None,
                )
                if not rows_of_sets[name]:
                    del rows_of_sets[name]
                    not_there[name] = "of no record is anything left to write"

            # 2. The model writes it, and is scored.
            model = trained.on_device(task, run.device.prepare())
            tokenizer, batch_size = encoding.tokenizer, run.config.eval.batch_size
            scores: dict[RecordSet, MemorizationScores] = {}
            with batch_progress("memorization", counts=False) as show:
                for name, rows in rows_of_sets.items():
                    count = counter(name, len(rows), show)
                    beginnings = [row.beginning for row in rows]
                    written: Sequence[Sequence[int]]
                    if encoding.layout.kind == MASKED:
                        written = filled_masks(model, encoding, beginnings, batch_size, count)
                    else:
                        written = continuations(
                            model, tokenizer, beginnings, batch_size=batch_size, on_batch=count
                        )
                    attempts = [
                        [
                            Attempt(
                                continuation=target,
                                written=span,
                                continuation_text=_text(tokenizer, target),
                                written_text=_text(tokenizer, span),
                            )
                            for target, span in zip(row.targets, row.written(tokens), strict=True)
                        ]
                        for row, tokens in zip(rows, written, strict=True)
                    ]
                    num_records = len({row.record for row in rows})
                    scores[name] = scores_of(attempts, records=num_records)

            # 3. The scores are written for the owner of the data.
            record = MemorizationAudit(
                hidden=hidden,
                prefix_tokens=self.prefix_tokens,
                continuation_tokens=self.continuation_tokens,
                limit=self.limit,
                scores=scores,
                not_there=not_there,
            )
            path = private_audit_path(run.folder, MEMORIZATION)
            write_model(path, record, mode=0o600)
        place = f"The scores, for the owner of the data alone: {run.folder / MEMORIZATION}"
        return Finding(record=record, parts=record.parts(), files=[place])


def import_extra(module: str) -> ModuleType:
    """Return a module of the ``audit`` extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(
            f"This audit needs the package {package}, which is not installed.",
            key=package,
            hint="pip install 'dpft[audit]'",
        ) from error


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A span of a record, which follows a prefix or is hidden, and what a model wrote for it."""

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
    """Return the scores of attempts at some rows, at least one, each with one span or more.

    Guarantees:
        ``exact_match`` is at most ``token_accuracy``, and a distance in tokens is 0 exactly where
        a row matches.
    """
    token_distances, word_distances, matches, lengths, accuracies = [], [], [], [], []
    for row in rows:
        spans = [(attempt.continuation, attempt.written) for attempt in row]
        texts = [(t5_words(a.continuation_text), t5_words(a.written_text)) for a in row]
        token_distances.append(sum(edit_distance(*pair) for pair in spans))
        word_distances.append(sum(edit_distance(*pair) for pair in texts))
        matches.append(all(continuation == written for continuation, written in spans))
        length = sum(len(continuation) for continuation, _ in spans)
        right = sum(a == b for pair in spans for a, b in zip(*pair, strict=False))
        lengths.append(length)
        accuracies.append(right / length)
    return MemorizationScores(
        records=records,
        rows=len(rows),
        exact_match=100 * statistics.fmean(matches),
        token_accuracy=100 * statistics.fmean(accuracies),
        median_edit_distance=statistics.median(token_distances),
        median_edit_distance_words=statistics.median(word_distances),
        mean_continuation_tokens=statistics.fmean(lengths),
    )


def edit_distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many items must be put in, left out or changed to make one of the other."""
    distance: int = import_extra("rapidfuzz.distance").Levenshtein.distance(list(one), list(other))
    return distance


def t5_words(text: str) -> list[str]:
    """Return a text as ``edit_distance`` of T5's library splits it.

    It is lower-cased and split at every character that is no letter, digit or underscore, so that
    a mark beside a blank makes an empty item.

    >>> t5_words("The Eagle, a pub")
    ['the', 'eagle', '', 'a', 'pub']
    """
    return NO_WORD.split(text.lower())


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
        """Return the scores for people, a line for each set, and what they are."""
        rows = [
            (
                name,
                f"{of_set.records}"
                if of_set.rows == of_set.records
                else f"{of_set.records} ({of_set.rows} rows)",
                f"{of_set.exact_match:.2f}",
                f"{of_set.token_accuracy:.2f}",
                f"{of_set.median_edit_distance:g}",
                f"{of_set.median_edit_distance_words:g}",
            )
            for name, of_set in self.scores.items()
        ]
        return [
            Grid(columns=("set", "records", "EM %", "TA %", "MED", "MED words"), rows=rows),
            *[f"{name} is not there: {why}." for name, why in self.not_there.items()],
            f"EM: {WHOLE[self.hidden]}; TA: tokens in their places; MED: median edit distance in"
            " tokens, and in words as T5 splits them.",
            f"This is {OWNERS}.",
        ]


def filled_masks(
    model: "PreTrainedModel",
    encoding: "TokenEncoding",
    beginnings: Sequence[DecodingPrompt],
    batch_size: int,
    count: Callable[[int], None],
) -> list[list[int]]:
    """Return the most likely token for each mask; all masks of a row are filled at once."""
    from dpft.data.tokenization import TokenizedExample
    from dpft.models.losses import token_logits

    mask = encoding.tokenizer.mask_token_id
    filled: list[list[int]] = [[] for _ in beginnings]
    lengths = [len(beginning.read) for beginning in beginnings]
    with evaluation_mode(model):
        for places in batches_by_tokens(lengths, batch_size):
            rows = [list(beginnings[at].read) for at in places]
            batch = encoding.layout.collate(
                [TokenizedExample(input_ids=row, labels=row) for row in rows]
            )
            likeliest = token_logits(model, batch.to(model.device)).argmax(dim=-1).tolist()
            for at, row, tokens in zip(places, rows, likeliest, strict=True):
                filled[at] = [tokens[n] for n, token in enumerate(row) if token == mask]
            count(len(places))
    return filled


def _text(tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True))
