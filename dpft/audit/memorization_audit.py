"""``audit=memorization``: how much of its records a run's model writes on by itself.

Ponomareva et al. 2022, sections 4 and 5.2: records with and without near duplicates among the
training records, of those trained on and of others, are each cut in two (``prefixes``), the model
writes on greedily, and what it wrote is held against the record. The records that it was not
trained on are the control.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dpft.audit.extra import needed
from dpft.audit.kinds.memorization import Memorization
from dpft.audit.memorization import Attempt, MemorizationScores, scores_of
from dpft.audit.near_duplicates import METHOD, PromptSets, prompt_sets
from dpft.audit.prefixes import cut_records
from dpft.audit.run_records import (
    RunRecords,
    Unseen,
    check_writes_texts,
    read_run_records,
)
from dpft.audit.words import whole_text
from dpft.data.encoding import TextEncoding
from dpft.evaluation.samples import spread
from dpft.evaluation.scored import OnProgress, counter
from dpft.files import SCHEMA_VERSION, write_json
from dpft.generation.continuations import continuations
from dpft.models.loading import quiet_transformers
from dpft.reports.terminal import Grid
from dpft.run_folder import MEMORIZATION, hold_run, private_audit_path
from dpft.runs.progress import batch_progress
from dpft.runs.saved_run import saved_run
from dpft.runs.trained_model import TrainedModel, trained_model_of_run
from dpft.tasks.base import TextTask
from dpft.tasks.records import Example
from dpft.training.training_config import DeviceConfig

SETS = tuple(field.name for field in fields(PromptSets))
OWNERS = "private: it is about the training records, no epsilon covers it, and it stays with the"
OWNERS += " owner of the data"
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

    options: Memorization
    scores: dict[str, MemorizationScores]
    """By set, ``SETS``; those that are not there are left out."""
    not_there: dict[str, str]
    """Why sets are not there, in words, by set."""

    def record(self) -> dict[str, Any]:
        """Returns what ``output=json`` prints: each score by set, shares in percent."""
        by_set = {name: asdict(scores) for name, scores in self.scores.items()}
        kinds = [field.name for field in fields(MemorizationScores)]
        return {
            "schema_version": SCHEMA_VERSION,
            "audit": self.options.name,
            "private": True,
            "note": OWNERS,
            "near_duplicates": METHOD,
            "prefix_tokens": self.options.prefix_tokens,
            "continuation_tokens": self.options.continuation_tokens,
            "limit": self.options.limit,
            "not_there": self.not_there,
            **{kind: {name: scores[kind] for name, scores in by_set.items()} for kind in kinds},
        }

    def parts(self) -> list[Grid | str]:
        """Returns the scores for people, a line for each set, and what they are."""
        rows = [
            (
                name,
                f"{one.records}",
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
            "EM: whole continuations written; TA: tokens in their places; MED: median edit"
            " distance in tokens, and in words as T5 splits them.",
            f"This is {OWNERS}.",
        ]

    def file(self, run: Path) -> str:
        """Returns a sentence that says where the scores are kept."""
        return f"The scores, for the owner of the data alone: {run / MEMORIZATION}"


def audit_memorization(
    run: Path, options: Memorization, *, device: DeviceConfig
) -> MemorizationResult:
    """Writes on a run's records with its model, and writes the scores into the run's private/.

    Args:
        run: The folder of a run whose training has ended.
        options: What is asked.
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
        assert isinstance(encoding, TextEncoding)
        sets, not_there = _sets(read_run_records(run, config, encoding), options.limit)
        writer = _Writer(trained, task, encoding, device, batch_size=config.eval.batch_size)
        scores = {}
        with batch_progress("memorization", counts=False) as show:
            for name, records in sets.items():
                found = writer.scores(records, options, name, show)
                if found is None:
                    not_there[name] = "of no record is anything left to write"
                else:
                    scores[name] = found
        result = MemorizationResult(options=options, scores=scores, not_there=not_there)
        write_json(private_audit_path(run, MEMORIZATION), result.record(), mode=0o600)
    return result


def _sets(records: RunRecords, limit: int) -> tuple[dict[str, list[Example]], dict[str, str]]:
    """Returns the sets that there are, each cut to the limit, and why others are not there."""
    there = isinstance(records.unseen, Unseen)
    unseen = records.unseen.records if isinstance(records.unseen, Unseen) else []
    places = prompt_sets([*map(whole_text, records.training)], [*map(whole_text, unseen)])
    sets, not_there = {}, {}
    for name in SETS:
        source = records.training if name.startswith("train") else unseen
        chosen: Sequence[int] = getattr(places, name)
        if chosen:
            sets[name] = [source[chosen[at]] for at in spread(len(chosen), limit)]
        else:
            missing = source is unseen and not there
            not_there[name] = str(records.unseen) if missing else NO_NEAR[name]
    return sets, not_there


class _Writer:
    """A run's model, which writes records on."""

    def __init__(
        self,
        trained: TrainedModel,
        task: TextTask,
        encoding: TextEncoding,
        device: DeviceConfig,
        *,
        batch_size: int,
    ) -> None:
        self._encoding, self._batch_size = encoding, batch_size
        self._model = trained.on_device(task, device.prepare())

    def scores(
        self, records: Sequence[Example], options: Memorization, name: str, show: OnProgress
    ) -> MemorizationScores | None:
        """Returns the scores of a set; None where nothing of its records is left to write."""
        cut = cut_records(
            records,
            self._encoding,
            prefix_tokens=options.prefix_tokens,
            continuation_tokens=options.continuation_tokens,
        )
        written = continuations(
            self._model,
            self._encoding.tokenizer,
            [each.beginning for each in cut],
            batch_size=self._batch_size,
            on_batch=counter(name, len(cut), show),
        )
        if not cut:
            return None
        return scores_of(
            [
                self._attempt(each.continuation, tokens)
                for each, tokens in zip(cut, written, strict=True)
            ]
        )

    def _attempt(self, continuation: tuple[int, ...], written: tuple[int, ...]) -> Attempt:
        return Attempt(
            continuation=continuation,
            written=written,
            continuation_text=self._text(continuation),
            written_text=self._text(written),
        )

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._encoding.tokenizer.decode(list(tokens), skip_special_tokens=True))
