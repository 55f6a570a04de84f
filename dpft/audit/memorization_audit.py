"""``audit=memorization``: how much of its records a run's model writes on by itself.

Ponomareva et al. 2022, sections 4 and 5.2: records with and without near duplicates among the
training records, of those trained on and of others, are each cut in two (``prefixes``), the model
writes on, or fills hidden spans, greedily, and what it wrote is held against the record. The
records that it was not trained on are the control.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from dpft.audit.base import needed
from dpft.audit.memorization import (
    CONTINUATION,
    SPANS,
    Attempt,
    MemorizationScores,
    scores_of,
)
from dpft.audit.near_duplicates import METHOD, PromptSets, prompt_sets
from dpft.audit.prefixes import CutRow, cut_records, hidden_of
from dpft.audit.run_records import (
    RunRecords,
    Unseen,
    check_writes_texts,
    read_run_records,
)
from dpft.audit.words import whole_text
from dpft.data.encoding import TokenEncoding
from dpft.data.tokenization import TokenizedExample
from dpft.evaluation.samples import spread
from dpft.evaluation.scored import OnProgress, counter
from dpft.generation.batches import batches_by_tokens
from dpft.generation.continuations import Beginning, continuations
from dpft.generation.inference import evaluation_mode
from dpft.kinds import MASKED
from dpft.models.loading import quiet_transformers
from dpft.models.losses import token_logits
from dpft.records.audits import MemorizationAudit
from dpft.records.form import joined, write_record
from dpft.reports.terminal import Grid
from dpft.run_folder import MEMORIZATION, hold_run, private_audit_path
from dpft.runs.progress import batch_progress
from dpft.runs.saved_run import saved_run
from dpft.runs.task_model import TrainedModel, trained_model_of_run
from dpft.tasks.base import TextTask
from dpft.tasks.records import Example
from dpft.training.training_config import DeviceConfig

SETS = tuple(field.name for field in fields(PromptSets))
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


@dataclass(frozen=True, kw_only=True)
class MemorizationResult:
    """What a model wrote of its records; private."""

    hidden: str
    """What the model had to write."""
    prefix_tokens: int
    continuation_tokens: int
    limit: int
    scores: dict[str, MemorizationScores]
    """By set, ``SETS``; those that are not there are left out."""
    not_there: dict[str, str]
    """Why sets are not there, in words, by set."""

    def record(self) -> MemorizationAudit:
        """Returns what ``output=json`` prints: each score by set, shares in percent."""
        by_set = {
            each.name: {name: getattr(scores, each.name) for name, scores in self.scores.items()}
            for each in fields(MemorizationScores)
        }
        settings = {key: value for key, value in vars(self).items() if key != "scores"}
        note = {"note": OWNERS, "near_duplicates": METHOD}
        return joined(MemorizationAudit, **note, **settings, **by_set)

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
    hidden: str | None,
    prefix_tokens: int,
    continuation_tokens: int,
    limit: int,
    device: DeviceConfig,
) -> MemorizationResult:
    """Writes on a run's records with its model, and writes the scores into the run's private/.

    Args:
        run: The folder of a run whose training has ended.
        hidden: What the model is to write; None: what it has learned.
        prefix_tokens: That it is given of a record.
        continuation_tokens: Most that it is to write.
        limit: Most records of each set.
        device: Where the model runs.

    Raises:
        InputError: The run cannot be read, or its model writes no texts, or its records are not
            there or not known, or a library is missing.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()
    config = saved_run(str(run))
    task = check_writes_texts(config)
    for module in ("datasketch", "rapidfuzz"):
        needed(module)
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
        scores = {}
        with batch_progress("memorization", counts=False) as show:
            for name, chosen in sets.items():
                found = writer.scores(cut(chosen.records, rows=chosen.rows), name, show)
                if found is None:
                    not_there[name] = "of no record is anything left to write"
                else:
                    scores[name] = found
        result = MemorizationResult(
            hidden=hidden,
            prefix_tokens=prefix_tokens,
            continuation_tokens=continuation_tokens,
            limit=limit,
            scores=scores,
            not_there=not_there,
        )
        write_record(private_audit_path(run, MEMORIZATION), result.record(), mode=0o600)
    return result


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """The records of a set."""

    records: list[Example]
    rows: list[Sequence[int]] | None
    """Of each the numbers of the rows that were trained on; None: of others, all."""


def _sets(records: RunRecords, limit: int) -> tuple[dict[str, _Chosen], dict[str, str]]:
    """Returns the sets that there are, each cut to the limit, and why others are not there."""
    there = isinstance(records.unseen, Unseen)
    unseen = records.unseen.records if isinstance(records.unseen, Unseen) else []
    places = prompt_sets([*map(whole_text, records.training)], [*map(whole_text, unseen)])
    sets, not_there = {}, {}
    for name in SETS:
        of_training = name.startswith("train")
        source = records.training if of_training else unseen
        chosen: Sequence[int] = getattr(places, name)
        if chosen:
            some = [chosen[at] for at in spread(len(chosen), limit)]
            rows = [records.rows[at] for at in some] if of_training else None
            sets[name] = _Chosen(records=[source[at] for at in some], rows=rows)
        else:
            missing = not of_training and not there
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
        self, cut: Sequence[CutRow], name: str, show: OnProgress
    ) -> MemorizationScores | None:
        """Returns the scores of a set; None where nothing of its records is left to write."""
        write = self._filled if self._encoding.layout.kind == MASKED else self._continued
        written = write([each.beginning for each in cut], counter(name, len(cut), show))
        if not cut:
            return None
        attempts = [
            [self._attempt(*pair) for pair in zip(each.asked, each.written(tokens), strict=True)]
            for each, tokens in zip(cut, written, strict=True)
        ]
        return scores_of(attempts, records=len({each.record for each in cut}))

    def _continued(
        self, beginnings: Sequence[Beginning], count: Callable[[int], None]
    ) -> Sequence[Sequence[int]]:
        return continuations(
            self._model,
            self._encoding.tokenizer,
            beginnings,
            batch_size=self._batch_size,
            on_batch=count,
        )

    def _filled(
        self, beginnings: Sequence[Beginning], count: Callable[[int], None]
    ) -> Sequence[Sequence[int]]:
        """Returns the likeliest token in the place of each mask, all of a row at once."""
        mask = self._encoding.tokenizer.mask_token_id
        found: list[list[int]] = [[] for _ in beginnings]
        lengths = [len(each.read) for each in beginnings]
        with evaluation_mode(self._model):
            for places in batches_by_tokens(lengths, self._batch_size):
                rows = [list(beginnings[at].read) for at in places]
                batch = self._encoding.layout.collate(
                    [TokenizedExample(input_ids=row, labels=row) for row in rows]
                )
                logits = token_logits(self._model, batch.to(self._model.device))
                likeliest = logits.argmax(dim=-1).tolist()
                for at, row, tokens in zip(places, rows, likeliest, strict=True):
                    found[at] = [tokens[n] for n, token in enumerate(row) if token == mask]
                count(len(places))
        return found

    def _attempt(self, continuation: tuple[int, ...], written: tuple[int, ...]) -> Attempt:
        return Attempt(
            continuation=continuation,
            written=written,
            continuation_text=self._text(continuation),
            written_text=self._text(written),
        )

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._encoding.tokenizer.decode(list(tokens), skip_special_tokens=True))
