"""Evaluate a model, or a file of predictions, on a split: predict, then compute metrics.

One prediction is written per distinct input and compared to all of the input's references.
Metrics say what they read (texts, likelihoods); what nothing can supply, such as likelihoods for a
file of outputs, stands under ``not_computed`` with the reason: no metric is silently absent.

Texts are grouped: one is written for each distinct input, and compared to all of its references.
Labels and attributes are not: each record is scored apart. `ANSWERS` has the three kinds; their
methods choose what is scored and return `Scored`, the predictions and the columns that metrics
read. ``compute_metrics`` gives each metric a value or a reason why it has none.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import eq
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dpft.errors import InputError
from dpft.evaluation.eval_config import EvalConfig, MetricsConfig
from dpft.evaluation.metrics.base import (
    ATTRIBUTES,
    LABELS,
    LIKELIHOODS,
    NEXT_TOKENS,
    PAIRS,
    RANKINGS,
    TEXTS,
    MetricSpec,
    NotComputed,
    metric_specs,
)
from dpft.evaluation.predictions import Prediction, sample_records
from dpft.evaluation.scores import (
    STAGES,
    ConfusedClasses,
    ScoreEntry,
    Stage,
    StageScores,
    split_note,
)
from dpft.evaluation.words import ENGLISH
from dpft.generation.decoding import DecodeConfig
from dpft.tasks.base import (
    Example,
    LabeledExample,
    LabeledImage,
    LabelTask,
    Record,
    Task,
    TextTask,
    TextualTask,
    are_texts,
)
from dpft.tasks.images import ImageTask

if TYPE_CHECKING:
    from dpft.evaluation.outputs import ModelOutputs


Columns = Mapping[str, Sequence[Any]]
"""Column name to its values, all of one length."""

_WHY_MISSING = {
    TEXTS: "needs predictions, one text per input",
    LIKELIHOODS: "needs the model's likelihoods; a predictions file holds texts only",
    NEXT_TOKENS: "needs the model's likelihoods; a predictions file holds texts only",
    PAIRS: "needs the model's likelihoods of preference pairs",
    LABELS: "needs labels, a predicted and a right one per input",
    RANKINGS: "needs the model's probabilities; a predictions file holds one class per input",
    ATTRIBUTES: "needs attributes, predicted and right ones per input",
}


def compute_metrics(
    names: Sequence[str],
    columns: Mapping[str, Columns],
    settings: MetricsConfig | None = None,
    language: str | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics' values, and the reason of each that has none.

    Args:
        names: Names of metrics of ``dpft.evaluation.metrics``.
        columns: Kind of columns (texts, likelihoods, labels) to the columns; a kind may be absent.
        settings: Models of the metrics' own; None: no models.
        language: ISO 639-1 code of the texts' language; None: not known.

    Returns:
        Finite values by key, and reasons by key; every metric is in one of the two.

    Raises:
        InputError: A metric is unknown, or two share a key.
    """
    values: dict[str, float] = {}
    not_computed: dict[str, str] = {}
    for spec in metric_specs(names):
        try:
            values[spec.reported_as] = _value(spec, columns, settings or MetricsConfig(), language)
        except NotComputed as reason:
            not_computed[spec.reported_as] = str(reason)
    return values, not_computed


def _value(
    spec: MetricSpec,
    columns: Mapping[str, Columns],
    settings: MetricsConfig,
    language: str | None,
) -> float:
    """Return a metric's finite value."""
    from dpft.evaluation.local_metric import compute

    if spec.english_only and language not in (None, ENGLISH):
        raise NotComputed(f"is defined for English texts only, got task.language={language}")
    reason = spec.missing(settings) if spec.inputs in columns else _WHY_MISSING[spec.inputs]
    if reason is not None:
        raise NotComputed(reason)
    value = compute(spec, columns[spec.inputs], settings, language)
    if not math.isfinite(value):
        raise NotComputed(f"not a finite number ({value})")
    return value


