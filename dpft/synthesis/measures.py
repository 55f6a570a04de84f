"""What synthetic rows are worth and what they give away, measured against real ones: private.

Each figure stands beside what it should be near: the same figure of real rows that were kept from
histogram and model (controls). Marginals by total variation, pairs of columns by Cramér's V of
their binned values (numbers and days in ten equal stretches of the schema's range), usefulness by
what classifiers learn of the label, texts by the measures of ``dpft audit audit=synthetic``.

Personal data (e-mail addresses, phone and card numbers) is found by the patterns here, and by
presidio where that is installed (extra ``pii``), which knows more kinds of numbers and fewer
spellings of them ("+44 7700 900123" is none to it); with an English model of spaCy it finds names,
too. Which of them looked is said.

MAUVE (Pillutla et al. 2021, arXiv 2102.01454) says how near two sets of texts are, from 0.004 to 1:
features of all texts, reduced to the directions of 90 % of their variance, are put into groups by
k-means, a tenth as many as there are texts of the smaller set. P and Q are the shares of the
groups. Of mixtures R = w P + (1 - w) Q the curve of (exp(-c KL(Q | R)), exp(-c KL(P | R))), c = 5,
bounds an area, MAUVE: 1 of equal shares, and 1 / 252 of disjoint ones, c! c! / (2c)! (the integral
of (1 - x^(1/c))^c). Features are the last hidden state behind a text's last token, as in the paper,
of whatever model is at hand: here the generator itself. So a figure compares with that of real
texts beside it, and with none that another model made.
"""

import datetime
import itertools
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import rel_entr

from dpft.audit.synthetic_text import likeness
from dpft.audit.text_overlap import leakage_of
from dpft.records import synthesis as records
from dpft.synthesis.columns import Category, Column, Day, Flag, Number, Text
from dpft.synthesis.schema import Row, Schema

SCALE = 5.0
MIXTURES = 25
"""Points of the curve between its ends, as the authors' code has them."""
FEWEST_TEXTS = 50
"""Texts of a set, below which groups would be of a text or two."""
TEXTS_OF_A_GROUP = 10
VARIANCE = 0.9
BATCH = 64
Matrix = NDArray[np.float64]
Embed = Callable[[Sequence[str]], Matrix]
"""Returns the features of texts, shape (texts, width)."""
STRETCHES = 10
WORDS, MOST_WORDS = 5, 50
"""Words of a bin of texts, and from how many on there is one bin for all."""


