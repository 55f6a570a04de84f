"""Measures of the similarity of synthetic rows to real rows, which are private.

Each number is shown next to the value that it should be close to. This is usually the same measure
for the controls, which are real rows that neither the histogram nor the model used.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpft.evaluation.text_overlap import NearDuplicates, grams_of, words_of
from dpft.synthesis.records import Comparison
from dpft.synthesis.schema import TEXT, Column, Row, Schema

BINS, WORDS_OF_A_BIN = 10, 5
FEWEST = 20
"""Minimum number of rows or texts of each kind for training a classifier."""
FEATURES = 200
"""Number of words of a text column that classifiers of rows use."""
HEADS = ("synthetic", "should be near")


class Tables(NamedTuple):
    """The rows that are compared, with one column for each learned column."""

    synthetic: pd.DataFrame
    training: pd.DataFrame
    controls: pd.DataFrame


def frame_of(schema: Schema, rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a table."""
    names = [column.name for column in schema.learned]
    return pd.DataFrame(rows, columns=names, dtype=object)


def compare_tables(schema: Schema, tables: Tables) -> tuple[Comparison, ...]:
    """Return all measures, with the summary first."""
    columns, pairs = column_distances(schema, tables), associations(schema, tables)
    useful = usefulness(schema, tables)
    means = np.mean(list(columns.rows.values()), axis=0).tolist()
    worst = max(columns.rows, key=lambda name: columns.rows[name][0])
    short = {"columns, mean distance": (means[0], means[1])}
    short[f"worst column, {worst[:16]}"] = (columns.rows[worst][0], columns.rows[worst][1])
    if pairs.rows:
        real, *others = np.array(list(pairs.rows.values())).T
        differences = [float(np.abs(other - real).mean()) for other in others]
        short["pairs, mean difference of Cramér's V"] = (differences[0], differences[1])
    texts = [column for column in schema.learned if column.kind == TEXT]
    for column in texts:
        synthetic, _, controls = (frame[column.name].dropna().tolist() for frame in tables)
        accuracy = classifier_accuracy(synthetic, controls)
        if accuracy is not None:
            short[f"{column.name[:16]}: distinguished from real ones"] = (accuracy, 0.5)
    rows, *real_rows = (set(frame.itertuples(index=False, name=None)) for frame in tables)
    whole = [len(rows & side) / len(side) for side in real_rows]
    short["training rows found unchanged"] = (whole[0], whole[1])
    summary = Comparison(title="In short", columns=HEADS, rows={**short, **useful.rows},
                         note=useful.note)  # fmt: skip
    names = [column.name for column in texts or schema.learned]
    as_texts = [frame[names].fillna("").astype(str).agg(" | ".join, axis=1) for frame in tables]
    sides = {"real": tables.training, "synthetic": tables.synthetic}
    bars = [binned_counts(column, sides) for column in schema.learned]
    return (summary, columns, pairs, copies(*(side.tolist() for side in as_texts)), *bars)


def numbers(column: Column, values: pd.Series) -> pd.Series:
    """Return numbers, dates, or the lengths of texts in words, as floats; NaN if missing."""
    read = (lambda text: len(text.split())) if column.kind == TEXT else column.number
    return values.map(read, na_action="ignore").astype(float)


def binned(column: Column, values: pd.Series) -> pd.Series:
    """Return the bin of each value, or "" if the value is missing.

    Bins are the values of a category, or at most ``BINS`` segments of the schema's range. For
    texts, a bin is a range of ``WORDS_OF_A_BIN`` lengths in words; the last bin has no upper end.
    """
    names: Any
    if column.options:
        named = {option: str(option) for option in column.options if option is not None}
        if column.kind == "boolean":
            named = {True: "true", False: "false"}
        labels, names = list(named.values()), values.map(named)
    else:
        if column.kind == TEXT:
            places = numbers(column, values) // WORDS_OF_A_BIN
            labels = [f"from {WORDS_OF_A_BIN * place} words" for place in range(BINS + 1)]
        else:
            low, high = column.number(column.minimum), column.number(column.maximum)
            step = float(column.step or 1)
            size = 1 + round((high - low) / step)
            count = min(BINS, size)
            places = ((numbers(column, values) - low) / step).round() * count // size
            firsts = (math.ceil(place * size / count) for place in range(count))
            labels = [f"from {column.at(first)}" for first in firsts]
        names = places.clip(upper=len(labels) - 1).map(dict(enumerate(labels)))
    names = names.astype(object).where(names.notna(), "")
    return pd.Series(pd.Categorical(names, categories=[*labels, ""]))


