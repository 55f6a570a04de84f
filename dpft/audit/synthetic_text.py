"""Synthetic records: their file, how their texts look, and what a classifier learns of them.

``dpft generate`` writes a statement beside its records, which ties them to a run by the run's
ledger: records without one, or of another run, are not covered by this run's epsilon
(`read_synthetic`). Lengths and n-grams are compared with real texts as distributions, and a
classifier is asked to tell the two apart (`likeness`: Lopez-Paz and Oquab 2017, arXiv 1610.06545);
each distance has a control, the same between two halves of the real texts. `utility_of` teaches a
classifier a column of the user's data by synthetic and by training records, and tests both on
records that were not trained on. Classifiers are logistic regressions on words and pairs of words.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpft.audit.audited_run import RunRecords, Unseen
from dpft.audit.text_overlap import NearDuplicates, words_of, written_text
from dpft.config.schema import TrainConfig
from dpft.data.raw_rows import FORMATS, file_rows
from dpft.data.rows import examples_of, row_values, split_files
from dpft.data.sources import load_examples
from dpft.errors import InputError
from dpft.evaluation.predictions import spread
from dpft.records import audits
from dpft.records.audits import ClassifierScores, Utility
from dpft.records.promises import RunPrivacy, Statement, is_promised, ledger_of, read_statement
from dpft.runs.held_out import load_training_data
from dpft.tasks.base import Example, Record, Task, TextTask, are_texts
from dpft.tasks.custom import CustomTexts

READABLE_BY_ALL = 0o004


@dataclass(frozen=True, kw_only=True)
class SyntheticFile:
    """Synthetic records, and what is known of them."""

    path: Path
    records: Sequence[Example]
    """All of the file, in its order."""
    no_rows: int
    """Rows that were left out, since their label is none of ``task.labels``."""
    prompted: bool
    """Whether a user's prompts stand in them."""
    notes: tuple[str, ...]
    """What the statement says of their cost, in sentences."""
    why_private: str | None
    """Why nothing of them may be released, in words; None where it may."""

    def texts(self, limit: int) -> list[str]:
        """Returns at most ``limit`` of the texts, evenly spread over the file."""
        chosen = [self.records[at] for at in spread(len(self.records), limit)]
        return [written_text(record, prompted=self.prompted) for record in chosen]


def read_synthetic(
    run: Path, task: TextTask, file: Path, privacy: RunPrivacy | None
) -> SyntheticFile:
    """Returns the records of a file, once they are known to be synthetic as far as it can be seen.

    Raises:
        InputError: The file is missing, empty or of another format, has a faulty row, holds the
            run's own records, or is another run's.
        StateError: The statement beside it is damaged.
    """
    records, no_rows = synthetic_records(task, file)
    for own in split_files(task):
        if file.samefile(own):
            raise InputError(
                f"synthetic must name records that a model wrote, got {str(file)!r}, which is the"
                f" run's own {own.name}."
            )
    said = file.with_name(f"{file.stem}.privacy.json")
    statement = read_statement(said) if said.is_file() else None
    if statement and privacy and ledger_of(statement) != ledger_of(privacy):
        raise InputError(
            f"synthetic must be written by the run's model, got records of {statement.run},"
            f" by the statement beside them; give run=RUN, the one that wrote them, instead of"
            f" {str(run)!r}."
        )
    notes = () if statement is None else statement.notes
    prompted = bool(task.prompt_columns) if statement is None else statement.prompts != "none"
    return SyntheticFile(
        path=file,
        records=records,
        no_rows=no_rows,
        prompted=prompted,
        notes=tuple(note for note in notes if note),
        why_private=_why_private(file, statement, privacy, prompted=prompted),
    )


def synthetic_records(task: TextTask, file: Path) -> tuple[list[Example], int]:
    """Returns the records of a file, and how many rows were left out for their label.

    Raises:
        InputError: As ``read_synthetic``; a message names file and line and never quotes a row.
    """
    name = str(file)
    if not name.endswith(tuple(FORMATS)):
        raise InputError(f"synthetic must end with {', '.join(FORMATS)}, got {name!r}.")
    if not file.is_file():
        raise InputError(
            f"synthetic must name a file that `dpft generate` wrote, got {name!r}, which is no"
            " file."
        )
    rows = list(file_rows(file))
    kept = rows
    if isinstance(task, CustomTexts):
        kept = [row for row in rows if task.has_label(row_values(task, row, task.columns))]
    records = [record for row in kept for record in examples_of(task, row)]
    if not records:
        labeled = " whose label is of task.labels" if len(kept) < len(rows) else ""
        raise InputError(f"synthetic must hold at least one row{labeled}, got none in {name!r}.")
    assert are_texts(records)
    return list(records), len(rows) - len(kept)


