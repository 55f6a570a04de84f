"""What synthetic records cost: the statement that lies beside a file that a model wrote.

Writing is post-processing: it sees the records through the model alone, so whoever sees the texts
learns no more of the records than whoever sees the model (Dwork and Roth 2014, proposition 2.1).
"""

from collections.abc import Mapping
from typing import Any

from dpft.privacy.accounting.rounding import delta_up, up
from dpft.reports.run.run_record import guarantee

HEADLINE = (
    "private",
    "reproducible",
    "epsilon",
    "delta",
    "epsilon_with_tokenizer",
    "delta_with_tokenizer",
    "tokenizer",
    "accountant",
    "neighboring_relation",
    "sampler",
    "unit",
    "unit_definition",
    "steps",
    "steps_taken",
    "ledger",
    "warnings",
)
"""Keys of the run's privacy.json that say what its epsilon is, and of which ledger."""

PROMPTS_NOT_COVERED = (
    "epsilon does not cover the prompts: they stand in the records as they were given, and dpft"
    " refused the run's own files alone, so only the user knows whether one was trained on"
)
NON_PRIVATE_RUN = (
    "NOT PRIVATE: the model was trained without differential privacy (privacy=none), so its texts"
    " may repeat training records"
)
REPRODUCIBLE_RUN = (
    "NOT PRIVATE: the run was reproducible, its noise predictable (privacy.noise_seed); epsilon is"
    " what the same run would have with secret randomness"
)


def synthetic_record(
    privacy: Mapping[str, Any],
    *,
    run: str,
    task: str,
    decode: Mapping[str, Any],
    retries: int,
    records: int,
    unparsed: int | None,
    prompted: bool,
) -> dict[str, Any]:
    """Returns the content of the file beside synthetic records.

    Args:
        privacy: The run's privacy.json.
        run: Name of the run's folder, as DATE/TIME; not where it lies on this machine.
        task: Name of the task whose format the records have.
        decode: How the texts were chosen.
        retries: How often a text that was no row was written anew at most.
        records: How many were asked for.
        unparsed: How many of them are texts that the task's template does not read as rows; None
            where none does, or where it would say something of a user's prompts.
        prompted: Whether the model continued a user's prompts.
    """
    notes = [cost(privacy), *([PROMPTS_NOT_COVERED] if prompted else [])]
    return {
        **{key: privacy[key] for key in HEADLINE if key in privacy},
        "run": run,
        "task": task,
        "decode": dict(decode),
        "retries": retries,
        "records": records,
        **({} if unparsed is None else {"unparsed": unparsed}),
        "prompts": "the user's" if prompted else "none",
        "notes": notes,
    }


def cost(privacy: Mapping[str, Any]) -> str:
    """Returns in a sentence what a model's texts cost, or that nothing protects the records."""
    if "epsilon" not in privacy:
        return NON_PRIVATE_RUN
    if not privacy["private"]:
        return REPRODUCIBLE_RUN
    epsilon, delta = guarantee(privacy)
    whose = "model and its tokenizer" if "epsilon_with_tokenizer" in privacy else "model"
    return (
        f"post-processing of the run's {whose}: towards the records that it was trained on, the"
        f" same (epsilon = {up(epsilon)}, delta = {delta_up(delta)}) as the model's, however many"
        " texts are written; not a second expense"
    )