def binned_counts(column: Column, sides: Mapping[str, pd.DataFrame]) -> Comparison:
    """Return the number of rows of each table in each bin of a column, without empty bins."""
    bins = {side: binned(column, frame[column.name]) for side, frame in sides.items()}
    counts = pd.DataFrame(
        {side: side_bins.value_counts(sort=False) for side, side_bins in bins.items()}
    )
    counts = counts[counts.any(axis=1)]
    rows = {str(name) or "missing": tuple(map(int, row)) for name, *row in counts.itertuples()}
    return Comparison(title=f"Column {column.name}", columns=tuple(sides), rows=rows)


def column_distance(column: Column, one: pd.Series, other: pd.Series) -> float:
    """Return the distance of two samples of a column: 0 for equal and 1 for disjoint samples.

    For categories, this is the total variation distance. For numbers, dates and numbers of words,
    it is the Kolmogorov-Smirnov statistic.
    """
    from scipy.stats import ks_2samp

    if column.options:
        first, second = (
            binned(column, sample).value_counts(normalize=True) for sample in (one, other)
        )
        return float((first - second).abs().sum() / 2)
    samples = [numbers(column, sample).dropna() for sample in (one, other)]
    if min(map(len, samples)) == 0:
        return float(len(samples[0]) != len(samples[1]))
    return float(ks_2samp(*samples).statistic)


def column_distances(schema: Schema, tables: Tables) -> Comparison:
    """Return each column's distance from the training rows, for synthetic rows and controls."""
    rows = {
        c.name: tuple(
            column_distance(c, table[c.name], tables.training[c.name])
            for table in (tables.synthetic, tables.controls)
        )
        for c in schema.learned
    }
    note = "Total variation of categories; Kolmogorov-Smirnov of numbers, days and words per text."
    title = "Columns: distance from training rows"
    return Comparison(title=title, columns=("synthetic", "controls"), rows=rows, note=note)


def associations(schema: Schema, tables: Tables) -> Comparison:
    """Return Cramér's V of every pair of binned columns, with the same number of rows per table."""
    from scipy.stats.contingency import association

    size = min(map(len, tables))
    bins = [
        {c.name: binned(c, frame[c.name].head(size)) for c in schema.learned}
        for frame in (tables.training, tables.synthetic, tables.controls)
    ]
    rows = {}
    for one, other in itertools.combinations((column.name for column in schema.learned), 2):
        crossed = [pd.crosstab(columns[one], columns[other]).to_numpy() for columns in bins]
        rows[f"{one}, {other}"] = tuple(
            float(association(table, method="cramer")) if min(table.shape) > 1 else 0.0
            for table in crossed
        )
    heads = ("training rows", "synthetic", "controls")
    return Comparison(title="Pairs of columns: Cramér's V", columns=heads, rows=rows)


def usefulness(schema: Schema, tables: Tables) -> Comparison:
    """Return the accuracy, on controls, of classifiers trained on synthetic and on real rows."""
    label, rows = schema.label, {}
    note = "No classifier was trained: the schema names no label."
    if label is not None:
        synthetic, training, controls = (frame[frame[label].notna()] for frame in tables)
        size = min(len(synthetic), len(training))
        taught = [side.head(size) for side in (synthetic, training)]
        note = f"No classifier was trained: fewer than {FEWEST} rows, or one class, of {label}."
        if size >= FEWEST and len(controls) and min(side[label].nunique() for side in taught) > 1:
            columns = [column for column in schema.learned if column.name != label]
            asked, truth = _features(columns, controls), controls[label].map(str)
            model = _classifier(columns)
            rows[f"{label} by trees trained on them"] = tuple(
                float(model.fit(_features(columns, side), side[label].map(str)).score(asked, truth))
                for side in taught
            )
            commonest = truth.value_counts(normalize=True).iloc[0]
            note = f"Accuracy of always predicting the most frequent {label}: {commonest:.2f}."
    return Comparison(title="Usefulness", columns=HEADS, rows=rows, note=note)


