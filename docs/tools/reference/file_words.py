"""Descriptions of the files of a run, by their names in dpft/run_folder.py, and of exit codes."""

PUBLIC: dict[str, tuple[str, str]] = {
    "REPORT": ("The report: ε, everything that it depends on, and the scores.", ""),
    "PAGE": ("The report as a web page with plots.", ""),
    "PRIVACY": ("The privacy guarantee for programs.", "privacy"),
    "METRICS": (
        "Scores before and after training. For a private split, only a note that they exist.",
        "metrics",
    ),
    "PROGRESS": (
        "A line for every ten steps: time, ε so far, and scores of a public split with"
        " `eval.every_steps` or `eval.every_epochs`.",
        "progress_line",
    ),
    "LEDGER": (
        "The plan of the run and one line per noisy step. `dpft account` computes ε from it.",
        "ledger_line",
    ),
    "CONFIGURATION": ("The complete configuration. `resume=` and `run=` read it.", ""),
    "MODEL": ("The trained model with its tokenizer and a model card, as safetensors.", ""),
    "PREDICTIONS": (
        "The output for each input of a public split. For a private split, the file is in"
        " `private/`.",
        "predictions_line",
    ),
    "SAMPLES": ("Twenty inputs of a public split with outputs and references.", ""),
    "WRONG_IMAGES": ("Misclassified images of a public split.", ""),
    "GENERATED": (
        "Synthetic records of `dpft generate`. `NUMBER.privacy.json` states their guarantee.",
        "generated_privacy",
    ),
    "EXPORT": ("The model as `dpft export` writes it.", ""),
    "AUDIT": ("Results of audits that may be published.", ""),
    "SYNTHETIC_AUDIT": ("The publishable results of an audit of synthetic records.", ""),
    "TRACKING": ("Event files of `tracking=`.", ""),
    "HYDRA": ("Files of Hydra: how the command was composed.", ""),
    "OVERRIDES": ("The arguments of the command.", ""),
    "HISTOGRAM": ("Words of a private vocabulary with their noisy counts.", ""),
    "TOKENIZER": ("The tokenizer that `dpft tokenizer` built from them.", ""),
    "SYNTHESIS": ("The configuration of a synthesis.", ""),
    "TRAINING": ("The run folder of the training of a synthesis.", ""),
}
PRIVATE: dict[str, tuple[str, str]] = {
    "PRIVATE_METRICS": ("Scores of private splits, and the number of evaluated inputs.", "metrics"),
    "PRIVATE_REPORT": ("The same scores as text.", ""),
    "PRIVATE_PROGRESS": (
        "Lines that dpft adds to `progress.jsonl` at the next multiple of ten steps.",
        "progress_line",
    ),
    "PRIVATE_PAGE": ("Comparison of synthetic rows with real rows.", ""),
    "DATA_SUMMARY": (
        "How many records were read, skipped, truncated, held out and used for training.",
        "",
    ),
    "DIAGNOSTICS": ("Losses, gradient norms, clipped shares and batch sizes of each step.", ""),
    "TRACEBACK": ("The complete traceback of a crash. It can quote records.", ""),
    "CHECKPOINTS": (
        "`step-NUMBER/` with the [files of a checkpoint](#files-of-a-checkpoint).",
        "",
    ),
    "JOURNAL": (
        "One line per step with sums of its noisy gradient. A resumed run recognizes a repeated"
        " step by them.",
        "",
    ),
    "LOCK": ("Locked by the process that writes to the folder.", ""),
    "BEGUN": ("The day and the package versions at the start of the run.", ""),
    "FINGERPRINT": ("A keyed hash of the records. dpft rejects other records on resume.", ""),
    "HELD_OUT_KEY": ("The secret key that selects the held-out records.", ""),
    "UNIT_KEY": ("The secret key that selects the training records of a large unit.", ""),
    "AUDIT_KEY": ("The secret key of the canaries and of their random inclusion.", ""),
    "CANARIES": ("The canaries of the run, and which of them it was trained on.", ""),
    "WHITE_BOX": (
        "For each step, inner products of the noisy gradient with the gradients of the canaries.",
        "",
    ),
    "PRIVATE_AUDIT": ("Results of audits, `NAME.json` and `NAME.html`.", "audit_one_run"),
    "MEMORIZATION": ("The records that the model reproduced.", "audit_memorization"),
    "PRIVATE_SYNTHETIC_AUDIT": ("Comparison of synthetic records with the training records.", ""),
    "REFERENCES": ("Log-probabilities of preference pairs under the reference model.", ""),
    "BASE_MODEL": ("The model and tokenizer that a Python program passed as objects.", ""),
    "EXACT_HISTOGRAM": ("Exact word counts of a vocabulary without privacy.", ""),
    "TUNING": ("The trials of `dpft tune`, each with its own folder.", ""),
    "TUNE_CONFIGURATION": ("The configuration of the search.", ""),
    "TRIALS": ("The settings and the results of all trials.", ""),
    "EXIT_CODES": ("In the folder of a sweep: the exit code of each run.", ""),
}
OF_SWEEPS: dict[str, tuple[str, str]] = {
    "SWEEP_RECORD": ("Hydra's record of the sweep.", ""),
}
OF_CHECKPOINTS: dict[str, tuple[str, str]] = {
    "WEIGHTS": ("The model. A sharded model has one file per shard.", ""),
    "OPTIMIZER": ("The state of the optimizer, in one file or one per shard.", ""),
    "STATE": ("The plan and the progress that a resumed run must match.", ""),
    "KEYS": ("The secret keys. dpft deletes them when the next checkpoint is complete.", ""),
    "HISTORY": (
        "The noise that `mechanism=banded` still needs. dpft deletes it with the keys.",
        "",
    ),
}
"""Descriptions of files, and the schemas of those that contain JSON."""
NOT_FILES = {
    "PRIVATE",  # the folder itself
    "TOKENIZER_CONFIG",  # in the tokenizer's folder, which is described as a whole
    *("CHECKPOINT", "PARTIAL_CHECKPOINT", "CHECKPOINT_STATES"),  # patterns
    *("TRIAL_SCORE", "TRIAL_LOG"),  # in the folders of trials, which are described as a whole
}
"""Names in dpft/run_folder.py that are not files of their own."""

EXIT_CODES: dict[int, tuple[str, str]] = {
    0: ("Success.", "None."),
    1: (
        "The command failed while it ran, for example because of a full disk, a failed self-check"
        " or weights that are not finite. `dpft doctor` uses it if dpft cannot train.",
        "Read the message and fix the cause. If training had started, resume with"
        " `dpft train resume=RUN`. `private/traceback.txt` has the complete traceback.",
    ),
    2: (
        "The input or the configuration is invalid, the folder is in use, the run cannot be"
        " resumed, or a file has another schema version.",
        "Change what the message names. An error before training costs no ε;"
        " `dpft account run=RUN` computes what a run has spent.",
    ),
    3: (
        "The state on disk is damaged: a ledger, a checkpoint, or a model that the run did not"
        " release.",
        "Restore the folder from a backup. Do not edit the ledger.",
    ),
    130: ("You interrupted the command (Ctrl-C).", "Resume with `dpft train resume=RUN`."),
    141: (
        "The program that read the output ended first, as in `dpft … \\| head`.",
        "None. A training run was complete.",
    ),
    143: (
        "The command was terminated (SIGTERM). A training run first finishes its step and writes a"
        " checkpoint.",
        "Resume with `dpft train resume=RUN`.",
    ),
}
"""The meaning of each exit code, and what to do."""
