"""Time of writing and scoring a split against transformers alone: ``make bench``.

    python -m benchmarks.evaluation --data DIR --pairs 3
    python -m benchmarks.evaluation --data DIR --shape MODEL --split validation --inputs 64

Texts are those of ``dpft eval`` (``ModelOutputs``), by the embedded model after a few steps of
ordinary training, so that it ends its texts, or by a model of another shape with random weights,
which seldom does; DIR holds E2E's files, test.jsonl.gz among them, and without it the embedded
sample is taken. The baselines are what a user of transformers would write, and ``generate`` on the
batches that ``dpft eval`` makes: what is left of the difference is then our own.
Both take turns in one process, by its processor time.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from benchmarks import tables
from dpft.commands.evaluate import model_to_score
from dpft.commands.overrides import evaluate_configuration
from dpft.commands.python_api import EVALUATE_COMMAND
from dpft.data.encoding import TextEncoding
from dpft.data.sources import load_examples
from dpft.evaluation.evaluate import Group, group_examples
from dpft.evaluation.outputs import ModelOutputs
from dpft.generation.decoding import DecodeConfig, batches_by_tokens
from dpft.models.losses import per_example_losses
from dpft.tasks.base import Example, are_texts

RESULTS = Path(__file__).parent / "results.md"
TITLE = "Evaluation: time of texts and scores against transformers alone"
COLUMNS = (
    *("row", "processor time (interquartile range)", "target", "seconds"),
    *("positions computed", "pairs"),
)
TARGET = "1.10"
BATCH_SIZE, TRAINING_BATCH = 32, 16


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is timed.

    Attributes:
        outputs: The model as evaluation reads it.
        groups: The inputs of a split, with their references.
        decode: How texts are written.
    """

    outputs: ModelOutputs
    groups: Sequence[Group]
    decode: DecodeConfig

    @property
    def model(self) -> PreTrainedModel:
        """The model in evaluation mode."""
        return self.outputs.model

    @property
    def encoding(self) -> TextEncoding:
        """How records become what it reads."""
        assert isinstance(self.outputs.encoding, TextEncoding)
        return self.outputs.encoding

    @property
    def examples(self) -> list[Example]:
        """Every reference of the inputs."""
        return [example for group in self.groups for example in group.examples]


@dataclass
class Timings:
    """Seconds of processor time and positions that the model computed, pair by pair."""

    measured: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    positions: tuple[int, int] = (0, 0)


Work = Callable[[Subject], object]


def texts(subject: Subject) -> list[str]:
    """Return the text for each input, as ``dpft eval`` writes it."""
    return subject.outputs.texts(
        [each.examples[0] for each in subject.groups], subject.decode, lambda _: None
    )


def generated(subject: Subject) -> list[str]:
    """Return the text for each input by transformers' ``generate``, inputs as they come."""

    def as_they_come(lengths: Sequence[int]) -> list[range]:
        everything = range(len(lengths))
        return [everything[start : start + BATCH_SIZE] for start in everything[::BATCH_SIZE]]

    return _generated(subject, as_they_come)


def generated_in_our_batches(subject: Subject) -> list[str]:
    """Return the text for each input by transformers' ``generate``, batched as ``texts`` is."""
    return _generated(subject, lambda lengths: batches_by_tokens(lengths, BATCH_SIZE))


def likelihood(subject: Subject) -> float:
    """Return the negative log-likelihood of all references, as ``dpft eval`` sums it."""
    return sum(subject.outputs.likelihoods(subject.examples, lambda _: None).nll_sums)


