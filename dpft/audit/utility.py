"""What synthetic records are worth: a classifier taught by them, tested on real ones.

Beside it stands the same classifier taught by the real records that the model was trained on, and
one that always says the commonest class. It is scikit-learn's logistic regression on words and
pairs of words, which needs no other model. The class is a column of the user's own data.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dpft.audit.run_records import RunRecords, Unseen
from dpft.audit.synthetic_file import synthetic_records
from dpft.audit.words import words_of
from dpft.config.schema import TrainConfig
from dpft.data.sources import load_examples
from dpft.errors import InputError
from dpft.evaluation.samples import spread
from dpft.records.audits import ClassifierScores, Utility
from dpft.runs.held_out import load_training_data
from dpft.tasks.base import Task
from dpft.tasks.custom_texts import CustomTexts
from dpft.tasks.records import Example, Record, are_texts


def fitted_classifier(texts: Sequence[str], classes: Sequence[str]) -> Any:
    """Returns a classifier of texts, fitted to some; the same for the same texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    reader = TfidfVectorizer(analyzer=word_features)
    return make_pipeline(reader, LogisticRegression(max_iter=1000)).fit(texts, classes)


def word_features(text: str) -> list[str]:
    """Returns the words and the pairs of words of a text, as the classifier reads them.

    Its beginning is one of them, so that a text without words has a feature, too.
    """
    words = words_of(text.lower())
    pairs = [f"{one} {other}" for one, other in zip(words, words[1:], strict=False)]
    return ["", *words, *pairs]


NO_LABEL = "no column of a class is named; give one by audit.label=COLUMN"


def utility_of(
    config: TrainConfig,
    file: Path,
    label: str | None,
    records: RunRecords | str,
    unseen: Unseen | str,
    limit: int,
) -> Utility | str:
    """Returns what classifiers learn of synthetic and of training records, or why none is taught.

    Args:
        config: The run's.
        file: The synthetic records.
        label: The column of the class; None: there is none.
        records: Which records the run was trained on, or why that is not known.
        unseen: Which others there are, or why there are none.
        limit: Most records of each kind.

    Raises:
        InputError: As ``label_task``, or the files cannot be read so.
    """
    if label is None:
        return NO_LABEL
    if isinstance(unseen, str):
        return f"there are no real records to test on: {unseen}"
    task = label_task(config.task, label)
    every: Sequence[Record] = []
    if unseen.places is not None or isinstance(records, RunRecords):
        every = load_training_data(replace(config, task=task)).examples
    if unseen.places is None:
        parts = config.task.parts(config.eval.split)
        tested = _some([each for part in parts for each in load_examples(task, part)], limit)
    else:
        tested = _some([every[at] for at in unseen.places], limit)
    training: ClassifierScores | str = str(records)
    if isinstance(records, RunRecords):
        taught = _some([every[at] for at in records.places], limit)
        training = classifier_scores(taught, tested)
    return Utility(
        label=label,
        tested=len(tested),
        synthetic=classifier_scores(_some(synthetic_records(task, file)[0], limit), tested),
        commonest=commonest_class_scores(tested),
        training=training,
    )


def label_task(task: Task, label: str) -> CustomTexts:
    """Returns the task that reads the class of a row as its prompt, and its text as its target.

    Args:
        task: Of a run.
        label: The column of the class, as the templates name it.

    Raises:
        InputError: The task is not of your own templates, or none of them has the column, or no
            other one.
    """
    if not isinstance(task, CustomTexts):
        raise InputError(
            "audit.label needs task=custom with templates, whose columns may hold a class, got"
            f" task={task.name}; drop it."
        )
    others = [column for column in task.columns if column != label]
    if label not in task.columns or not others:
        raise InputError(
            f"audit.label must be one of several columns of the run's templates,"
            f" {', '.join(task.columns)}, got {label!r}."
        )
    changed = {
        "prompt_template": f"{{{label}}}",
        "target_template": " ".join(f"{{{column}}}" for column in others),
        "text_template": None,
        "learn_prompt": False,
        "metrics": (),
    }
    kept = {field.name: getattr(task, field.name) for field in fields(CustomTexts)}
    return CustomTexts(**(kept | changed))


def classifier_scores(
    taught: Sequence[Example], tested: Sequence[Example]
) -> ClassifierScores | str:
    """Returns how a classifier does on some records, or why there is none, in words.

    Args:
        taught: Records of ``label_task`` that it learns from.
        tested: Real ones that it was not taught by.
    """
    from sklearn.metrics import accuracy_score, f1_score

    if len({_class_of(record) for record in taught}) < 2:
        return "the records that it would learn from have one class alone"
    model = fitted_classifier([record.target for record in taught], [*map(_class_of, taught)])
    answers = model.predict([record.target for record in tested])
    truth = [_class_of(record) for record in tested]
    return ClassifierScores(
        accuracy=float(accuracy_score(truth, answers)),
        macro_f1=float(f1_score(truth, answers, average="macro", zero_division=0)),
    )


def commonest_class_scores(tested: Sequence[Example]) -> ClassifierScores:
    """Returns the scores of always saying the class that most of the records have."""
    from sklearn.metrics import f1_score

    truth = [_class_of(record) for record in tested]
    most = max(sorted(set(truth)), key=truth.count)
    return ClassifierScores(
        accuracy=truth.count(most) / len(truth),
        macro_f1=float(f1_score(truth, [most] * len(truth), average="macro", zero_division=0)),
    )


def _some(records: Sequence[Record], limit: int) -> Sequence[Example]:
    chosen = [records[at] for at in spread(len(records), limit)]
    assert are_texts(chosen)
    return chosen


def _class_of(record: Example) -> str:
    return record.prompt.strip()
