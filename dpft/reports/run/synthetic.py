"""What synthetic records cost: the statement that lies beside a file that a model wrote.

Writing is post-processing: it sees the records through the model alone, so whoever sees the texts
learns no more of the records than whoever sees the model (Dwork and Roth 2014, proposition 2.1).
"""

from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.records.form import joined, keys_of
from dpft.records.privacy_file import RunPrivacy, guarantee
from dpft.records.promises import GeneratedOpenly, GeneratedPrivately, OpenRun
from dpft.records.ratings import SheetDecoding

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


def statement(
    privacy: RunPrivacy,
    *,
    run: str,
    task: str,
    decode: SheetDecoding,
    retries: int,
    records: int,
    unparsed: int | None,
    prompted: bool,
) -> GeneratedPrivately | GeneratedOpenly:
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
    openly = GeneratedOpenly(
        steps=privacy.steps,
        warnings=privacy.warnings,
        run=run,
        task=task,
        decode=decode,
        retries=retries,
        records=records,
        unparsed=unparsed,
        prompts="the user's" if prompted else "none",
        notes=(cost(privacy), *([PROMPTS_NOT_COVERED] if prompted else [])),
    )
    if isinstance(privacy, OpenRun):
        return openly
    shared = {key.field for key in keys_of(GeneratedPrivately)} - vars(openly).keys() | {"private"}
    promised = {name: getattr(privacy, name) for name in shared}
    return joined(GeneratedPrivately, openly, **promised)


def cost(privacy: RunPrivacy) -> str:
    """Returns in a sentence what a model's texts cost, or that nothing protects the records."""
    if isinstance(privacy, OpenRun):
        return NON_PRIVATE_RUN
    if not privacy.private:
        return REPRODUCIBLE_RUN
    epsilon, delta = guarantee(privacy)
    whose = "model and its tokenizer" if privacy.tokenizer is not None else "model"
    return (
        f"post-processing of the run's {whose}: towards the records that it was trained on, the"
        f" same (epsilon = {eps_text(epsilon)}, delta = {delta_text(delta)}) as the model's,"
        " however many texts are written; not a second expense"
    )