MOST_SHOWN = 40
"""Wrongly classed records in a picture."""
LIKELY = 0.5
"""Above it a model says that an attribute is there."""

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Predictions on a split, and the columns that metrics read."""

    count: int
    """Distinct inputs, or records with labels."""
    predictions: tuple[Prediction, ...] = field(repr=False)
    """In the order of the split; none where no metric reads texts."""
    columns: Mapping[str, Columns] = field(repr=False)
    """Kind of columns (texts, likelihoods, labels) to the columns; kinds nothing gave are absent.
    """
    confusion: Sequence[Sequence[int]] = field(default=(), repr=False)
    """How many records of each class, a row each, were taken for each class."""
    picture: bytes | None = field(default=None, repr=False)
    """Some records that were classed wrongly, as PNG."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Scores beside those of the metrics, such as each attribute's."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """An input with the examples that share it, at least one."""

    input: str
    """``Example.group``, which the examples share: for E2E the meaning representation."""
    examples: tuple[Example, ...]
    """In the order of the split."""

    @property
    def references(self) -> tuple[str, ...]:
        """The texts a prediction for this input is compared to; empty ones only without others."""
        targets = tuple(example.target for example in self.examples)
        return tuple(filter(None, targets)) or targets


def group_examples(examples: Sequence[Example], *, limit: int | None = None) -> list[Group]:
    """Return at most ``limit`` groups, in the order of their first occurrence."""
    members: dict[str, list[Example]] = {}
    for example in examples:
        members.setdefault(example.group, []).append(example)
    groups = [Group(input=name, examples=tuple(group)) for name, group in members.items()]
    return groups[:limit]


def _as_read(group: Group, outputs: "ModelOutputs") -> Group:
    """Return the group with the references that a perfect model would generate."""
    examples = (replace(example, target=outputs.reference(example)) for example in group.examples)
    return replace(group, examples=tuple(examples))


class Answers(ABC):
    """Answers of one kind."""

    def to_score(
        self, task: Any, examples: Sequence[Record], config: EvalConfig, split: str
    ) -> Sequence[Any]:
        """Return the inputs or records of a split to score, ``config.limit`` at most.

        Raises:
            InputError: The split is empty.
        """
        if not examples:
            raise InputError(
                f"the {split} split of task {task.name} must have at least one example, got none."
                " Choose another split with eval.split.",
                key="eval.split",
                value=split,
            )
        return self._chosen(examples, config.limit)

    def _chosen(self, examples: Sequence[Record], limit: int | None) -> Sequence[Any]:
        return examples[:limit]

    @abstractmethod
    def inputs(self, task: Any, examples: Sequence[Any]) -> list[str]:
        """Return a split's inputs in the words by which a file of predictions names them."""

    @abstractmethod
    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None = None,
    ) -> Scored:
        """Return a model's answers to the chosen ones, beside the right ones."""

    @abstractmethod
    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """Return the answers in a file of predictions, one text for each of ``chosen``.

        Raises:
            InputError: One is no answer; it is named by its number, not quoted.
        """


