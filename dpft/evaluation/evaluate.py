"""Evaluation of a model, or of a file of predictions, on a split: predict, then compute metrics.

Texts are grouped. The model generates one text for each distinct input, and the text is compared
with all references of the input. Labels and attributes are not grouped: each record is scored
separately. `ANSWERS` contains one object for each of the three kinds. Its methods choose the
records to score and return `Scored`, which contains the predictions and the columns that metrics
read.

Each metric declares its inputs, such as texts or likelihoods. ``compute_metrics`` returns a value
for each metric, or a reason under ``not_computed`` if an input is missing, such as likelihoods for
a file of outputs. No metric is silently omitted.
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
"""Values of each column by name, all of the same length."""

_WHY_MISSING = {
    TEXTS: "needs predictions, one text per input",
    LIKELIHOODS: "needs the model's likelihoods; a predictions file contains only texts",
    NEXT_TOKENS: "needs the model's likelihoods; a predictions file contains only texts",
    PAIRS: "needs the model's likelihoods of preference pairs",
    LABELS: "needs a predicted label and a true label for each input",
    RANKINGS: "needs the model's probabilities; a predictions file contains one class per input",
    ATTRIBUTES: "needs predicted attributes and true attributes for each input",
}


def compute_metrics(
    names: Sequence[str],
    columns: Mapping[str, Columns],
    settings: MetricsConfig | None = None,
    language: str | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the values of metrics, and a reason for each metric without a value.

    Args:
        names: Names of metrics of ``dpft.evaluation.metrics``.
        columns: Columns by kind (texts, likelihoods, labels); a kind may be absent.
        settings: Models that metrics use; None for no models.
        language: ISO 639-1 code of the texts' language; None if unknown.

    Returns:
        Finite values by key, and reasons by key; every metric is in one of the two.

    Raises:
        InputError: A metric is unknown, or two metrics share a key.
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
    """Return the finite value of a metric."""
    from dpft.evaluation.local_metric import compute

    if spec.english_only and language not in (None, ENGLISH):
        raise NotComputed(f"is defined only for English texts, got task.language={language}")
    reason = spec.missing(settings) if spec.inputs in columns else _WHY_MISSING[spec.inputs]
    if reason is not None:
        raise NotComputed(reason)
    value = compute(spec, columns[spec.inputs], settings, language)
    if not math.isfinite(value):
        raise NotComputed(f"not a finite number ({value})")
    return value


MOST_SHOWN = 40
"""Maximum number of misclassified records in a picture."""
LIKELY = 0.5
"""Probability above which a model predicts an attribute."""

OnProgress = Callable[[str, int, int], None]
"""Function called with the name of the activity, the completed amount and the total amount."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Predictions on a split, and the columns that metrics read."""

    count: int
    """Number of distinct inputs; for labels, the number of records."""
    predictions: tuple[Prediction, ...] = field(repr=False)
    """Predictions in the order of the split; empty if no metric reads texts."""
    columns: Mapping[str, Columns] = field(repr=False)
    """Columns by kind (texts, likelihoods, labels); kinds that were not computed are absent."""
    confusion: Sequence[Sequence[int]] = field(default=(), repr=False)
    """Number of records of each correct class (rows) that were predicted as each
    class (columns)."""
    picture: bytes | None = field(default=None, repr=False)
    """Some misclassified records, as PNG."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Scores in addition to the metrics, such as the accuracy of each attribute."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """An input with the examples that share it, at least one."""

    input: str
    """``Example.group``, which the examples share; for E2E the meaning representation."""
    examples: tuple[Example, ...]
    """Examples in the order of the split."""

    @property
    def references(self) -> tuple[str, ...]:
        """The texts that predictions are compared with; empty only if all targets are empty."""
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
    """Return the group with references as a model would output them, after its chat template."""
    examples = (replace(example, target=outputs.reference(example)) for example in group.examples)
    return replace(group, examples=tuple(examples))


class Answers(ABC):
    """Base class for the evaluation of one kind of answers."""

    def to_score(
        self, task: Any, examples: Sequence[Record], config: EvalConfig, split: str
    ) -> Sequence[Any]:
        """Return the inputs or records of a split to score, at most ``config.limit``.

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
        """Return the inputs of a split, as a file of predictions identifies them."""

    @abstractmethod
    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None = None,
    ) -> Scored:
        """Return a model's answers to the chosen inputs or records, and the correct answers."""

    @abstractmethod
    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """Return the answers in a file of predictions, one text for each of ``chosen``.

        Raises:
            InputError: A text is not a valid answer; the message states its number and does not
                quote it.
        """


