"""A private T5 in small: does a private vocabulary cost accuracy (Ponomareva et al. 2022)?

    python -m benchmarks.private_t5 --data DIR --output benchmarks/results.md

DIR holds the folders e2e and sst2. The corpus is E2E's references and SST-2's sentences. For each
of three vocabularies of one size, a public one and private ones of two epsilons, a T5 of 0.3
million parameters is trained from nothing on hidden spans, privately and not, and then on SST-2 as
a task of texts, without privacy, as if that were public. Each run is a ``dpft`` command; those that
are done are kept in ``--work``.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks import tables
from benchmarks.kept_runs import kept_run, score, seconds_of
from dpft.tokenizers import UNIGRAM, Caps, count_words, save_tokenizer, train_pieces

TITLE = "A private T5 in small"
RESULTS = Path(__file__).parent / "results.md"
PIECES = 200
DELTA = 1e-9
TOKENIZERS = ("public", "0.17", "3.37")
PRETRAININGS = ("none", "6")
NO_CAPS = Caps(words=10**6, l2=1e9, linf=1e9)
SHAPE = (
    "model=t5-tiny", "model.architecture.d_model=64", "model.architecture.d_kv=16",
    "model.architecture.d_ff=256", "model.architecture.num_layers=2",
    "model.architecture.num_decoder_layers=2",
)  # fmt: skip
COLUMNS = (
    "vocabulary", "ε of it", "pre-training ε", "tokens a word", "unknown", "token accuracy",
    "SST-2 accuracy", "minutes",
)  # fmt: skip
NOTES = (
    f"Corpus: E2E's references and SST-2's sentences; every vocabulary has {PIECES} pieces; token"
    " accuracy is of hidden spans of 1000 validation texts and of tokens, which are other tokens in"
    " each vocabulary: a private one spells rare letters as one unknown token, which is easy to"
    " guess. SST-2: text to text, without privacy, 872 sentences. One seed."
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Where everything lies."""

    data: Path
    folder: Path
    threads: int

    @property
    def corpus(self) -> Path:
        """Folder of train.txt and validation.txt."""
        return self.folder / "corpus"

    def run(self, name: str, *words: str) -> Path:
        """Return a run's folder; see ``kept_run``."""
        return kept_run(self.folder / name, *words)