class TextAnswers(Answers):
    """A text for each distinct input."""

    def _chosen(self, examples: Sequence[Record], limit: int | None) -> Sequence[Group]:
        assert are_texts(examples)
        return group_examples(examples, limit=limit)

    def inputs(self, task: Any, examples: Sequence[Record]) -> list[str]:
        """See ``Answers.inputs``."""
        return [group.input for group in self._chosen(examples, None)]

    def of_model(
        self,
        task: Any,
        chosen: Sequence[Group],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None = None,
    ) -> Scored:
        """See ``Answers.of_model``; the model is asked for no more than metrics read."""
        kinds = {spec.inputs for spec in metric_specs(task.metrics)}
        scored = Scored(count=len(chosen), predictions=(), columns={})
        if kinds & {TEXTS, LABELS}:
            firsts = [group.examples[0] for group in chosen]
            count = counter("predictions", len(chosen), on_progress)
            texts = outputs.texts(firsts, decode, count)
            scored = self.of_file(task, [_as_read(group, outputs) for group in chosen], texts)
        columns = dict(scored.columns)
        examples = [example for group in chosen for example in group.examples]
        if LIKELIHOODS in kinds:
            count = counter("likelihoods", len(examples), on_progress)
            columns[LIKELIHOODS] = outputs.likelihoods(examples, count)._asdict()
        if NEXT_TOKENS in kinds:
            count = counter("next tokens", len(examples), on_progress)
            columns[NEXT_TOKENS] = outputs.next_tokens(examples, count)._asdict()
        if PAIRS in kinds:
            count = counter("pairs", len(examples), on_progress)
            columns[PAIRS] = outputs.pairs(examples, count)._asdict()
        return replace(scored, columns=columns)

    def of_file(self, task: Any, chosen: Sequence[Group], texts: Sequence[str]) -> Scored:
        """See ``Answers.of_file``; where the texts are labels in words, labels are scored too."""
        assert isinstance(task, TextTask)
        references = [list(group.references) for group in chosen]
        columns: dict[str, Columns] = {
            TEXTS: {"predictions": list(texts), "references": references}
        }
        predicted = task.spelt_labels(texts)
        gold = task.spelt_labels([targets[0] for targets in references])
        if predicted is not None and gold is not None:
            columns[LABELS] = {"predicted": predicted, "gold": gold}
        predictions = tuple(
            Prediction(input=group.input, prediction=text, references=group.references)
            for group, text in zip(chosen, texts, strict=True)
        )
        return Scored(count=len(chosen), predictions=predictions, columns=columns)


class LabelAnswers(Answers):
    """A class or a number for each record."""

    def inputs(self, task: Any, examples: Sequence[LabeledExample | LabeledImage]) -> list[str]:
        """See ``Answers.inputs``: a record's number tells it from others of the same text."""
        return [f"{number}: {example.shown}" for number, example in enumerate(examples)]

    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None = None,
    ) -> Scored:
        """See ``Answers.of_model``."""
        answers = outputs.answers(chosen, counter("predictions", len(chosen), on_progress))
        labels = [task.predicted(answer) for answer in answers]
        scored = self._scored(task, chosen, labels)
        if task.confusable:
            counts = [[0] * len(task.confusable) for _ in task.confusable]
            for record, label in zip(chosen, labels, strict=True):
                counts[int(record.label)][int(label)] += 1
            pairs = zip(chosen, labels, strict=True)
            wrong = [record for record, label in pairs if record.label != label][:MOST_SHOWN]
            scored = replace(scored, confusion=counts, picture=outputs.encoding.picture(wrong))
        if RANKINGS not in {spec.inputs for spec in metric_specs(task.metrics)}:
            return scored
        ranked = [sorted(range(len(one)), key=lambda k: -one[k]) for one in answers]  # noqa: B023
        rankings: Columns = {"ranked": ranked, "gold": [record.label for record in chosen]}
        return replace(scored, columns={**scored.columns, RANKINGS: rankings})

    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """See ``Answers.of_file``: names of classes, or numbers."""
        labels = []
        for number, text in enumerate(texts, start=1):
            try:
                labels.append(task.prediction(text.strip()))
            except InputError as error:
                raise InputError(
                    f"predictions, record {number}: {error}", key="predictions"
                ) from None
        return self._scored(task, chosen, labels)

    def _scored(
        self, task: LabelTask, records: Sequence[LabeledExample], labels: Sequence[float]
    ) -> Scored:
        gold = [record.label for record in records]
        return Scored(
            count=len(records),
            predictions=self._predictions(task, records, labels, gold, task.label_text),
            columns={LABELS: {"predicted": list(labels), "gold": gold}},
        )

    def _predictions(
        self,
        task: Task,
        records: Sequence[Any],
        told: Sequence[Any],
        gold: Sequence[Any],
        spelt: Callable[[Any], str],
    ) -> tuple[Prediction, ...]:
        """Return the answers to records in words, beside the right ones."""
        return tuple(
            Prediction(input=name, prediction=spelt(one), references=(spelt(right),))
            for name, one, right in zip(self.inputs(task, records), told, gold, strict=True)
        )