def plain_likelihood(subject: Subject) -> float:
    """Return the negative log-likelihood of all references by a loop over the same batches."""
    rows = subject.encoding.rows(subject.examples)
    total = 0.0
    for indices in batches_by_tokens([len(row.input_ids) for row in rows], BATCH_SIZE):
        batch = subject.encoding.layout.collate([rows[index] for index in indices])
        with torch.no_grad():
            logits = subject.model(**batch.inputs, use_cache=False).logits[:, :-1]
            labels = batch.labels[:, 1:].flatten()
            total += float(functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum"))
    return total


ROWS: dict[str, tuple[Work, Work]] = {
    "texts, 5 beams / generate, 32 inputs as they come": (texts, generated),
    "texts, 5 beams / generate, the same batches": (texts, generated_in_our_batches),
    "perplexity / a loop over the same batches": (likelihood, plain_likelihood),
}
"""Name of a row to what is measured and what it is compared to."""


def _generated(
    subject: Subject, batches: Callable[[Sequence[int]], Iterable[Sequence[int]]]
) -> list[str]:
    """Return the text for each input by ``generate``, in batches by the tokens that each takes."""
    decode, tokenizer = subject.decode, subject.encoding.tokenizer
    prompts = subject.encoding.prompts(
        [group.examples[0] for group in subject.groups],
        max_length=subject.encoding.max_length + decode.max_new_tokens,
        max_new_tokens=decode.max_new_tokens,
    )
    found = [""] * len(prompts)
    for indices in batches([len(prompt) + decode.max_new_tokens for prompt in prompts]):
        batch = tokenizer.pad(
            {"input_ids": [prompts[index] for index in indices]},
            padding_side="left",
            return_tensors="pt",
        )
        with torch.no_grad():
            written = subject.model.generate(  # type: ignore[operator]
                **batch,
                do_sample=False,
                num_beams=decode.num_beams,
                length_penalty=decode.length_penalty,
                max_new_tokens=decode.max_new_tokens,
                pad_token_id=tokenizer.eos_token_id,
            )
        new = written[:, batch["input_ids"].shape[1] :]
        for index, text in zip(
            indices, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True
        ):
            found[index] = text.strip()
    return found


def make_subject(
    *,
    data: Path | None,
    inputs: int | None,
    steps: int,
    shape: Path | None = None,
    split: str = "test",
    new_tokens: int = 60,
) -> Subject:
    """Return the embedded model after some steps of ordinary training, and a split.

    Args:
        data: Folder of E2E's files; None: the embedded sample.
        inputs: Distinct inputs, evenly out of them all; None for all.
        steps: Of training, on the embedded sample.
        shape: Folder of the configuration and tokenizer of a model that has random weights in the
            embedded one's place, untrained.
        split: Whose inputs are taken.
        new_tokens: Most that are written.
    """
    source = "task.source=embedded" if data is None else f"task.data_dir={data}"
    words = ["task=e2e", source, f"decode.max_new_tokens={new_tokens}"]
    words += (
        ["model=tiny"]
        if shape is None
        else ["model=gpt2", f"model.path={shape}", "model.init=random"]
    )
    composed = EVALUATE_COMMAND.compose(words, None)
    config = evaluate_configuration(composed.values, composed.words)
    trained = model_to_score(config)
    encoding = trained.encoding(config.task, max_new_tokens=config.decode.max_new_tokens)
    model = trained.on_device(config.task, torch.device("cpu"))
    outputs = ModelOutputs(model=model, encoding=encoding, batch_size=BATCH_SIZE)
    examples = load_examples(config.task, split)
    assert are_texts(examples)
    groups = group_examples(examples)
    groups = groups[:: max(1, len(groups) // (inputs or len(groups)))][:inputs]
    subject = Subject(outputs=outputs, groups=groups, decode=config.decode)
    if steps and shape is None:
        sample = config.task.replace(source="embedded", data_dir=None)
        records = load_examples(sample, "train")
        assert are_texts(records)
        _train(subject, records[: steps * TRAINING_BATCH])
    return subject


def _train(subject: Subject, examples: Sequence[Example]) -> None:
    optimizer = torch.optim.AdamW(subject.model.parameters(), lr=2e-3)
    for start in range(0, len(examples), TRAINING_BATCH):
        rows = subject.encoding.rows(examples[start : start + TRAINING_BATCH])
        losses = per_example_losses(subject.model, subject.encoding.layout.collate(rows))
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    subject.model.eval()


def measure(subject: Subject, measured: Work, baseline: Work, *, pairs: int) -> Timings:
    """Time both in turns."""
    timings = Timings()
    for _ in range(pairs):
        ours, ours_read = timed(subject, measured)
        theirs, theirs_read = timed(subject, baseline)
        timings.measured.append(ours)
        timings.baseline.append(theirs)
        timings.positions = (ours_read, theirs_read)
    return timings


def timed(subject: Subject, work: Work) -> tuple[float, int]:
    """Return the processor time of the work, and how many tokens the model was given for it.

    Copies of a prompt and padding count.
    """
    counts: list[int] = []
    hook = subject.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: counts.append(args[0].numel())
    )
    start = time.process_time()
    work(subject)
    spent = time.process_time() - start
    hook.remove()
    return spent, sum(counts)


def table_line(name: str, timings: Timings) -> str:
    """Return a line of the table."""
    ratios = [a / b for a, b in zip(timings.measured, timings.baseline, strict=True)]
    first, middle, third = statistics.quantiles(ratios, n=4, method="inclusive")
    both = (timings.measured, timings.baseline)
    spent = " / ".join(f"{statistics.median(times):.2f}" for times in both)
    computed = " / ".join(f"{count:,}" for count in timings.positions)
    spread = f"{middle:.3f} ({first:.3f} to {third:.3f})"
    return f"| {name} | {spread} | {TARGET} | {spent} | {computed} | {len(ratios)} |"


def notes(subject: Subject, *, own_files: bool, split: str) -> str:
    """Return what the numbers are."""
    records = "E2E's own" if own_files else "the embedded sample's"
    parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    return (
        f"{len(subject.groups)} inputs and {len(subject.examples)} references of {records} {split}"
        f" split, a {subject.model.config.model_type} of {parameters / 1e6:.1f} M parameters, "
        f"{subject.decode.max_new_tokens} new tokens at most,\neval.batch_size={BATCH_SIZE}; "
        "median ratio of the processor times of interleaved pairs, with interquartile range."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the rows and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of E2E's files; else the sample")
    parser.add_argument("--inputs", type=int, help="distinct inputs; else all")
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--steps", type=int, default=60, help="of training before")
    parser.add_argument("--shape", type=Path, help="folder of a model to take, weights random")
    parser.add_argument("--new-tokens", type=int, default=60, help="most that are written")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--pairs", type=int, default=5, help="at least 2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.device, options.precision = "cpu", "fp32"
    torch.set_num_threads(options.threads)
    subject = make_subject(
        data=options.data,
        inputs=options.inputs,
        steps=options.steps,
        shape=options.shape,
        split=options.split,
        new_tokens=options.new_tokens,
    )
    said = notes(subject, own_files=options.data is not None, split=options.split)
    writer = "benchmarks/evaluation.py"
    title = TITLE if options.shape is None else f"{TITLE}, {options.shape.name}'s shape"
    table = tables.heading(title, options, writer=writer, notes=said, columns=COLUMNS)
    for name in options.rows:
        measured, baseline = ROWS[name]
        line = table_line(name, measure(subject, measured, baseline, pairs=options.pairs))
        print(line, flush=True)
        table += line + "\n"
        tables.write(options.output, table)


if __name__ == "__main__":
    main()
