"""What each file of a run's folder is, by its name in dpft/run_folder.py, and its schema."""

PUBLIC: dict[str, tuple[str, str]] = {
    "CONFIGURATION": ("The whole configuration of the run; `resume=` and `run=` read it.", ""),
    "REPORT": ("The report: ε with everything it depends on, and the scores.", ""),
    "PAGE": ("The same as a page to show, with plots.", ""),
    "PRIVACY": ("What the run promises, for machines.", "privacy"),
    "METRICS": (
        "The scores, before and after training; of a private split, that they are in `private/`.",
        "metrics",
    ),
    "PROGRESS": (
        "A line every ten steps: how long they took, ε so far, and scores of a public split by"
        " `eval.every_steps` or `eval.every_epochs`.",
        "progress_line",
    ),
    "LEDGER": (
        "A line that names the run, and one for each noisy step, on disk before a weight moved.",
        "ledger_line",
    ),
    "MODEL": ("The trained model with its tokenizer and a model card, as safetensors.", ""),
    "HISTOGRAM": ("Of `dpft tokenizer`: the words that were kept, each with its noisy count.", ""),
    "TOKENIZER": ("Of `dpft tokenizer`: the tokenizer that was made of them.", ""),
    "SYNTHESIS": ("Of `dpft synthesize`: how it was asked for; its training is a run below.", ""),
    "TRAINING": ("Of `dpft synthesize`: the folder of its training, a run of its own.", ""),
    "TRACKING": ("With `tracking=`: event files.", ""),
    "HYDRA": ("How the command was composed.", ""),
    "OVERRIDES": ("The words of the command.", ""),
    "PREDICTIONS": (
        "What the model wrote for each input of a public split; of a private one it is in"
        " `private/`.",
        "predictions_line",
    ),
    "SAMPLES": ("Twenty inputs of a public split with outputs and references, to read.", ""),
    "WRONG_IMAGES": ("Some images of a public split that were classed wrongly.", ""),
    "GENERATED": (
        "Synthetic records, and beside each file `NUMBER.privacy.json`, what they cost.",
        "generated_privacy",
    ),
    "EXPORT": ("The model as a folder to hand on.", ""),
    "AUDIT": ("Figures of audits that follow from canaries alone, which the report shows.", ""),
    "SYNTHETIC_AUDIT": ("What may be released of an audit of synthetic records.", ""),
}
PRIVATE: dict[str, tuple[str, str]] = {
    "PRIVATE_PAGE": ("Of `dpft synthesize`: its rows against real ones.", ""),
    "LOCK": ("Held by the one process that writes the folder.", ""),
    "JOURNAL": (
        "The journal: each step with sums of its noisy gradient, by which a redone one is known.",
        "",
    ),
    "DIAGNOSTICS": ("Losses, gradient norms, clipped shares and batch sizes of each step.", ""),
    "BEGUN": ("The day and the versions with which the run was begun.", ""),
    "PRIVATE_METRICS": ("The scores of private splits, and how many were scored.", "metrics"),
    "PRIVATE_PROGRESS": (
        "Lines that the next boundary of ten steps makes public.",
        "progress_line",
    ),
    "PRIVATE_REPORT": ("The same, to read.", ""),
    "DATA_SUMMARY": ("How many records were read, left out, cut, held out and trained on.", ""),
    "EXACT_HISTOGRAM": ("The words of a vocabulary without privacy, as they were counted.", ""),
    "FINGERPRINT": ("A keyed hash of the records, by which other records are refused.", ""),
    "HELD_OUT_KEY": ("The key that says which records are held out.", ""),
    "UNIT_KEY": ("The key that says which records of a large unit are trained on.", ""),
    "AUDIT_KEY": ("The key of which canaries and their coins were made.", ""),
    "REFERENCES": ("Log-probabilities of preference pairs under the reference model.", ""),
    "WHITE_BOX": ("What each step's noisy gradient has of every canary's own.", ""),
    "TRACEBACK": ("A crash in full; it may quote records.", ""),
    "PRIVATE_AUDIT": (
        "What audits found, `NAME.json` and `NAME.html`, compared with the records.",
        "audit_one_run",
    ),
    "MEMORIZATION": ("What the model wrote of its records.", "audit_memorization"),
    "PRIVATE_SYNTHETIC_AUDIT": ("What synthetic records hold of the run's own.", ""),
    "CANARIES": ("The run's canaries, and which of them were trained on.", ""),
    "BASE_MODEL": ("The model that a Python program gave as an object, and its tokenizer.", ""),
    "CHECKPOINTS": ("`step-NUMBER/`: model, optimizer, state, and keys while there are any.", ""),
    "TUNING": ("Of `dpft tune`: what was drawn, and every trial's own folder.", ""),
    "TUNE_CONFIGURATION": ("Of `dpft tune`: the search's configuration.", ""),
    "TRIALS": ("Of `dpft tune`: the trials that were drawn, and what came of them.", ""),
    "EXIT_CODES": ("In a sweep's folder: how each of its jobs ended.", ""),
}
OF_SWEEPS: dict[str, tuple[str, str]] = {
    "SWEEP_RECORD": ("Hydra's own record of the sweep.", ""),
}
OF_CHECKPOINTS: dict[str, tuple[str, str]] = {
    "WEIGHTS": ("The model; of a model in shards a file for each.", ""),
    "OPTIMIZER": ("The optimizer's state, in the same way.", ""),
    "STATE": ("What the run is bound to.", ""),
    "KEYS": ("The run's secret keys; gone once the next checkpoint is whole.", ""),
    "HISTORY": ("Noise of `mechanism=banded` that later noise takes back; gone with the keys.", ""),
}
NOT_FILES = {
    "PRIVATE",  # the folder itself
    "TOKENIZER_CONFIG",  # within the tokenizer, which is described as a whole
    *("CHECKPOINT", "PARTIAL_CHECKPOINT", "CHECKPOINT_STATES"),  # patterns
    *("TRIAL_SCORE", "TRIAL_LOG"),  # within trials, whose folders are described as a whole
}
"""Names in dpft/run_folder.py that are no file of their own."""
SCHEMA_GROUPS: dict[str, tuple[str, ...]] = {
    "Files": (
        *(
            "privacy",
            "tokenizer_privacy",
            "metrics",
            "progress_line",
            "predictions_line",
            "ledger_line",
        ),
        "generated_privacy",
        *("audit_one_run", "audit_exposure", "audit_membership", "audit_memorization"),
        *("audit_synthetic", "synthesis", "synthesis_measures"),
    ),
    "Answers": ("account", "plan", "doctor", "list", "synthesize"),
}
"""Which schemas are of files, and which of what ``output=json`` prints."""