class AttributeAnswers(LabelAnswers):
    """Several attributes of each record, each there or not."""

    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None = None,
    ) -> Scored:
        """See ``Answers.of_model``: attributes that are likelier than not."""
        answers = outputs.answers(chosen, counter("predictions", len(chosen), on_progress))
        told = [[float(p > LIKELY) for p in one] for one in answers]
        return self._scored_attributes(task, chosen, told)

    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """See ``Answers.of_file``: names of the attributes that are there, a comma between."""
        told = []
        for number, text in enumerate(texts, start=1):
            names = {name.strip() for name in text.split(",") if name.strip()}
            if not names <= set(task.classes):
                raise InputError(
                    f"predictions, record {number}: each prediction must name attributes of the"
                    f" task, such as {task.classes[0]}, separated by commas.",
                    key="predictions",
                )
            told.append([float(name in names) for name in task.classes])
        return self._scored_attributes(task, chosen, told)

    def _scored_attributes(
        self, task: ImageTask, records: Sequence[LabeledImage], told: Sequence[Sequence[float]]
    ) -> Scored:
        """Return attributes of any origin beside the right ones, and the accuracy of each."""

        def spelt(one: Sequence[float]) -> str:
            return ", ".join(name for name, is_one in zip(task.classes, one, strict=True) if is_one)

        gold = [record.answer for record in records]
        columns = zip(zip(*told, strict=True), zip(*gold, strict=True), strict=True)
        right = [sum(map(eq, one, other)) / len(records) for one, other in columns]
        return Scored(
            count=len(records),
            predictions=self._predictions(task, records, told, gold, spelt),
            columns={ATTRIBUTES: {"predicted": list(told), "gold": gold}},
            more={f"accuracy_{name}": one for name, one in zip(task.classes, right, strict=True)},
        )


def counter(task: str, total: int, on_progress: OnProgress | None) -> Callable[[int], None]:
    """Return a function that adds up batch sizes and reports the sum."""
    done = 0

    def count(batch_size: int) -> None:
        nonlocal done
        done = min(total, done + batch_size)
        if on_progress is not None:
            on_progress(task, done, total)

    return count


ANSWERS: dict[str, Answers] = {
    TEXTS: TextAnswers(),
    LABELS: LabelAnswers(),
    ATTRIBUTES: AttributeAnswers(),
}
"""How a task is scored, by ``Task.answers``."""


class Evaluation(StageScores):
    """The scores of one split at one stage, with the predictions they come from; private."""

    picture: bytes | None = Field(default=None, repr=False)
    """Some records that were classed wrongly, as PNG."""
    predictions: tuple[Prediction, ...] = Field(repr=False)
    """In the order of the split; ``record`` leaves them out."""

    def record(self, *, public: bool) -> ScoreEntry:
        """Return the entry for metrics.json; of a public split, with a few texts to be shown."""
        values = self.model_dump(exclude={"picture", "predictions", "confusion"})
        return ScoreEntry(
            **values,
            split_is_public=public,
            note=None if public else split_note(self.split),
            samples=(sample_records(self.predictions) or None) if public else None,
            confusion=self.confusion if public else None,
        )


