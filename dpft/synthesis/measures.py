"""What synthetic rows are worth and what they give away, measured against real ones: private.

Each figure stands beside what it should be near: the same figure of real rows that were kept from
histogram and model (controls). Marginals by total variation, pairs of columns by Cramér's V of
their binned values (numbers and days in ten equal stretches of the schema's range), usefulness by
what classifiers learn of the label, texts by the measures of ``dpft audit audit=synthetic``.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpft.audit.synthetic_text import likeness
from dpft.audit.text_overlap import leakage_of
from dpft.records import synthesis as records
from dpft.synthesis.columns import Category, Column, Day, Flag, Number, Text
from dpft.synthesis.mauve import FEWEST, Embed, mauve
from dpft.synthesis.personal import personal_data
from dpft.synthesis.schema import Row, Schema
from dpft.synthesis.stretches import bin_of

FEWEST_TAUGHT = 20
"""Rows of a kind without which no classifier is taught."""
TOPICS, FEATURES = 20, 2000
"""Of texts: how many numbers the boosted trees see, and how many words the regression does."""
Table = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The rows that are compared."""

    synthetic: Table
    training: Table
    controls: Table


def measured(schema: Schema, tables: Tables, embed: Embed | None = None) -> records.Measures:
    """Returns every measure of some tables, none of them empty.

    Args:
        schema: Of all of them.
        tables: The rows.
        embed: What gives features of texts; None: there is no model at hand.
    """
    return records.Measures(
        synthetic=len(tables.synthetic),
        training=len(tables.training),
        controls=len(tables.controls),
        marginals=tuple(marginals(schema, tables)),
        associations=associations(schema, tables),
        usefulness=usefulness(schema, tables),
        texts=tuple(texts(schema, tables, embed)),
        leakage=leakage(schema, tables),
        personal=personal_data(schema, tables.training, tables.synthetic),
    )


def bins(column: Column, values: Sequence[Any]) -> list[str]:
    """Returns the name of each value's bin, as on the public page; "" where a cell is empty."""
    return ["" if value is None else bin_of(column, value) for value in values]


def total_variation(one: Sequence[str], other: Sequence[str]) -> float:
    """Returns half the sum of what the shares of each bin are apart: 0 of equal, 1 of disjoint.

    >>> total_variation(["a", "a", "b", "b"], ["a", "b", "b", "b"])
    0.25
    """
    counts = Counter(one), Counter(other)
    apart = (
        abs(counts[0][each] / len(one) - counts[1][each] / len(other))
        for each in counts[0] | counts[1]
    )
    return math.fsum(apart) / 2


def marginals(schema: Schema, tables: Tables) -> list[records.Marginal]:
    """Returns how far each column's values are from real ones, beside controls'."""
    found = []
    for column in schema.learned:
        synthetic, training, controls = (
            bins(column, [row[column.name] for row in table])
            for table in (tables.synthetic, tables.training, tables.controls)
        )
        found.append(
            records.Marginal(
                name=column.name,
                total_variation=total_variation(synthetic, training),
                of_controls=total_variation(controls, training),
                real=dict(sorted(Counter(training).items())),
                synthetic=dict(sorted(Counter(synthetic).items())),
            )
        )
    return found


def cramers_v(one: Sequence[str], other: Sequence[str]) -> float:
    """Returns Cramér's V of two columns, 0 of independent ones to 1, corrected for its bias.

    Bergsma 2013, "A bias-correction for Cramér's V and Tschuprow's T", equations 3 to 6.
    """
    left, right = (np.unique(each, return_inverse=True)[1] for each in (one, other))
    rows, columns, count = left.max() + 1, right.max() + 1, len(left)
    if min(rows, columns) < 2 or count < 2:
        return 0.0
    table = np.zeros((rows, columns))
    np.add.at(table, (left, right), 1)
    expected = np.outer(table.sum(1), table.sum(0)) / count
    phi = float(((table - expected) ** 2 / expected).sum()) / count
    phi = max(0.0, phi - (rows - 1) * (columns - 1) / (count - 1))
    least = min(size - (size - 1) ** 2 / (count - 1) for size in (rows, columns))
    return math.sqrt(phi / (least - 1)) if least > 1 else 0.0


