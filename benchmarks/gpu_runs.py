"""Lines of ``make gpu-check`` on whole commands: train, kill and resume, eval, generate, audit.

The embedded model on the embedded records, and models from nothing, so that nothing is fetched.
"""

import contextlib
import io
import json
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.gpu_lines import Given, Line, Verdict
from dpft.cli.main import main as dpft_main
from dpft.models.source import EMBEDDED_MODEL
from dpft.run_folder import LEDGER, MODEL, TRACEBACK
from dpft.training import loop

STEPS = 5
TRAINING = (
    "train", "task=e2e", "task.source=embedded", "model=tiny",
    "privacy.noise_multiplier=1", "privacy.accountant=rdp",
    "train.expected_batch_size=64", "train.micro_batch_size=16", f"train.steps={STEPS}",
    "train.learning_rate=1e-3", "eval.enabled=false",
)  # fmt: skip
SEEDED = "privacy.noise_seed=1"
QUICK = (
    "train.expected_batch_size=8", "train.micro_batch_size=4", "task.max_length=40",
    "train.num_threads=1",
)  # fmt: skip
CLOSE = 1e-4
"""Most that a float32 run's change of the weights may be off the CPU's, relative: AdamW divides by
the root of a mean square, so that what is far below the noise moves next to nothing."""
KILLED_AT = 4