class TextAnswers(Answers):
    """Evaluation of one text for each distinct input."""

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
        """See ``Answers.of_model``; compute only the outputs that metrics read."""
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
        """See ``Answers.of_file``; if the texts are names of labels, add columns of labels."""
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
    """Evaluation of a class or a number for each record."""

    def inputs(self, task: Any, examples: Sequence[LabeledExample | LabeledImage]) -> list[str]:
        """See ``Answers.inputs``; number the records, because several may have the same text."""
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
        """See ``Answers.of_file``; the texts are names of classes, or numbers."""
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
        """Return the answers to records as text, with the correct answers."""
        return tuple(
            Prediction(input=name, prediction=spelt(one), references=(spelt(right),))
            for name, one, right in zip(self.inputs(task, records), told, gold, strict=True)
        )


class AttributeAnswers(LabelAnswers):
    """Evaluation of several attributes of each record, each present or absent."""

    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None = None,
    ) -> Scored:
        """See ``Answers.of_model``; predict the attributes with a probability above ``LIKELY``."""
        answers = outputs.answers(chosen, counter("predictions", len(chosen), on_progress))
        told = [[float(p > LIKELY) for p in one] for one in answers]
        return self._scored_attributes(task, chosen, told)

    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """See ``Answers.of_file``; each text lists the present attributes, separated by commas."""
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
        """Return predicted and correct attributes, and the accuracy of each attribute."""

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
"""Evaluation of each kind of ``Task.answers``."""


class Evaluation(StageScores):
    """The scores of one split at one stage, with the predictions they are based on; private."""

    picture: bytes | None = Field(default=None, repr=False)
    """Some misclassified records, as PNG."""
    predictions: tuple[Prediction, ...] = Field(repr=False)
    """Predictions in the order of the split; ``record`` omits them."""

    def record(self, *, public: bool) -> ScoreEntry:
        """Return the entry for metrics.json; only a public split has sample texts."""
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
        outputs: The outputs of the model. If several processes have the model, only rank 0 computes
            scores.
        task: The task of the examples.
        examples: The split ``config.split``, or the part of it named by ``split``.
        config: The ``eval`` section, including the number of inputs to score.
        decode: The decoding method for texts.
        metrics: Models that metrics use; None for no models.
        split: Name of the split; None for ``config.split``.
        stage: Before or after fine-tuning.
        on_progress: Called after each batch.

    Raises:
        InputError: The split is empty, a metric is unknown, or ``decode.max_new_tokens`` leaves no
            positions for a prompt.
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
    """Return the scores of each part of a split; see ``evaluate_model``.

    If ``task.averages_parts`` is set, the last entry is the mean over the parts, under the name of
    the split.
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

    A metric without a value for one of the parts is omitted.
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
    """Return the inputs of a split, as a file of predictions identifies them."""
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
    """Return the scores of texts that any system generated, without a model.

    Args:
        task: The task of the examples.
        examples: The split ``config.split``.
        predictions: One text for each of the first ``config.limit`` distinct inputs, in order of
            first occurrence; ``dpft.evaluation.predictions.read_predictions`` returns them. For
            labels, the name or number of a class, or a score, for each record.
        config: The ``eval`` section, including the number of inputs to score.
        metrics: Models that metrics use; None for no models.
        split: Name of the split; None for ``config.split``.
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
            f"predictions must contain one prediction for each distinct input of the {name} split,"
            f" but there are {len(predictions)} predictions.",
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
