"""Removed configuration keys and options, each with a sentence that names its replacement.

Only this module knows removed keys. If a user sets such a key, the error quotes its sentence. A
removed key in the saved configuration of an earlier run is ignored.
"""

REMOVED = {
    "signal_to_noise": "Read it from each run's `private/diagnostics.jsonl`. Omit the key.",
    "human_eval": "Rate texts from `predictions.jsonl` in a spreadsheet. Omit the key.",
    "human_eval_runs": "Rate texts from `predictions.jsonl` in a spreadsheet. Omit the key.",
    "human_eval_seed": "Rate texts from `predictions.jsonl` in a spreadsheet. Omit the key.",
    "human_eval_strategy": "Rate texts from `predictions.jsonl` in a spreadsheet. Omit the key.",
    "key": "Compute means of your ratings with a spreadsheet or with pandas. Omit the key.",
    "ratings": "Compute means of your ratings with a spreadsheet or with pandas. Omit the key.",
    "batch_sizes": "Run `dpft account` once per batch size, with `expected_batch_size=SIZE`.",
    "compute": "Compare plans of several `train.steps` and `train.expected_batch_size`.",
    "privacy.secure_noise": "Noise always comes from a cryptographic generator. Omit the key.",
    "privacy.witness": "Publish the head that `dpft account run=RUN` prints. Omit the key.",
    "witness": "Give the published head instead: `dpft account run=RUN head=HASH`.",
    "audit.label": "Name a `label` in the schema of `dpft synthesize`, or use scikit-learn.",
    "model=llama": "Use `model=llama-3.2-1b`.",
    "model=qwen": "Use `model=qwen3-0.6b`, or `model=local model.hub_name=Qwen/Qwen2.5-0.5B`.",
    "model=gemma": "Use `model=gemma-3-1b`.",
    "optimizer=adam_bc": "It was not better than AdamW. Use optimizer=adamw.",
    "optimizer=muon": "It was not better than AdamW. Use optimizer=adamw.",
    "train.average": "Averages of weights brought no gain. dpft releases the last weights.",
    "train.average_decay": "Averages of weights brought no gain. Omit the key.",
    "train.average_released": "Averages of weights brought no gain. Omit the key.",
    "train.average_tail": "Averages of weights brought no gain. Omit the key.",
    "train.compile": "It was 6 to 24 % slower on a CPU and 4 % faster on an H100. Omit the key.",
    "train.fused_head": "To save memory, lower `train.micro_batch_size`. Omit the key.",
    "privacy.clipper_memory_mb": "To save memory, lower `train.micro_batch_size`. Omit the key.",
    "privacy.self_check": (
        "The self-check always runs, because it chooses how to record each parameter. Omit the key."
    ),
    "privacy.engine=two_pass": "Use `privacy.engine=rows`, which needs the least memory.",
    "privacy.engine=instantiate": "Use `privacy.engine=auto`.",
    "privacy.engine=loop": "Use `privacy.engine=rows`.",
}
"""Dotted key, ``KEY=VALUE`` or ``GROUP=OPTION``, and the sentence that names its replacement."""


def removed_key(name: str) -> str | None:
    """Return the error message for a removed key, value or option, or None for other names."""
    return f"{name} was removed from dpft. {REMOVED[name]}" if name in REMOVED else None
