"""Peak memory of whole runs, measured, against what ``dpft plan`` says of them.

    python -m benchmarks.run_memory --output benchmarks/results.md

Runs of 20 steps of the embedded model, whole and by LoRA, and of four of GPT-2's 124M shape with
random weights, whole, by LoRA and its biases alone, and of LoRA over a Llama of 220 million random
weights, as they are and in four and eight bits. Measured is the highest resident memory (VmHWM) of
the process from its start to its report, with glibc's heap as it is.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from benchmarks import tables

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results.md"
TOKENIZER = ROOT / "dpft" / "models" / "embedded" / "tiny"
TITLE = "Peak memory of whole runs against their plan"
NOTES = (
    "Peak of the whole run (VmHWM), from its start to its report. Embedded model: 20 steps of 4"
    " micro-batches of 64 records of at most 100 tokens;\nGPT-2's 124M shape and a Llama of"
    " 220 M in bfloat16 files: 4 steps of 2 of 8 records of at most 64 tokens. Measured over"
    " planned should be within 15 %."
)
COLUMNS = ("run", "measured, MB", "planned, MB", "measured / planned")
EVERY_RUN = (
    "task=e2e", "task.source=embedded", "privacy.eps=3", "eval.enabled=false", "train.steps=4",
    "train.learning_rate=1e-3",
)  # fmt: skip
EMBEDDED = (
    "model=tiny", "train.expected_batch_size=256", "train.micro_batch_size=64", "train.steps=20",
)  # fmt: skip
SHORT = (
    "task.max_length=64", "decode.max_new_tokens=32", "train.expected_batch_size=16",
    "train.micro_batch_size=8",
)  # fmt: skip
GPT2 = ("model=gpt2", "model.init=random", *SHORT)
LLAMA = ("model=llama-3.2-1b", "method=lora", *SHORT)
RUNS = {
    "embedded, full": EMBEDDED,
    "embedded, LoRA": (*EMBEDDED, "method=lora"),
    "GPT-2, full": GPT2,
    "GPT-2, LoRA": (*GPT2, "method=lora"),
    "GPT-2, BiTFiT": (*GPT2, "method=bitfit"),
    "Llama, LoRA": LLAMA,
    "Llama, LoRA over nf4": (*LLAMA, "model.quantization=nf4"),
    "Llama, LoRA over int8": (*LLAMA, "model.quantization=int8"),
}
SIZES_OF_LLAMA = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12,
    "num_attention_heads": 16, "vocab_size": 32000, "max_position_embeddings": 512,
}  # fmt: skip
"""154 million in its blocks, 65 million in its embedding and head."""
PEAK = """
import sys
from pathlib import Path
from dpft.cli.main import main
code = main(sys.argv[1:])
print(Path("/proc/self/status").read_text())
sys.exit(code)
"""
"""A run that says what it held."""


def shape_of_gpt2(folder: Path) -> Path:
    """Write GPT-2's configuration and the embedded model's tokenizer; return the folder."""
    GPT2Config(bos_token_id=0, eos_token_id=0, pad_token_id=0).save_pretrained(folder)
    return _with_tokenizer(folder)


def llama(folder: Path) -> Path:
    """Write a Llama of random weights and the embedded model's tokenizer; return the folder."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES_OF_LLAMA, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return _with_tokenizer(folder)


def _with_tokenizer(folder: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    return folder


def measured(words: Sequence[str], folder: Path) -> int:
    """Return the bytes that a run held at its peak."""
    given = ["train", *words, f"hydra.run.dir={folder}"]
    status = _output([sys.executable, "-c", PEAK, *given])
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def planned(words: Sequence[str]) -> int:
    """Return the bytes that ``dpft plan`` says of it."""
    given = ["plan", *words, "plan.measure=false", "output=json"]
    answer = json.loads(_output([sys.executable, "-m", "dpft", *given]))
    total: int = answer["memory_per_rank_bytes"]["total"]
    return total


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True).stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.device, options.precision = "cpu", "fp32"
    writer = "benchmarks/run_memory.py"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    with tempfile.TemporaryDirectory() as scratch:
        models = {
            "model=gpt2": shape_of_gpt2(Path(scratch) / "gpt2"),
            "model=llama-3.2-1b": llama(Path(scratch) / "llama"),
        }
        for number, name in enumerate(options.runs):
            words = [*EVERY_RUN, *RUNS[name], f"train.num_threads={options.threads}"]
            if RUNS[name][0] in models:
                words.append(f"model.path={models[RUNS[name][0]]}")
            held, said = measured(words, Path(scratch) / str(number)), planned(words)
            row = f"| {name} | {held / 1e6:.0f} | {said / 1e6:.0f} | {held / said:.2f} |"
            print(row, flush=True)
            table += row + "\n"
    tables.write(options.output, table)


if __name__ == "__main__":
    main()
