"""How many words of a corpus survive a private histogram, by what a record may add to it.

    python -m benchmarks.vocabulary --data DIR --output benchmarks/results.md

DIR holds the folders e2e and sst2, with a train split each. Noise is that of a test's seed, so that
the table can be made again; nothing here is private.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks import tables
from dpft.config.hydra_compose import compose
from dpft.config.load import load
from dpft.config.schema import TokenizerCommand
from dpft.data.sources import read_examples
from dpft.privacy.cipher import secret_key
from dpft.privacy.mechanisms.histogram import (
    GaussianHistogram,
    noise_std_for,
    words_above_threshold,
)
from dpft.tasks.base import Task, text_of
from dpft.tokenizers import Caps, count_words

RESULTS = Path(__file__).parent / "results.md"
TITLE = "Words that survive a private histogram"
TASKS = ("e2e", "sst2")
DELTA = 1e-9
EPSILONS = (0.17, 1.0, 3.0)
CAPS = (
    ("paper: k = m = N = 256", Caps(words=256, l2=256.0, linf=256.0)),
    ("m = 1, k = 16", Caps(words=256, l2=16.0, linf=1.0)),
    ("m = 1, k = 4", Caps(words=256, l2=4.0, linf=1.0)),
    ("m = 1, k = 2", Caps(words=256, l2=2.0, linf=1.0)),
    ("m = k = 1", Caps(words=256, l2=1.0, linf=1.0)),
)
COLUMNS = ("text", "ε", "caps", "words kept", "of all words", "of all occurrences")


def rows_of(task: Task, name: str) -> list[str]:
    """Return a row for each epsilon and caps."""
    texts = [(text_of(record), "") for record, _ in read_examples(task, "train", None)]
    whole = count_words(texts, Caps(words=10**6, l2=1e9, linf=1e9), by_unit=False)
    occurrences = dict(zip(whole.words, whole.counts, strict=True))
    rows = []
    for eps, (label, caps) in product(EPSILONS, CAPS):
        counted = count_words(texts, caps, by_unit=False)
        mechanism = GaussianHistogram(
            noise_std=noise_std_for(eps=eps, l2_cap=caps.l2, delta=DELTA),
            l2_cap=caps.l2,
            linf_cap=caps.linf,
            words_per_record=caps.words,
            delta=DELTA,
        )
        kept = words_above_threshold(
            counted.words, counted.counts, mechanism, secret_key("histogram", 0)
        )
        share = len(kept) / len(occurrences)
        seen = np.sum([occurrences[word] for word, _ in kept]) / sum(occurrences.values())
        rows.append(f"| {name} | {eps:g} | {label} | {len(kept)} | {share:.1%} | {seen:.1%} |")
    return rows


def task_of(name: str, folder: Path) -> Task:
    """Return a task that reads a folder."""
    words = [f"task={name}", f"task.data_dir={folder}", "privacy.eps=1", "tokenizer.vocab_size=1"]
    composed = compose("tokenizer", words, TokenizerCommand)
    return load(composed.values, TokenizerCommand).task


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables.add_options(parser, output=RESULTS)
    parser.add_argument("--data", type=Path, required=True, help="folder of e2e and sst2")
    options = parser.parse_args(arguments)
    notes = (
        f"Of all training records; δ = {DELTA:g}, at most 256 words of a record, which no record"
        " of these has.\nm: most of one word, k: L2 norm of a record's counts."
    )
    table = tables.heading(
        TITLE, options, writer="benchmarks/vocabulary.py", notes=notes, columns=COLUMNS
    )
    rows = [row for name in TASKS for row in rows_of(task_of(name, options.data / name), name)]
    print(*rows, sep="\n")
    tables.write(options.output, table + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