def associations(schema: Schema, tables: Tables) -> records.Associations | None:
    """Returns Cramér's V of every pair of columns; None of a single column."""
    names = [column.name for column in schema.learned]
    if len(names) < 2:
        return None
    of_tables = []
    for table in (tables.training, tables.synthetic, tables.controls):
        binned = [bins(c, [row[c.name] for row in table]) for c in schema.learned]
        size = range(len(names))
        pairs = {
            (a, b): cramers_v(binned[a], binned[b]) for a, b in itertools.combinations(size, 2)
        }
        of_tables.append([[pairs.get((min(a, b), max(a, b)), 1.0) for b in size] for a in size])
    real, synthetic, controls = map(np.array, of_tables)
    upper = np.triu_indices(len(names), 1)
    return records.Associations(
        names=tuple(names),
        real=tuple(map(tuple, real.tolist())),
        synthetic=tuple(map(tuple, synthetic.tolist())),
        mean_difference=float(np.abs(real - synthetic)[upper].mean()),
        of_controls=float(np.abs(real - controls)[upper].mean()),
    )


def usefulness(schema: Schema, tables: Tables) -> records.Usefulness | str:
    """Returns what classifiers of the label learn of synthetic and of real rows, tried on controls.

    The classifier of synthetic rows, asked about the training rows too, is the attack on an
    attribute: who knows the other columns guesses the label, and should do no better for who was
    trained on.
    """
    if schema.label is None:
        return "the schema names no label"
    column = schema.named[schema.label]
    tested = _labeled(tables.controls, schema.label)
    taught = {
        "synthetic": _labeled(tables.synthetic, schema.label),
        "real": _labeled(tables.training, schema.label),
    }
    size = min(map(len, taught.values()))
    if size < FEWEST_TAUGHT or not tested:
        return f"fewer than {FEWEST_TAUGHT} rows of a kind have the label"
    scores: dict[str, dict[str, float]] = {"logistic": {}, "boosting": {}}
    attacked: dict[str, float] = {}
    others = [c for c in schema.learned if c.name != column.name]
    for source, rows in taught.items():
        classes = [repr(row[schema.label]) for row in rows[:size]]
        if len(set(classes)) < 2:
            return f"the {source} rows have one class alone"
        for kind in scores:
            features = Features(others, rows[:size], dense=kind == "boosting")
            model = _classifier(kind).fit(features.of(rows[:size]), classes)
            scores[kind][source] = _accuracy(model, features, tested, schema.label)
            if source == "synthetic" and kind == "boosting":
                asked = taught["real"][: len(tested)]
                attacked["training"] = _accuracy(model, features, asked, schema.label)
                attacked["controls"] = scores[kind][source]
    truth = Counter(repr(row[schema.label]) for row in tested)
    return records.Usefulness(
        label=schema.label,
        taught=size,
        tested=len(tested),
        commonest=max(truth.values()) / len(tested),
        logistic_synthetic=scores["logistic"]["synthetic"],
        logistic_real=scores["logistic"]["real"],
        boosting_synthetic=scores["boosting"]["synthetic"],
        boosting_real=scores["boosting"]["real"],
        guessed_of_training=attacked["training"],
        guessed_of_controls=attacked["controls"],
    )


def _labeled(table: Table, label: str) -> list[Row]:
    return [row for row in table if row[label] is not None]


def _classifier(kind: str) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    if kind == "logistic":
        return LogisticRegression(max_iter=1000)
    return HistGradientBoostingClassifier(max_iter=100, random_state=0)


def _accuracy(model: Any, features: "Features", rows: Sequence[Row], label: str) -> float:
    truth = np.array([repr(row[label]) for row in rows])
    return float(np.mean(model.predict(features.of(rows)) == truth))