def _why_private(
    file: Path, statement: Statement | None, privacy: RunPrivacy | None, *, prompted: bool
) -> str | None:
    if statement is None:
        return (
            f"no {file.stem}.privacy.json lies beside the records, so nothing says that a model"
            " wrote them under a guarantee"
        )
    if privacy is None or not is_promised(privacy):
        return "the run promises no privacy, so its texts may hold training records"
    if prompted and not file.stat().st_mode & READABLE_BY_ALL:
        return "the records hold prompts in a file that its owner alone may read"
    return None


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
    """Returns scores of classifiers taught by synthetic and by training records, or a reason."""
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
    """Returns how a classifier does on some records, or why there is none, in words."""
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


NGRAMS = (1, 2, 3)
FEWEST = 20
"""Texts of a kind without which nothing is compared."""
MAUVE = (
    "MAUVE is not computed: it reads a language model's features (GPT-2 large in its paper), and no"
    " such model comes with dpft; the classifier two-sample test asks the same question"
)
Gram = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TextShape:
    """Some texts by themselves."""

    lengths: tuple[int, ...] = field(repr=False)
    """Words of each."""
    distinct: int
    """Different texts among them."""
    repeated: int
    """Texts with a near duplicate, or an equal one, among the others."""
    distinct_ngrams: dict[int, float]
    """Different n-grams as a share of all n-grams, by n."""

    def record(self) -> audits.TextShape:
        """Returns the numbers as they are written down, shares of texts in percent."""
        count = len(self.lengths)
        return audits.TextShape(
            records=count,
            distinct_percent=100 * self.distinct / count,
            near_duplicate_percent=100 * self.repeated / count,
            words_mean=float(np.mean(self.lengths)),
            words_median=float(np.median(self.lengths)),
            words_5_percent=float(np.quantile(self.lengths, 0.05)),
            words_95_percent=float(np.quantile(self.lengths, 0.95)),
            **{f"distinct_{n}": share for n, share in self.distinct_ngrams.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """Synthetic texts against real ones."""

    records: int
    """Texts of each kind that the classifier was asked about."""
    accuracy: float
    """Share of those it had not seen that it told right; a coin tells half."""
    p_value: float
    """Probability that a coin does as well."""
    divergences: dict[int, float]
    """Jensen-Shannon divergence of the n-grams in bits, from 0 to 1, by n."""
    control: dict[int, float]
    """The same between two halves of the real texts, as many in each."""


def shape_of(texts: Sequence[str]) -> TextShape:
    """Returns some texts by themselves, at least one."""
    split = [words_of(text) for text in texts]
    counts = {n: ngrams(split, n) for n in NGRAMS}
    return TextShape(
        lengths=tuple(map(len, split)),
        distinct=len(set(texts)),
        repeated=sum(NearDuplicates(texts).repeated(texts)),
        distinct_ngrams={n: len(each) / max(1, each.total()) for n, each in counts.items()},
    )


def likeness(synthetic: Sequence[str], real: Sequence[str]) -> Likeness | str:
    """Returns synthetic texts against real ones, or why they are not compared, in words."""
    if min(len(synthetic), len(real)) < FEWEST:
        return f"fewer than {FEWEST} texts of a kind are too few to be told apart"
    order = np.random.default_rng(0)
    one, other = _shuffled(synthetic, order), _shuffled(real, order)
    half = min(len(one), len(other) // 2)
    halves = other[:half], other[half : 2 * half]
    accuracy, p_value, count = _two_sample_test(one, other)
    return Likeness(
        records=count,
        accuracy=accuracy,
        p_value=p_value,
        divergences={n: _divergence(one[:half], halves[0], n) for n in NGRAMS},
        control={n: _divergence(halves[1], halves[0], n) for n in NGRAMS},
    )


def ngrams(texts: Sequence[Sequence[str]], n: int) -> Counter[Gram]:
    """Returns how often each n-gram of words stands in the texts."""
    return Counter(tuple(words[at : at + n]) for words in texts for at in range(len(words) - n + 1))


def _two_sample_test(one: Sequence[str], other: Sequence[str]) -> tuple[float, float, int]:
    """Returns accuracy, p-value and texts of each kind; half of them teach the classifier."""
    from scipy.stats import binomtest

    count = min(len(one), len(other))
    half = count // 2
    taught = [*one[:half], *other[:half]]
    model = fitted_classifier(taught, ["synthetic"] * half + ["real"] * half)
    asked = [*one[half:count], *other[half:count]]
    answers = model.predict(asked)
    right = int(np.sum(answers == np.repeat(["synthetic", "real"], count - half)))
    p_value = binomtest(right, len(asked), 0.5, alternative="greater").pvalue
    return right / len(asked), float(p_value), count


def _divergence(one: Sequence[str], other: Sequence[str], n: int) -> float:
    from scipy.spatial.distance import jensenshannon

    counts = [ngrams([words_of(text) for text in texts], n) for texts in (one, other)]
    if not all(counts):
        return 0.0 if counts[0] == counts[1] else 1.0
    grams = list(counts[0] | counts[1])
    rows = [[count[gram] for gram in grams] for count in counts]
    return float(jensenshannon(*rows, base=2) ** 2)


def _shuffled(texts: Sequence[str], order: np.random.Generator) -> list[str]:
    return [texts[at] for at in order.permutation(len(texts))]
