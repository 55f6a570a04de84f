"""The audit ``audit=memorization``: how many training records a run's model reproduces.

The audit follows Ponomareva et al. 2022, "Training Text-to-Text Transformers with Privacy
Guarantees", sections 4 and 5.2. There are four sets: training records and other records (the
control), each with and without near duplicates among the training records. Each record is split
into two parts (`dpft.audit.prompted_rows`). The model continues the record, or fills hidden spans,
with greedy decoding. Its output is compared with the record (`scores_of`). The median edit
distances in the paper are up to 229 over 114 tokens, so they cannot be distances of tokens. T5's
library, which the authors used, compares words. This audit reports both distances under different
names.
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
"""Records with and without near duplicates, from the training records and from other records."""
SETS: tuple[RecordSet, ...] = get_args(RecordSet)
NO_WORD = re.compile(r"[^\w]")
OWNERS = "private: it is about the training records, no epsilon covers it, and it stays with the"
OWNERS += " owner of the data"
WHOLE = {CONTINUATION: "continuations reproduced exactly", SPANS: "texts with all spans correct"}
NO_NEAR = {
    "train_dup": "no training record has a near duplicate",
    "train_unique": "every training record has a near duplicate",
    "valid_in_train": "no record that was not trained on is near to one that was",
    "valid_unique": "every record that was not trained on is near to one that was",
}
"""For each set: reason why it is empty although its records were read."""


@AUDITS.register("memorization")
class MemorizationConfig(Audit):
    """Configuration of the audit, conf/audit/memorization.yaml."""

    name: str = "memorization"
    prefix_tokens: AtLeastOne = 512
    """Number of tokens of a record that the model receives, always including the whole prompt of a
    task with prompts. If a record has no more tokens, the model receives its first half (with
    task.objective=prefix_lm, the share that training used). With audit.hidden=spans, the model
    receives all tokens except the spans."""
    continuation_tokens: AtLeastOne = 114
    """Maximum number of tokens that the model must generate; fewer if the record has no more
    tokens."""
    hidden: HiddenPart | None = None
    """Part of the record that the model must generate: the tokens after the prefix (continuation),
    or hidden spans (spans). spans hides 15 % of the tokens, three in a row on average, as in T5. It
    requires a corpus trained with span_corruption or mlm. null selects spans for these two
    objectives, and continuation for all others. Table 3 of Ponomareva et al. 2022 uses continuation
    for span_corruption, too."""
    limit: AtLeastOne = 1000
    """Maximum number of records of each set, selected at even spacing."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``; write the scores to the run's private/ folder."""
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
            # 1. Load the run's model, and choose the rows of each set to generate.
            trained = trained_model_of_run(run.folder, run.config)
            encoding = trained.encoding(task, max_new_tokens=None)
            assert isinstance(encoding, TokenEncoding)  # True for every text task.
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
                    not_there[name] = "no record has tokens left to generate"

            # 2. Generate the rows with the model, and score them.
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

            # 3. Write the scores for the owner of the data.
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
        place = f"Private scores: {run.folder / MEMORIZATION}"
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
    """A span of a record that the model must generate, and the model's output for this span."""

    continuation: tuple[int, ...]
    """Tokens of the span in the record; at least one."""
    written: tuple[int, ...]
    """Tokens that the model generated for the span; there are fewer if the model stopped early."""
    continuation_text: str
    written_text: str


class MemorizationScores(StrictModel):
    """Scores of a model's texts compared with records."""

    records: Count
    """Number of records."""
    rows: Count
    """Number of rows. It exceeds the number of records if the records of a corpus are split into
    chunks. Each row is scored separately, and the other scores are over rows."""
    exact_match: Percent
    """Percentage of rows for which the model reproduced all requested tokens."""
    token_accuracy: Percent
    """Percentage of the requested tokens that are correct at their position, mean over rows."""
    median_edit_distance: NotNegative
    """Levenshtein distance in tokens, summed over the spans of a row, median over rows."""
    median_edit_distance_words: NotNegative
    """Levenshtein distance in words as split by T5, median over rows (``t5_words``)."""
    mean_continuation_tokens: NotNegative
    """Mean number of requested tokens per row."""


def scores_of(rows: Sequence[Sequence[Attempt]], *, records: int) -> MemorizationScores:
    """Return the scores of attempts at one or more rows, each with one or more spans.

    Guarantees:
        ``exact_match`` is at most ``token_accuracy``. The token distance of a row is 0 if and only
        if the row matches.
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
    """Return the number of insertions, deletions and changes between two sequences."""
    distance: int = import_extra("rapidfuzz.distance").Levenshtein.distance(list(one), list(other))
    return distance


def t5_words(text: str) -> list[str]:
    """Return the words of a text, split as in ``edit_distance`` of T5's library.

    The text is lower-cased and split at every character that is not a letter, digit or underscore.
    Punctuation next to a space therefore produces an empty item.

    >>> t5_words("The Eagle, a pub")
    ['the', 'eagle', '', 'a', 'pub']
    """
    return NO_WORD.split(text.lower())


class MemorizationAudit(Versioned):
    """Scores of how well a model reproduces its records.

    There are scores for training records and other records, with and without near duplicates.
    """

    audit: Literal["memorization"] = "memorization"
    """Name of the audit."""
    note: str = OWNERS
    """A sentence that states that the result is only for the owner of the data."""
    private: Literal[True] = True
    """Always true, because the result reveals information about the records."""
    near_duplicates: str = METHOD
    """Description of the criterion for near duplicates."""
    hidden: HiddenPart
    """Part of the record that the model must generate: the continuation of a prefix, or hidden
    spans."""
    prefix_tokens: AtLeastOne
    """Number of tokens that the model receives."""
    continuation_tokens: AtLeastOne
    """Maximum number of tokens that the model must generate."""
    limit: AtLeastOne
    """Maximum number of records of each set."""
    not_there: Mapping[RecordSet, str]
    """Reason for each missing set."""
    scores: Mapping[RecordSet, MemorizationScores]
    """Scores of every set that is not in ``not_there``."""

    def parts(self) -> list[Grid | str]:
        """Return the scores for people: a line for each set, and an explanation of the scores."""
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
            *[f"{name} is empty: {why}." for name, why in self.not_there.items()],
            f"EM: {WHOLE[self.hidden]}; TA: share of correct tokens; MED: median edit distance in"
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