def _features(columns: Sequence[Column], frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({
        c.name: frame[c.name].fillna("").map(str) if c.kind == TEXT or c.options
        else numbers(c, frame[c.name])
        for c in columns
    })  # fmt: skip


def _classifier(columns: Sequence[Column]) -> Any:
    """Return a classifier of boosted trees that reads each column by its type."""
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    parts: list[tuple[str, Any, Any]] = []
    for column in columns:
        if column.kind == TEXT:
            words = TfidfVectorizer(analyzer=word_features, max_features=FEATURES)
            parts.append((column.name, words, column.name))
        else:
            reader = OneHotEncoder(handle_unknown="ignore") if column.options else "passthrough"
            parts.append((column.name, reader, [column.name]))
    reader = ColumnTransformer(parts, sparse_threshold=0)
    return make_pipeline(reader, HistGradientBoostingClassifier(random_state=0))


def word_features(text: str) -> list[str]:
    """Return the words and word pairs of a text, and the feature "", which every text has."""
    words = words_of(text.lower())
    return ["", *words, *(f"{one} {other}" for one, other in itertools.pairwise(words))]


def classifier_accuracy(synthetic: Sequence[str], real: Sequence[str]) -> float | None:
    """Return the accuracy with which a classifier tells synthetic from real texts; 0.5 is chance.

    This is the classifier two-sample test of Lopez-Paz and Oquab 2017 (arXiv 1610.06545). It
    averages the balanced accuracy on each half of the texts after training on the other half.
    Return None if there are too few texts.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline

    if min(len(synthetic), len(real)) < FEWEST:
        return None
    texts, classes = [*synthetic, *real], [0] * len(synthetic) + [1] * len(real)
    classifier = LogisticRegression(class_weight="balanced")
    model = make_pipeline(TfidfVectorizer(analyzer=word_features), classifier)
    halves = StratifiedKFold(2, shuffle=True, random_state=0)
    scores = cross_val_score(model, texts, classes, cv=halves, scoring="balanced_accuracy")
    return float(scores.mean())


def copies(
    synthetic: Sequence[str], training: Sequence[str], others: Sequence[str] | None
) -> Comparison:
    """Return how often synthetic texts contain real records: exact and near copies, and phrases.

    Args:
        synthetic: The synthetic texts.
        training: The records that the model was trained on.
        others: Other records for comparison, or None.
    """
    from scipy.stats import mannwhitneyu

    def plain(texts: Iterable[str]) -> list[str]:
        return [" ".join(text.split()) for text in texts]

    exact, near = set(plain(synthetic)), NearDuplicates(synthetic)
    phrases = frozenset[str]().union(*map(grams_of, synthetic))
    sides = {"training records": training} | ({} if others is None else {"other records": others})
    shares_found = [
        [len(grams & phrases) / len(grams) for grams in map(grams_of, texts)]
        for texts in sides.values()
    ]
    measures = [
        (
            len(texts),
            100 * float(np.mean([text in exact for text in plain(texts)])),
            100 * float(np.mean(near.near(texts))),
            100 * float(np.mean(shares)),
            100 * float(np.quantile(shares, 0.95)),
        )
        for texts, shares in zip(sides.values(), shares_found, strict=True)
    ]
    names = (
        "records compared", "identical to a synthetic text, %", "with a near duplicate, %",
        "phrases of five words found, mean %", "phrases found, 95 % quantile",
    )  # fmt: skip
    rows = dict(zip(names, zip(*measures, strict=True), strict=True))
    note = None
    if others is not None:
        test = mannwhitneyu(*shares_found, alternative="greater")
        note = (
            "More phrases of a training record are found than of another record with probability"
            f" {test.statistic / (len(training) * len(others)):.3f} (p = {test.pvalue:.2g}); 0.5"
            " means that single records left no trace."
        )
    title = "Copies of single records"
    return Comparison(title=title, columns=tuple(sides), rows=rows, note=note)
