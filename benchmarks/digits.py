"""Small image models on scikit-learn's digits, privately and not: accuracy by method and epsilon.

    python -m benchmarks.digits --output benchmarks/results.md

Every run has the task's own settings. ``full`` begins at random and trains on all 1437 digits.
``bitfit`` and ``two_phase`` begin with a model that was trained, without privacy, on the half of
the digits that counts as public, and train on the other half. Each run is a ``dpft`` command; those
that are done are kept in ``--work``.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

from benchmarks import tables
from benchmarks.kept_runs import kept_run, score, seconds_of

TITLE = "Digits by small image models"
RESULTS = Path(__file__).parent / "results.md"
MODELS = ("vit-tiny", "convnext-tiny-digits", "resnet-tiny")
PUBLIC = "none: the public half alone"
EPSILONS = {
    "full": ("3", "8", "none"),
    "bitfit": ("3", "8"),
    "two_phase": ("3", "8"),
    PUBLIC: ("none",),
}
"""Of each method."""
COLUMNS = ("model", "method", "ε", "seeds", "accuracy (test)", "seconds a run")
HALF = ("train.expected_batch_size=256", "train.learning_rate=2e-3")
NOTES = (
    "360 test digits, mean and standard deviation over seeds of initialization; a private run draws"
    " noise and records anew each time. bitfit and two_phase: after a public training on 719"
    " digits, privately on the other 718, batch 256, rate 2e-3. Commands: `dpft train task=digits"
    " model=MODEL privacy.eps=8`; with `task.half=public privacy=none`, then `task.half=private"
    " model.path=RUN/model model=local method=bitfit`."
)


def run_of(work: Path, model: str, method: str, eps: str, seed: int, threads: int) -> Path:
    """Return the folder of a run."""
    common = ("train", "task=digits", f"train.seed={seed}", f"train.num_threads={threads}")
    privacy = "privacy=none" if eps == "none" else f"privacy.eps={eps}"
    name = f"{model}-{method}-{eps}-{seed}"
    if method == "full":
        return kept_run(work / name, *common, f"model={model}", privacy)
    public = kept_run(
        work / f"{model}-public-{seed}", *common, f"model={model}", "task.half=public",
        "privacy=none", "train.expected_batch_size=256",
    )  # fmt: skip
    if method == PUBLIC:
        return public
    replaced = "true" if model.startswith("resnet") else "false"
    return kept_run(
        work / name, *common, "task.half=private", "model=local", f"model.path={public / 'model'}",
        f"model.replace_batch_norm={replaced}", f"method={method}", *HALF, privacy,
        *(["method.full_epochs=10"] if method == "two_phase" else []),
    )  # fmt: skip


def rows(
    work: Path, seeds: range, threads: int, *, models: Sequence[str], methods: Sequence[str]
) -> Iterator[str]:
    """Yield the rows of the table."""
    for model in models:
        for method in methods:
            for eps in EPSILONS[method]:
                runs = [run_of(work, model, method, eps, seed, threads) for seed in seeds]
                scores = [100 * score(run, "accuracy") for run in runs]
                spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
                seconds = mean(map(seconds_of, runs))
                yield (
                    f"| {model} | {method} | {eps} | {len(scores)} | {mean(scores):.1f}{spread} |"
                    f" {seconds:.0f} |\n"
                )


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/digits"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--methods", nargs="+", choices=EPSILONS, default=tuple(EPSILONS))
    tables.add_options(parser, output=RESULTS)
    options = parser.parse_args()
    found = []
    chosen = {"models": options.models, "methods": options.methods}
    for row in rows(options.work.resolve(), range(options.seeds), options.threads, **chosen):
        print(row, end="", flush=True)
        found.append(row)
    writer = "`make digits-table`, `benchmarks/digits.py`,"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    tables.write(options.output, table + "".join(found))


if __name__ == "__main__":
    main()