def texts(file: Path, column: str) -> Iterator[str]:
    """Yield a column of a packed file of JSON lines."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield " ".join(str(json.loads(line)[column]).split())


def write_corpus(work: Work) -> None:
    """Write the corpus, a text a line."""
    work.corpus.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation"):
        found = [
            *texts(work.data / "e2e" / f"{split}.jsonl.gz", "human_reference"),
            *texts(work.data / "sst2" / f"{split}.jsonl.gz", "sentence"),
        ]
        if split == "validation":
            found = found[:: max(1, len(found) // 1000)]
        (work.corpus / f"{split}.txt").write_text("\n".join(found) + "\n", encoding="utf-8")


def public_tokenizer(work: Work) -> Path:
    """Return a vocabulary of the same size, of every word of the corpus."""
    folder = work.folder / "tokenizer-public"
    if folder.exists():
        return folder
    lines = (work.corpus / "train.txt").read_text(encoding="utf-8").splitlines()
    counted = count_words([(line, "") for line in lines], NO_CAPS, by_unit=False)
    histogram = work.folder / "words.tsv"
    rows = zip(counted.words, counted.counts, strict=True)
    histogram.write_text("".join(f"{word}\t{int(count)}\n" for word, count in rows))
    pieces = train_pieces(
        histogram, work.folder / "pieces.json", vocab_size=PIECES, algorithm=UNIGRAM
    )
    save_tokenizer(folder, pieces, algorithm=UNIGRAM, sentinels=100)
    return folder


def private_tokenizer(work: Work, eps: str) -> Path:
    """Return the run of a private vocabulary."""
    return work.run(
        f"tokenizer-{eps}", "tokenizer", "task=corpus", f"task.data_dir={work.corpus}",
        f"tokenizer.vocab_size={PIECES}", f"privacy.eps={eps}", f"privacy.delta={DELTA}",
    )  # fmt: skip


def pretrained(work: Work, tokenizer: str, eps: str) -> Path:
    """Return the run of hidden spans."""
    place = work.folder / f"tokenizer-{tokenizer}"
    privacy = ["privacy=none"] if eps == "none" else [f"privacy.eps={eps}"]
    return work.run(
        f"spans-{tokenizer}-{eps}", "train", "task=corpus", f"task.data_dir={work.corpus}",
        "task.max_length=64", *SHAPE, f"model.tokenizer={place}", "model.tokenizer_is_public=true"
        if tokenizer == "public" else "model.tokenizer_is_public=false", *privacy,
        "train.expected_batch_size=512", "train.micro_batch_size=128", "train.steps=300",
        "train.learning_rate=2e-3", f"train.num_threads={work.threads}", "eval.split=validation",
        "task.metrics=[token_accuracy]", "scheduler=constant",
    )  # fmt: skip


def fine_tuned(work: Work, start: Path) -> Path:
    """Return the run of SST-2 that begins with a pre-trained model."""
    return work.run(
        f"{start.name}-sst2", "train", "task=sst2", f"task.data_dir={work.data / 'sst2'}",
        "task.objective=text2text", "task.max_length=96", f"model.path={start / 'model'}",
        "model=local", "privacy=none", "train.expected_batch_size=64", "train.steps=800",
        "train.learning_rate=1e-3", "train.micro_batch_size=64", "eval.split_is_public=true",
        "decode.max_new_tokens=12", "decode.num_beams=1", f"train.num_threads={work.threads}",
    )  # fmt: skip


def spelling(work: Work, tokenizer: str) -> tuple[float, float]:
    """Return the tokens of a word on average, and which share of them is unknown."""
    place = work.folder / f"tokenizer-{tokenizer}"
    made = AutoTokenizer.from_pretrained(place if tokenizer == "public" else place / "tokenizer")
    lines = (work.corpus / "validation.txt").read_text(encoding="utf-8").splitlines()
    ids = [number for line in lines for number in made(line, add_special_tokens=False).input_ids]
    words = sum(len(line.split()) for line in lines)
    return len(ids) / words, ids.count(made.unk_token_id) / len(ids)


def row(work: Work, tokenizer: str, eps: str) -> str:
    """Return a row of the table."""
    run = pretrained(work, tokenizer, eps)
    tuned = fine_tuned(work, run)
    tokens, unknown = spelling(work, tokenizer)
    minutes = sum(seconds_of(each) for each in (run, tuned)) / 60
    cost = "none" if tokenizer == "public" else tokenizer
    name = "SP, public" if tokenizer == "public" else "DP-SP"
    spans, sst2 = score(run, "token_accuracy"), score(tuned, "accuracy")
    return (
        f"| {name} | {cost} | {eps} | {tokens:.2f} |"
        f" {unknown:.1%} | {spans:.3f} | {sst2:.3f} | {minutes:.1f} |\n"
    )


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/private_t5"))
    parser.add_argument("--only", nargs="*", default=[], help="tokenizer-eps pairs to run alone")
    tables.add_options(parser, output=RESULTS)
    options = parser.parse_args()
    work = Work(data=options.data, folder=options.work.resolve(), threads=options.threads)
    write_corpus(work)
    public_tokenizer(work)
    for eps in TOKENIZERS[1:]:
        private_tokenizer(work, eps)
    pairs = [(name, eps) for name in TOKENIZERS for eps in PRETRAININGS]
    if options.only:
        for name, eps in pairs:
            if f"{name}-{eps}" in options.only:
                print(row(work, name, eps), end="", flush=True)
        return
    writer = "`make private-t5 DATA=DIR`, `benchmarks/private_t5.py`,"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    tables.write(options.output, table + "".join(row(work, *pair) for pair in pairs))


if __name__ == "__main__":
    main()
