"""METEOR 1.5 for English, computed by the Java program of pycocoevalcap.

``meteor`` runs the program like coco-caption, which the E2E NLG Challenge uses: on lower-cased
tokens without punctuation, with ``-norm``. The tokens come from ``dpft.evaluation.metrics.base``,
so no tokenizer writes texts to a file. The texts reach the program through a pipe, one input per
line. Compared with pycocoevalcap's tokenizer, the scores of the 19 challenge systems differ by at
most 1.2e-4.

``meteor_plain`` runs the program like the WebNLG and DART scorers: on plain text, with ``-norm``.
All references are used here, as for WebNLG. DART's script (Yale-LILY/dart,
evaluation/prepare_files.py) passes only the first reference to METEOR.
"""

import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dpft.evaluation.metrics.base import (
    TEXTS,
    NotComputed,
    metric,
    missing_java,
    missing_modules,
    ptb_tokens,
)
from dpft.evaluation.words import ENGLISH

SEPARATOR = " ||| "
# The options disable crash reports and performance files, which could contain texts, and set an
# encoding that does not depend on the machine.
_JAVA = ("java", "-Xmx2G", "-Dfile.encoding=UTF-8", "-XX:-UsePerfData", "-XX:ErrorFile=/dev/null")
_METEOR = ("-", "-", "-stdio", "-l", "en", "-norm")


@metric(
    TEXTS,
    title="METEOR",
    description="METEOR 1.5 of the corpus, English, all references; 0..1.",
    citation="Denkowski and Lavie 2014 (WMT).",
    english_only=True,
    missing=lambda settings: missing_java() or missing_modules("pycocoevalcap.meteor.meteor"),
)
def meteor(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return METEOR of the corpus over lower-cased tokens without punctuation, 0..1.

    Raises:
        NotComputed: The Java program cannot be started or fails.
    """
    pairs = zip(predictions, references, strict=True)
    return corpus_score([score_line(prediction, texts) for prediction, texts in pairs])


@metric(
    TEXTS,
    title="METEOR (plain)",
    description="METEOR 1.5 of the corpus on plain text, English, all references; 0..1.",
    citation="Denkowski and Lavie 2014 (WMT).",
    key="meteor",
    english_only=True,
    missing=lambda settings: missing_java() or missing_modules("pycocoevalcap.meteor.meteor"),
)
def meteor_plain(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return METEOR of the corpus over the unmodified texts, 0..1.

    Raises:
        NotComputed: The Java program cannot be started or fails.
    """
    pairs = zip(predictions, references, strict=True)
    return corpus_score([plain_line(prediction, texts) for prediction, texts in pairs])


def corpus_score(lines: Sequence[str]) -> float:
    """Return the program's score of the corpus, 0..1.

    Args:
        lines: One line for each input, ``SCORE ||| reference ||| … ||| prediction``.

    Raises:
        NotComputed: The Java program cannot be started or fails.
    """
    command = [*_JAVA, "-jar", str(jar()), *_METEOR]
    pipe = subprocess.PIPE
    try:
        # Messages on stderr may quote texts.
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, encoding="utf-8"
        ) as program:
            return _dialogue(program, lines)
    except (OSError, ValueError):
        raise NotComputed(
            "Java could not run METEOR; it needs a Java runtime (8 or newer) and 2 GB of memory"
        ) from None


def score_line(prediction: str, references: Sequence[str]) -> str:
    """Return the program's line of tokens for one input, without line breaks or additional |||.

    >>> score_line("A pub|||bar.", ["A pub."])
    'SCORE ||| a pub ||| a pub | | | bar'
    """
    return scorer_line([" ".join(ptb_tokens(text, ENGLISH)) for text in (*references, prediction)])


def plain_line(prediction: str, references: Sequence[str]) -> str:
    """Return the program's line for one input; each run of whitespace becomes one space.

    >>> plain_line("A pub|||bar.", ["A  pub."])
    'SCORE ||| A pub. ||| A pub bar.'
    """
    texts = (*references, prediction)
    return scorer_line([" ".join(text.replace("|||", " ").split()) for text in texts])


def scorer_line(texts: Sequence[str]) -> str:
    """Return the program's line for one input."""
    line = SEPARATOR.join(["SCORE", *texts])
    return line.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates


def jar() -> Path:
    """Return the path of the METEOR program; it reads its tables from the same folder."""
    package = find_spec("pycocoevalcap")
    assert package is not None and package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "meteor" / "meteor-1.5.jar"


def _dialogue(program: "subprocess.Popen[str]", lines: Sequence[str]) -> float:
    """Return the score of the corpus: compute statistics of each input, then evaluate all."""
    assert program.stdin is not None and program.stdout is not None
    statistics = []
    for line in lines:
        program.stdin.write(line + "\n")
        program.stdin.flush()
        statistics.append(program.stdout.readline().strip())
    program.stdin.write(SEPARATOR.join(["EVAL", *statistics]) + "\n")
    program.stdin.close()  # Otherwise a program without output would never end.
    scores = program.stdout.read().split()
    if len(scores) != len(lines) + 1:
        raise ValueError("METEOR gives a score for each input, and one for all")
    return float(scores[-1])