def marginal(column: Column, values: Sequence[Any]) -> dict[str, int]:
    """Returns how often a column's values fall into each bin that has some, in their order.

    A category's values all stand there.
    """
    found = Counter(bin_of(column, value) for value in values if value is not None)
    if isinstance(column, Category | Flag):
        names = [bin_of(column, option) for option in column.options if option is not None]
    elif isinstance(column, Text):
        names = [_words_bin(at) for at in range(MOST_WORDS // WORDS + 1)]
    else:
        names = [stretch_name(column, at) for at in range(STRETCHES)]
    every = isinstance(column, Category | Flag)
    return {name: found[name] for name in names if every or found[name]}


def bin_of(column: Column, value: Any) -> str:
    """Returns the name of the bin that a value falls into."""
    if isinstance(column, Category | Flag):
        return str(column.cell(value))
    if isinstance(column, Text):
        return _words_bin(min(MOST_WORDS, len(value.split())) // WORDS)
    return stretch_name(column, stretch(column, value))


def _words_bin(at: int) -> str:
    least = at * WORDS
    return f"{least} words and more" if least == MOST_WORDS else f"{least} to {least + 4} words"


def stretch(column: Column, value: Any) -> int:
    """Returns which of ten equal stretches of its column's range a value is in, from 0."""
    assert isinstance(column, Number | Day)
    return int(column.offset(value) * STRETCHES // _span(column))


def stretch_name(column: Column, at: int) -> str:
    """Returns where a stretch begins: at its first value, where each has one."""
    assert isinstance(column, Number | Day)
    before = at * _span(column) / STRETCHES
    if isinstance(column, Number) and _span(column) >= STRETCHES * column.step:
        first = column.minimum + math.ceil(before / column.step) * column.step
        return f"from {first:.{column.places}f}"
    if isinstance(column, Day):
        return f"from {column.minimum + datetime.timedelta(days=math.ceil(before))}"
    return f"from {column.minimum + before:.{column.places + 1}f}"


def _span(column: Number | Day) -> Decimal:
    return column.offset(column.maximum) + column.step


EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
DIGITS = re.compile(r"(?<![\w.])\+?\(?\d(?:[ ().\-/]{0,2}\d){6,18}(?![\w])")
PHONE_DIGITS, CARD_DIGITS = range(7, 16), range(13, 20)
BUILT_IN = "dpft's own patterns, which know no names (install dpft[pii] and a model of spaCy)"
PRESIDIO = (
    "presidio's recognizers of e-mail addresses, phone and card numbers{}, and dpft's own patterns"
)
NAMES = ", and of names by {} {} of spaCy"
WITHOUT_NAMES = "; neither knows names, since no English model of spaCy is installed"
KINDS = {
    "EMAIL_ADDRESS": "e-mail addresses",
    "PHONE_NUMBER": "phone numbers",
    "CREDIT_CARD": "card numbers",
    "PERSON": "names",
}
Finder = Callable[[str], list[tuple[str, str]]]


def personal_data(
    schema: Schema, training: Sequence[Row], synthetic: Sequence[Row]
) -> records.PersonalData | None:
    """Returns what personal data stand in the texts of both tables; None where there are none."""
    columns = [column.name for column in schema.learned if isinstance(column, Text)]
    if not columns:
        return None
    finder, by = _finder()
    found = [_found(finder, columns, table) for table in (training, synthetic)]
    kinds = sorted({kind for side in found for kind, _ in side})
    return records.PersonalData(
        by=by,
        kinds={
            kind: records.PersonalKind(
                real=sum(each == kind for each, _ in found[0]),
                synthetic=sum(each == kind for each, _ in found[1]),
                synthetic_that_are_real=sum(each == kind for each, _ in found[0] & found[1]),
            )
            for kind in kinds
        },
    )


def _found(finder: Finder, columns: Sequence[str], table: Sequence[Row]) -> set[tuple[str, str]]:
    """Returns every different piece of personal data, with its kind, as it is compared."""
    texts = {row[name] for row in table for name in columns if row[name]}
    pieces = (piece for text in texts for piece in finder(str(text)))
    return {(kind, _plain(kind, value)) for kind, value in pieces}


def _plain(kind: str, value: str) -> str:
    if kind in (KINDS["PHONE_NUMBER"], KINDS["CREDIT_CARD"]):
        return re.sub(r"\D", "", value)
    return value.casefold().strip()


def patterns(text: str) -> list[tuple[str, str]]:
    """Returns the personal data that the built-in patterns find, each with its kind.

    >>> patterns("Ask ann@example.org or +44 7700 900123; card 4111 1111 1111 1111.")
    [('e-mail addresses', 'ann@example.org'), ('phone numbers', '+44 7700 900123'), \
('card numbers', '4111 1111 1111 1111')]
    """
    found = [(KINDS["EMAIL_ADDRESS"], each) for each in EMAIL.findall(text)]
    for each in DIGITS.findall(text):
        digits = re.sub(r"\D", "", each)
        if re.fullmatch(r"\d{4}-\d\d-\d\d", each):
            continue
        if len(digits) in CARD_DIGITS and passes_luhn(digits):
            found.append((KINDS["CREDIT_CARD"], each))
        elif len(digits) in PHONE_DIGITS:
            found.append((KINDS["PHONE_NUMBER"], each))
    return found


def passes_luhn(digits: str) -> bool:
    """Returns whether the last digit of a card's number is right (ISO/IEC 7812-1, annex B).

    >>> passes_luhn("4111111111111111"), passes_luhn("4111111111111112")
    (True, False)
    """
    total = 0
    for at, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if at % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


@cache
def _finder() -> tuple[Finder, str]:
    """Returns what finds personal data, and its name."""
    try:
        import spacy
        import tldextract
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NlpEngineProvider
    except ImportError:
        return patterns, BUILT_IN
    # Presidio asks it of each address, and it would ask the network for a newer list than its own.
    tldextract.tldextract.TLD_EXTRACTOR.suffix_list_urls = ()
    models = [name for name in spacy.util.get_installed_models() if name.startswith("en_")]
    with tempfile.TemporaryDirectory() as place:
        if not models:  # presidio would download one
            spacy.blank("en").to_disk(place)
        settings = {
            "nlp_engine_name": "spacy",
            "models": [{"lang_code": "en", "model_name": (models or [place])[0]}],
        }
        engine: Any = AnalyzerEngine(
            nlp_engine=NlpEngineProvider(nlp_configuration=settings).create_engine()
        )

    def finder(text: str) -> list[tuple[str, str]]:
        """Adds to the patterns' pieces those of presidio that are no part of one, nor hold one."""
        found = patterns(text)
        for each in engine.analyze(text=text, language="en", entities=list(KINDS)):
            kind, value = KINDS[each.entity_type], text[each.start : each.end]
            if not any(value in known or known in value for _, known in found):
                found.append((kind, value))
        return found

    if not models:
        return finder, PRESIDIO.format("") + WITHOUT_NAMES
    version = spacy.util.get_package_version(models[0])
    return finder, PRESIDIO.format(NAMES.format(models[0], version))


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
    """Returns every measure of some tables, none of them empty."""
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
        """Learns the words of texts from ``rows``, which teach the classifier."""
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
    assert isinstance(column, Number | Day)
    length = max(column.step, column.offset(column.maximum))
    return float(column.offset(value) / length), 0.0


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
        trained, near, of_training = trained[: len(synthetic)], None, None
        if embed is not None and min(map(len, (synthetic, trained, real))) >= FEWEST_TEXTS:
            of_controls = embed(real)
            near, of_training = (mauve(embed(each), of_controls) for each in (synthetic, trained))
        said = records.TextLikeness(name=column.name, mauve=near, mauve_of_training=of_training)
        result = likeness(synthetic, real)
        if isinstance(result, str):
            found.append(replace(said, why_not=result))
            continue
        found.append(
            replace(
                said,
                told_apart=result.accuracy,
                p_value=result.p_value,
                divergence={str(n): value for n, value in result.divergences.items()},
                of_controls={str(n): value for n, value in result.control.items()},
            )
        )
    return found


def leakage(schema: Schema, tables: Tables) -> records.RowLeakage:
    """Returns what of the training rows stands in the synthetic ones, beside controls'.

    A row is compared as one text: its texts, or all its values where it has none.
    """
    shown = [column for column in schema.learned if isinstance(column, Text)] or schema.learned
    of_tables = [
        [" | ".join(str(row[column.name] or "") for column in shown) for row in table]
        for table in (tables.synthetic, tables.training, tables.controls)
    ]
    exact = [
        {tuple(map(repr, row.values())) for row in table}
        for table in (tables.synthetic, tables.training, tables.controls)
    ]
    shares = [len(exact[0] & side) / len(side) for side in exact[1:]]
    found = leakage_of(*of_tables).record()
    return records.RowLeakage(
        texts=found, whole_rows_of_training=shares[0], whole_rows_of_controls=shares[1]
    )


def frontier_area(one: Sequence[float], other: Sequence[float], *, points: int = MIXTURES) -> float:
    """Returns the area under the curve of two distributions over the same groups.

    >>> round(frontier_area([0.5, 0.5], [0.5, 0.5]), 9)
    1.0
    >>> round(252 * frontier_area([1.0, 0.0], [0.0, 1.0], points=10_000), 3)
    1.0

    Args:
        one: Shares of the groups, P.
        other: Theirs in the other set, Q.
        points: Mixtures that are looked at.
    """
    p, q = np.asarray(one, np.float64), np.asarray(other, np.float64)
    curve = [(0.0, 1.0)]
    for weight in np.linspace(1e-6, 1 - 1e-6, points):
        mixture = weight * p + (1 - weight) * q
        curve.append(tuple(np.exp(-SCALE * rel_entr(each, mixture).sum()) for each in (q, p)))
    curve.append((1.0, 0.0))
    x, y = np.array(sorted(curve, key=lambda point: (point[0], -point[1]))).T
    return min(1.0, float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2)))


def mauve(one: Matrix, other: Matrix) -> float | None:
    """Returns MAUVE of two sets of features; None where one has fewer than ``FEWEST_TEXTS``.

    Args:
        one: Shape (texts, width).
        other: Shape (texts, width).
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    fewer = min(len(one), len(other))
    if fewer < FEWEST_TEXTS:
        return None
    together = normalize(np.concatenate([one, other]))
    if np.ptp(together, axis=0).max() > 0:
        together = PCA(VARIANCE, svd_solver="full").fit_transform(together)
    count = min(fewer // TEXTS_OF_A_GROUP, len(np.unique(together.round(9), axis=0)))
    groups = KMeans(count, n_init=5, max_iter=500, random_state=0).fit_predict(together)
    sides = groups[: len(one)], groups[len(one) :]
    p, q = (np.bincount(side, minlength=count) / len(side) for side in sides)
    return frontier_area(p.tolist(), q.tolist())


def embedding(model: Any, tokenizer: Any, *, most_tokens: int) -> Embed:
    """Returns what gives features of texts by a causal model.

    Args:
        model: The model; it is put into evaluation.
        tokenizer: Its own.
        most_tokens: A longer text loses its end.
    """

    def embed(texts: Sequence[str]) -> Matrix:
        model.eval()
        found = []
        for start in range(0, len(texts), BATCH):
            rows = tokenizer(
                list(texts[start : start + BATCH]), add_special_tokens=False,
                split_special_tokens=True, truncation=True, max_length=most_tokens,
            )["input_ids"]  # fmt: skip
            rows = [row or [int(tokenizer.eos_token_id)] for row in rows]
            longest = max(map(len, rows))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            there = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            with torch.no_grad():
                states = model(
                    input_ids=ids.to(model.device),
                    attention_mask=there.to(model.device),
                    output_hidden_states=True,
                ).hidden_states[-1]
            last = there.sum(1).to(states.device) - 1
            found.append(states[torch.arange(len(rows), device=states.device), last].double().cpu())
        return np.asarray(torch.cat(found).numpy())

    return embed