def evaluate_model(
    outputs: "ModelOutputs",
    task: Task,
    examples: Sequence[Record],
    *,
    config: EvalConfig,
    decode: DecodeConfig,
    metrics: MetricsConfig | None = None,
    split: str | None = None,
    stage: Stage = "after",
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Return the model's scores on the split, and its predictions.

    Args:
        outputs: The model's; of several processes that have it the first one alone scores.
        task: The task the examples are of.
        examples: The split ``config.split``, or the part of it that ``split`` names.
        config: How much of the split is scored.
        decode: How texts are written.
        metrics: Models of the metrics' own; None: no models.
        split: What the split is called; None: ``config.split``.
        stage: Before or after fine-tuning.
        on_progress: Called after each batch.

    Raises:
        InputError: The split is empty, a metric is unknown, or ``decode.max_new_tokens`` leaves
            no room for a prompt.
    """
    name = split or config.split
    answers = ANSWERS[task.answers]
    chosen = answers.to_score(task, examples, config, name)
    scored = answers.of_model(task, chosen, outputs, decode, on_progress)
    if not outputs.ranks.is_rank_0:
        scored = Scored(count=scored.count, predictions=(), columns={})
    return _evaluation(task, name, stage, scored, metrics)


def evaluate_parts(
    outputs: "ModelOutputs",
    task: Task,
    parts: Mapping[str, Sequence[Record]],
    *,
    config: EvalConfig,
    **settings: Any,
) -> list[Evaluation]:
    """Return the scores of each part of a split, by the part's name; see ``evaluate_model``.

    Where the task says so, the mean of them follows, under the split's own name.
    """
    scored = [
        evaluate_model(outputs, task, examples, config=config, split=part, **settings)
        for part, examples in parts.items()
    ]
    if not task.averages_parts or len(scored) < 2:
        return scored
    return [*scored, mean_of(scored, config.split)]


def mean_of(evaluations: Sequence[Evaluation], split: str) -> Evaluation:
    """Return the mean of each score over parts of a split; all parts have the same weight.

    A metric that has no value for one of the parts is omitted.
    """
    first, others = evaluations[0], evaluations[1:]
    named = [name for name in first.metrics if all(name in other.metrics for other in others)]
    return Evaluation(
        task=first.task,
        split=split,
        examples=sum(evaluation.examples or 0 for evaluation in evaluations),
        stage=first.stage,
        metrics={
            name: sum(evaluation.metrics[name] for evaluation in evaluations) / len(evaluations)
            for name in named
        },
        not_computed={},
        signatures=first.signatures,
        predictions=(),
    )


def inputs_of(task: Task, examples: Sequence[Record]) -> list[str]:
    """Return a split's inputs in the words by which a file of predictions names them."""
    return ANSWERS[task.answers].inputs(task, examples)


def score_predictions(
    task: Task,
    examples: Sequence[Record],
    predictions: Sequence[str],
    *,
    config: EvalConfig,
    metrics: MetricsConfig | None = None,
    split: str | None = None,
    stage: Stage = "after",
) -> Evaluation:
    """Return the scores of texts that some system wrote, without a model.

    Args:
        task: The task the examples are of.
        examples: The split ``config.split``.
        predictions: One text per distinct input among the first ``config.limit``, in order of
            first occurrence; ``dpft.evaluation.predictions.read_predictions`` gives them. For
            labels: a class's name or number, or a score, for each record.
        config: How much of the split is scored.
        metrics: Models of the metrics' own; None: no models.
        split: What the split is called; None: ``config.split``.
        stage: Before or after fine-tuning.

    Raises:
        InputError: The split is empty, a metric is unknown, or the numbers of predictions and
            inputs differ.
    """
    name = split or config.split
    answers = ANSWERS[task.answers]
    chosen = answers.to_score(task, examples, config, name)
    if len(predictions) != len(chosen):
        raise InputError(
            f"predictions must contain one for each distinct input of the {name} split, got"
            f" another number, {len(predictions)}.",
            key="predictions",
        )
    scored = answers.of_file(task, chosen, predictions)
    return _evaluation(task, name, stage, scored, metrics)


def _evaluation(
    task: Task, split: str, stage: Stage, scored: Scored, metrics: MetricsConfig | None
) -> Evaluation:
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}.")
    language = task.language if isinstance(task, TextualTask) else None
    values, not_computed = compute_metrics(task.metrics, scored.columns, metrics, language)
    return Evaluation(
        task=task.name,
        split=split,
        examples=scored.count,
        stage=stage,
        metrics={**values, **scored.more},
        not_computed=not_computed,
        confusion=ConfusedClasses(
            labels=tuple(task.confusable), counts=tuple(map(tuple, scored.confusion))
        )
        if scored.confusion
        else None,
        picture=scored.picture,
        signatures={
            spec.reported_as: spec.signature(language)
            for spec in metric_specs(task.metrics)
            if spec.signature is not None
        },
        predictions=scored.predictions,
    )
