"""Personal data that came through: e-mail addresses, phone and card numbers, and how many are real.

By the patterns here, and by presidio where that is installed (extra ``pii``), which knows more
kinds of numbers and fewer spellings of them ("+44 7700 900123" is none to it); with an English
model of spaCy it finds names, too. Which of them looked is said.
"""

import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from dpft.records import synthesis as records
from dpft.synthesis.columns import Text
from dpft.synthesis.schema import Row, Schema

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