def command(*words: str) -> str:
    """Do what ``dpft words`` does, in this process; return what it wrote to stdout.

    Raises:
        RuntimeError: It failed; with the last thing it said.
    """
    out, err = io.StringIO(), io.StringIO()
    print("dpft", *words, flush=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = dpft_main(list(words))
    print(out.getvalue(), err.getvalue(), sep="\n", flush=True)
    if code:
        for path in Path().glob(f"*/{TRACEBACK}"):
            print(path.read_text(), flush=True)
        said = err.getvalue().strip().splitlines()[-1:]
        raise RuntimeError(f"dpft {words[0]} ended with code {code}: {''.join(said)}")
    return out.getvalue()


def weights(run: Path) -> dict[str, Tensor]:
    """Return what a run released, by name."""
    files = sorted((run / MODEL).glob("*.safetensors"))
    assert files, f"{run} released no weights"
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def same_bits(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Whether two sets of weights are the same numbers."""
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def apart(found: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return how far the weights' change is from the other's, relative to the other's change."""
    begin = load_file(EMBEDDED_MODEL / "model.safetensors")
    if not begin.keys() & other.keys():  # an adapter's begin at random or at 0
        begin = {name: torch.zeros_like(tensor) for name, tensor in other.items()}
    names = [name for name in other if name in begin]
    far = sum(float((found[n] - other[n]).double().square().sum()) for n in names)
    moved = sum(float((other[n] - begin[n]).double().square().sum()) for n in names)
    return float((far / moved) ** 0.5)


def training(given: Given, *words: str) -> tuple[str, ...]:
    """Return the words of a small run."""
    return (*TRAINING, *(QUICK if given.quick else ()), f"train.device={given.device}", *words)


WAYS: Mapping[str, Sequence[str]] = {
    "full": (),
    "lora": ("method=lora",),
    "rows": ("privacy.engine=rows",),
    "checkpointing": ("model.gradient_checkpointing=true",),
    "banded": ("mechanism=banded", "mechanism.bands=3"),
    "bf16": ("train.precision=bf16",),
    "fp16": ("train.precision=fp16",),
}


def determinism(given: Given, *, ways: Sequence[str]) -> Verdict:
    """Take runs twice, for the same bits, and once on the CPU, for nearly the same weights."""
    different, far = [], {}
    for way in ways[: 2 if given.quick else None]:
        words = training(given, *WAYS[way], SEEDED)
        found = []
        for name, device in (("1", given.device), ("2", given.device), ("cpu", "cpu")):
            if name == "cpu" and way in ("bf16", "fp16"):
                continue
            run = Path(f"{way}-{name}").absolute()
            command(*words, f"train.device={device}", f"hydra.run.dir={run}")
            found.append(weights(run))
        if not same_bits(found[0], found[1]):
            different.append(way)
        if len(found) == 3:
            far[way] = apart(found[0], found[2])
    seen = f"different from a second run: {', '.join(different)}" if different else "same bits"
    seen += "".join(f"; {way} {how:.1e} off the CPU's" for way, how in far.items())
    holds = not different and all(how <= CLOSE for how in far.values())
    return Verdict(holds, seen, far)


def _train_until_killed(words: Sequence[str]) -> None:
    """Train in this process, which is killed when a step's weights have moved."""
    own = loop.check_weights

    def killing(model: torch.nn.Module, step: int) -> None:
        own(model, step)
        if step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.check_weights = killing
    command(*words)


def resuming(given: Given) -> Verdict:
    """Kill a run at a step after its checkpoint, resume it, and compare with an unbroken one."""
    words = training(given, SEEDED)
    broken, whole = Path("broken").absolute(), Path("whole").absolute()
    began = [*words, "train.checkpoint_every=3", f"hydra.run.dir={broken}"]
    # before anything is on the device, since a process that has used it cannot be forked
    process = multiprocessing.get_context("fork").Process(target=_train_until_killed, args=(began,))
    process.start()
    process.join()
    lines = len((broken / LEDGER).read_text().splitlines())
    if process.exitcode != -signal.SIGKILL or (broken / MODEL).exists():
        return Verdict(False, f"it was not killed: code {process.exitcode}")
    command("train", f"resume={broken}")
    command(*words, f"hydra.run.dir={whole}")
    counts = [len((run / LEDGER).read_text().splitlines()) for run in (broken, whole)]
    same = same_bits(weights(broken), weights(whole))
    seen = (
        f"killed at step {KILLED_AT} with {lines} lines in the ledger; resumed:"
        f" {'the same bits' if same else 'OTHER WEIGHTS'} as unbroken, {counts[0]} lines of"
        f" {counts[1]}"
    )
    return Verdict(same and counts[0] == counts[1], seen)


def demonstration(given: Given) -> Verdict:
    """Train the demo, scores its model again, and has it write records."""
    run = Path("demo").absolute()
    short = (*QUICK, "train.steps=3", "eval.limit=4", "decode.max_new_tokens=8")
    short = short if given.quick else ()
    device = f"train.device={given.device}"
    command("train", "experiment=demo", device, *short, f"hydra.run.dir={run}")
    first = _score(run)
    few = 4 if given.quick else 40
    command("eval", f"run={run}", device, f"eval.limit={few}", "hydra.run.dir=scored")
    Path("prompts.jsonl").write_text(
        json.dumps({"meaning_representation": "name[Aromi], food[Chinese], area[riverside]"}) + "\n"
    )
    command("generate", f"run={run}", device, "prompts=prompts.jsonl", "to=written.jsonl")
    written = [json.loads(line) for line in Path("written.jsonl").read_text().splitlines()]
    text = " ".join(" ".join(map(str, written[0].values())).split())[:120] if written else ""
    seen = f"BLEU {first}; a record: {text!r}"
    return Verdict(bool(written), seen)


def _score(run: Path) -> str:
    path = run / "metrics.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    entries = found.get("evaluations", [found]) if isinstance(found, dict) else found
    for entry in entries:
        metrics = entry.get("metrics", {})
        if "bleu" in metrics:
            value = metrics["bleu"]
            return f"{value['value'] if isinstance(value, dict) else value:.4g}"
    return "?"


def audited(given: Given) -> Verdict:
    """Train with canaries and white-box scores, and attacks the run."""
    run, device = Path("audited").absolute(), f"train.device={given.device}"
    canaries = ("audit.canaries=40", "audit.canary_words=4", "audit.white_box=true")
    command(*training(given, *canaries), f"hydra.run.dir={run}")
    said = json.loads(command("audit", f"run={run}", "audit=one_run", device, "output=json"))
    promised = json.loads((run / "privacy.json").read_text())["epsilon"]
    numbers = {key: value for key, value in said.items() if isinstance(value, int | float)}
    bounds = [float(value) for key, value in numbers.items() if key.startswith("epsilon_lower")]
    seen = f"lower bounds {', '.join(f'{each:.3g}' for each in bounds) or said.keys()}"
    seen += f" of a promised epsilon of {promised:.3g}"
    return Verdict(bool(bounds) and max(bounds) <= promised, seen, numbers)


def images(given: Given) -> Verdict:
    """Train on digits, with and without views, scored."""
    device = f"train.device={given.device}"
    words = (
        "train",
        "task=digits",
        "model=vit-tiny",
        "privacy.noise_multiplier=1",
        "train.steps=5",
        device,
    )
    words += ("train.expected_batch_size=64", "train.micro_batch_size=32", "eval.limit=50")
    words += ("privacy.accountant=rdp", "privacy.allow_large_delta=true")
    for name, more in {"plain": (), "views": ("task.augmentations=2",)}.items():
        command(*words, *more, f"hydra.run.dir={Path(name).absolute()}")
    return Verdict(True, "digits by a ViT, plain and with two views an image, trained and scored")


def spans(given: Given) -> Verdict:
    """Train a T5 from nothing by span corruption, from a folder of texts."""
    texts = Path("texts")
    texts.mkdir()
    text = "".join(f"the quick brown fox number {n} jumps over the lazy dog\n" for n in range(200))
    (texts / "notes.txt").write_text(text)
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    gaps = [f"<extra_id_{number}>" for number in range(8)]
    tokenizer.add_special_tokens({"additional_special_tokens": gaps})
    tokenizer.save_pretrained("tokenizer")
    words = (
        "train", "task=corpus", f"task.data_dir={texts.absolute()}", "model=t5-tiny",
        f"model.tokenizer={Path('tokenizer').absolute()}", "model.tokenizer_is_public=true",
        "task.max_length=32", "eval.held_out=0.1", "privacy.noise_multiplier=1", "train.steps=4",
        "train.expected_batch_size=32", "train.micro_batch_size=16",
        "privacy.allow_large_delta=true", f"train.device={given.device}",
    )  # fmt: skip
    command(*words, f"hydra.run.dir={Path('spans').absolute()}")
    return Verdict(True, "a T5 from nothing, spans masked anew in each step, trained and scored")


RUNS: Mapping[str, Line] = {
    "determinism": Line(
        work=partial(determinism, ways=("full", "lora", "rows")),
        limit=150.0,
        says=f"{STEPS} steps of dpft train twice: same weights; from the CPU's at most {CLOSE:g}",
    ),
    "determinism_more": Line(
        work=partial(determinism, ways=("bf16", "fp16", "checkpointing", "banded")),
        limit=180.0,
        says="the same of half precision, checkpointing and banded noise",
    ),
    "resume": Line(work=resuming, limit=120.0, says="kill -9 and resume: same weights, same steps"),
    "demo": Line(work=demonstration, limit=240.0, says="demo trained and scored, eval, generate"),
    "audit": Line(work=audited, limit=120.0, says="audit=one_run: bounds below the promise"),
    "images": Line(work=images, limit=90.0, says="images, with views"),
    "spans": Line(work=spans, limit=90.0, says="span corruption"),
}
