"""Measure what later versions must reproduce: draws, noise, epsilon and released weights.

``tests/fixtures/v0_3/reference`` holds the values that version 0.3 produced. Every value comes from
the command line or from the documented Python API. The keys are fixed by ``privacy.noise_seed``.

    python -m tests.guarantees.reference    # overwrite the fixture; only if a change is intended
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dpft
from dpft.cli.main import main
from tests.guarantees.by_hand import Row, drawn, seeded_noise, write_rows
from tests.stories.tiny import EMBEDDED_MODEL

FIXTURE = Path(__file__).parents[1] / "fixtures" / "v0_3" / "reference"
SEED = 7
NUM_EXAMPLES, EXPECTED_BATCH_SIZE, STEPS = 128, 64, 5
NOISE_MULTIPLIER, DELTA = 0.5, 1e-5
LEARNING_RATES = {"full": 4.0, "lora": 1.0, "bitfit": 1.0, "prefix": 1.0}
"""By method. Powers of two, so that plain SGD multiplies the noise without rounding."""
RECOMPUTED = "prefix"
"""Its release is the output of a network, which rounds differently on other CPUs. The noise of the
other methods is compared bit by bit."""
EVERY = 101
"""Of a tensor with more than ``WHOLE`` numbers, every 101st is kept."""
WHOLE = 2**14
NOISE_SHAPES = ((3,), (5, 7), (1,), (2**20 + 3,))
"""One parameter has more numbers than share a block of the noise."""
ROWS: tuple[Row, ...] = tuple(
    {
        "question": f"Where is place {place}?",
        "answer": f"It is in street {place * 7 % NUM_EXAMPLES}, near the river {place % 5}.",
    }
    for place in range(NUM_EXAMPLES)
)


def train(root: Path, method: str, *words: str) -> Path:
    """Train the bundled model in a new folder below ``root``; return the run's folder."""
    folder = root / "-".join((method, *words)).replace("=", "-").replace(".", "_")
    write_rows(root / "rows.jsonl", ROWS)
    write_rows(root / "one.jsonl", ROWS[:1])
    arguments = (
        "train", "task=custom", "task.data_dir=rows.jsonl", 'task.prompt="{question}"',
        'task.target="{answer}"', "task.max_length=64", "task.metrics=[perplexity]",
        "model=tiny", f"method={method}", "optimizer=sgd",
        f"train.learning_rate={LEARNING_RATES[method]}", f"train.steps={STEPS}",
        f"train.expected_batch_size={EXPECTED_BATCH_SIZE}", "train.micro_batch_size=16",
        f"privacy.noise_multiplier={NOISE_MULTIPLIER}", f"privacy.delta={DELTA}",
        "privacy.accountant=rdp", f"privacy.noise_seed={SEED}", "train.num_threads=1",
        "eval.enabled=false", f"hydra.run.dir={folder.name}", *words,
    )  # fmt: skip
    with chdir(root):
        code = main(list(arguments))
    assert code == 0, f"dpft {' '.join(arguments)} ended with {code}"
    return folder


def noise_only(root: Path, method: str, *words: str) -> Path:
    """Train like ``train``, but draw no record: the updates are noise and nothing else."""
    return train(
        root, method, "task.data_dir=one.jsonl", "privacy.num_examples=50000",
        "train.expected_batch_size=1", *words,
    )  # fmt: skip


def diagnostics(run: Path, key: str) -> list[Any]:
    """Return one value of each step of ``private/diagnostics.jsonl``; None if a step has none."""
    lines = (run / "private" / "diagnostics.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if "step" in line]
    return [step.get(key) for step in steps]


def tensors_of(run: Path) -> dict[str, Tensor]:
    """Return the released tensors of a model or an adapter."""
    (path,) = (run / "model").glob("*model.safetensors")
    return load_file(path)


def tensors_of_model() -> dict[str, Tensor]:
    """Return the tensors of the bundled model in float32."""
    return {n: t.float() for n, t in load_file(EMBEDDED_MODEL / "model.safetensors").items()}


def sampled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, of large ones only every ``EVERY``-th number."""
    return {
        name: (t.flatten()[::EVERY] if t.numel() > WHOLE else t.flatten()).contiguous()
        for name, t in sorted(tensors.items())
    }


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of all bits of some tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def draws() -> list[list[int]]:
    """Return the records of each step."""
    return drawn(
        num_examples=NUM_EXAMPLES, expected_batch_size=EXPECTED_BATCH_SIZE, steps=STEPS, seed=SEED
    )


def noise() -> list[dict[str, Any]]:
    """Return the private gradients of steps without a record: first numbers and a digest each."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in NOISE_SHAPES]
    source = seeded_noise(
        parameters, noise_std=0.05, expected_batch_size=EXPECTED_BATCH_SIZE, seed=SEED
    )
    steps = []
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = None
        source.privatize_gradients()
        gradients = {str(place): p.grad for place, p in enumerate(parameters)}
        firsts = [float(gradient.flatten()[0]).hex() for gradient in gradients.values()]
        steps.append({"first": firsts, "digest": digest(gradients)})
    return steps


def epsilons() -> list[dict[str, Any]]:
    """Return what each step costs, by all accountants."""
    account = dpft.account(
        num_examples=NUM_EXAMPLES,
        expected_batch_size=EXPECTED_BATCH_SIZE,
        noise_multiplier=NOISE_MULTIPLIER,
        steps=STEPS,
        delta=DELTA,
        accountant="rdp",
        curve=True,
    )
    curve = json.loads(json.dumps(list(account.curve), default=dict))
    kept = ("epsilon", "accountant", "epsilons")
    return [
        {"steps": point["mechanism"]["steps"], **{key: point[key] for key in kept}}
        for point in curve
    ]


def write() -> None:
    """Overwrite the fixture with what this version produces."""
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in LEARNING_RATES:
            run, noisy = train(Path(folder), method), noise_only(Path(folder), method)
            assert not any(diagnostics(noisy, "batch_size")), "a record was drawn"
            save_file(sampled(tensors_of(run)), FIXTURE / f"{method}.safetensors")
            runs[method] = {
                "mean_loss_of_step_1": diagnostics(run, "mean_loss")[0],
                "digest_of_noise": None if method == RECOMPUTED else digest(tensors_of(noisy)),
            }
    values = {"draws": draws(), "noise": noise(), "epsilons": epsilons(), "runs": runs}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    (FIXTURE / "reference.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    FIXTURE.mkdir(parents=True, exist_ok=True)
    write()