class Features:
    """Rows as numbers for a classifier: categories one by one, texts by their words."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Row], *, dense: bool) -> None:
        """Learns the words of texts from ``rows``, which teach the classifier.

        Args:
            columns: What it sees.
            rows: At least one.
            dense: Whether texts are a few numbers each (their topics), as trees need it.
        """
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_pipeline

        self._columns = columns
        self._readers: dict[str, Any] = {}
        for column in columns:
            if not isinstance(column, Text):
                continue
            words = TfidfVectorizer(analyzer=_words, max_features=FEATURES)
            own = [row[column.name] or "" for row in rows]
            size = len(words.fit(own).vocabulary_)
            reader = words
            if dense and size > TOPICS:
                topics = TruncatedSVD(TOPICS, random_state=0, algorithm="randomized")
                reader = make_pipeline(words, topics).fit(own)
            self._readers[column.name] = reader

    def of(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """Returns the numbers of some rows, shape (rows, features)."""
        parts = []
        for column in self._columns:
            values = [row[column.name] for row in rows]
            if isinstance(column, Text):
                found = self._readers[column.name].transform([value or "" for value in values])
                parts.append(np.asarray(found.todense() if hasattr(found, "todense") else found))
            elif isinstance(column, Category | Flag):
                options = [*column.options, None]
                parts.append(np.array([[value == each for each in options] for value in values]))
            else:
                parts.append(np.array([_place(column, value) for value in values]))
        return np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)


def _words(text: str) -> list[str]:
    return ["", *text.lower().split()]


def _place(column: Column, value: Any) -> tuple[float, float]:
    """Returns where in its range a value is, from 0 to 1, and whether it is missing."""
    if value is None:
        return 0.5, 1.0
    if isinstance(column, Day):
        return (value - column.first).days / max(1, (column.last - column.first).days), 0.0
    assert isinstance(column, Number)
    return float((value - column.low) / max(column.size, column.high - column.low)), 0.0


def texts(schema: Schema, tables: Tables, embed: Embed | None = None) -> list[records.TextLikeness]:
    """Returns the synthetic texts of each column against controls'."""
    found = []
    for column in schema.learned:
        if not isinstance(column, Text):
            continue
        synthetic, real, trained = (
            [str(row[column.name]) for row in table if row[column.name]]
            for table in (tables.synthetic, tables.controls, tables.training)
        )
        near, of_training = _mauve(synthetic, trained[: len(synthetic)], real, embed)
        result = likeness(synthetic, real)
        if isinstance(result, str):
            found.append(
                records.TextLikeness(
                    name=column.name, why_not=result, mauve=near, mauve_of_training=of_training
                )
            )
            continue
        found.append(
            records.TextLikeness(
                name=column.name,
                told_apart=result.accuracy,
                p_value=result.p_value,
                divergence={str(n): value for n, value in result.divergences.items()},
                of_controls={str(n): value for n, value in result.control.items()},
                mauve=near,
                mauve_of_training=of_training,
            )
        )
    return found


def _mauve(
    synthetic: Sequence[str], trained: Sequence[str], real: Sequence[str], embed: Embed | None
) -> tuple[float | None, float | None]:
    """Returns MAUVE of synthetic texts against controls', and that of training texts beside it."""
    if embed is None or min(map(len, (synthetic, trained, real))) < FEWEST:
        return None, None
    of_controls = embed(real)
    return mauve(embed(synthetic), of_controls), mauve(embed(trained), of_controls)


def whole_row(schema: Schema, row: Mapping[str, Any]) -> str:
    """Returns a row as one text: its texts, or all its values where it has none."""
    texts = [column for column in schema.learned if isinstance(column, Text)]
    return " | ".join(str(row[column.name] or "") for column in texts or schema.learned)


def leakage(schema: Schema, tables: Tables) -> records.RowLeakage:
    """Returns what of the training rows stands in the synthetic ones, beside controls'."""
    of_tables = [
        [whole_row(schema, row) for row in table]
        for table in (tables.synthetic, tables.training, tables.controls)
    ]
    exact = [
        {tuple(map(repr, row.values())) for row in table}
        for table in (tables.synthetic, tables.training, tables.controls)
    ]
    shares = [len(exact[0] & side) / len(side) for side in exact[1:]]
    found = leakage_of(*of_tables).record()
    return records.RowLeakage(
        texts=found,
        whole_rows_of_training=shares[0],
        whole_rows_of_controls=shares[1],
    )
