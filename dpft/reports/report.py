"""The files report.md and report.html of a run, written from its public files.

Reports contain public quantities only; everything that training derived from the records stays in
private/. The command that repeats a run omits seeds and paths that the user did not write, because
paths name a machine and its owner. It always omits ``privacy.noise_seed``, because anyone who knows
the seed can subtract the noise.

A private vocabulary also has a report, and a table that its command prints. Both are derived from
privacy.json and the released words.
"""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from markupsafe import Markup

from dpft.evaluation.scores import PRIVATE_SPLIT
from dpft.generation.decoding import DecodeConfig
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.privacy.mechanisms.histogram import GaussianHistogram
from dpft.reports.epsilon import delta_notes
from dpft.reports.privacy_json import (
    OWN_RECORDS,
    GeneratedPrivacy,
    OpenRun,
    OpenVocabulary,
    PrivateRun,
    PrivateVocabulary,
    Prompts,
    RunPrivacy,
    Vocabulary,
    guarantee,
)
from dpft.reports.published import PUBLISHED_NOTE, published_table
from dpft.reports.rendering import (
    COLORS,
    draw_svg,
    epsilon_plot,
    render_markdown,
    render_page,
    symbols,
)
from dpft.reports.run_record import RunRecord, read_run, shown
from dpft.reports.scores import (
    confused_entries,
    confused_pairs,
    confusion_figures,
    meaning,
    metric_heading,
    score_tables,
    scores_heading,
    series_of,
    series_plot,
    specs_of,
)
from dpft.reports.sections import HEAD_COMMAND, PREDICTABLE, sections
from dpft.run_folder import (
    HISTOGRAM,
    PAGE,
    PRIVATE_METRICS,
    PRIVATE_REPORT,
    REPORT,
    TOKENIZER,
    is_base_model,
    write_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SECRET = "privacy.noise_seed"
LEFT_OUT = ("reference", "reference_maps")
"""Sections of the configuration that the report shows elsewhere."""
A_PATH = "(a path on the machine of the run)"


def command(record: RunRecord) -> str | None:
    """Return the command that started the run, or None if it is not recorded."""
    if record.overrides is None:
        return None
    words = [word for word in record.overrides if _key(word) != SECRET]
    name = "tune" if record.is_of_search else "train"
    arguments = ["rows=..."] if record.config.task.source == "memory" else []
    if is_base_model(record.config.model.path or ""):
        # The user passed a model object, for which dpft added these arguments.
        ours = ("model", "model.name", "model.path")
        words = [word for word in words if _key(word) not in ours]
        arguments += ["model=...", "tokenizer=..."]
    if arguments:
        return f"dpft.{name}({', '.join([repr(words), *arguments])})"
    return shlex.join(["dpft", name, *words])


def configuration(record: RunRecord) -> str:
    """Return config.yaml without seeds and paths that the user did not write."""
    kept = public_configuration(record.values, record.overrides or ())
    return str(yaml.safe_dump(kept, sort_keys=True, allow_unicode=True))


def public_configuration(config: Mapping[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of config.yaml without seeds and paths that the user did not write."""
    shown = {name: part for name, part in config.items() if name not in LEFT_OUT}
    kept: dict[str, Any] = _shown(shown, "", overrides)
    return kept


def _shown(value: Any, key: str, overrides: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        inner = {name: f"{key}.{name}".lstrip(".") for name in value}
        return {
            name: _shown(part, inner[name], overrides)
            for name, part in value.items()
            if not _is_hidden_seed(inner[name], overrides)
        }
    if isinstance(value, list):
        return [_shown(part, key, overrides) for part in value]
    if isinstance(value, str) and value.startswith(("/", "~")):
        theirs = any(value in word for word in overrides) and not is_base_model(value)
        return value if theirs else A_PATH
    return value


def _is_hidden_seed(key: str, overrides: tuple[str, ...]) -> bool:
    if not key.endswith("seed"):
        return False
    return key == SECRET or key not in map(_key, overrides)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def write_report(folder: Path, privacy: RunPrivacy) -> RunRecord:
    """Write report.md and report.html from the other public files of a run.

    Returns:
        The content of the public files.
    """
    record = read_run(folder, privacy)
    report = render(record)
    write_text(folder / PAGE, render_run_page(record, report))
    write_text(folder / REPORT, report)
    return record


def render(record: RunRecord) -> str:
    """Return report.md."""
    config, privacy = record.config, record.privacy
    evaluations = [shown(entry) for entry in record.evaluations]
    epsilon = eps_text(guarantee(privacy)[0]) if isinstance(privacy, PrivateRun) else "not private"
    tables = score_tables(evaluations)
    names = sorted({name for table in tables for name, _ in table.rows})
    return render_markdown(
        "report.md.j2",
        **sections(config, privacy, evaluations),
        meaning=meaning(privacy),
        tables=tables,
        about=specs_of(config, names),
        by_step=series_of(record.progress, privacy, evaluations),
        confusions=[
            (entry, confused_pairs(entry.confusion))
            for entry in confused_entries(evaluations)
            if entry.confusion is not None
        ],
        heading=scores_heading,
        metric=partial(metric_heading, config),
        private_split=symbols(PRIVATE_SPLIT),
        private_files=(PRIVATE_METRICS, PRIVATE_REPORT),
        published=published_table(record, evaluations, epsilon),
        published_note=PUBLISHED_NOTE,
        command=command(record),
        configuration=configuration(record),
    )


def render_run_page(record: RunRecord, report: str) -> str:
    """Return report.html: report.md with plots; the plot of ε is next to the first scores."""
    config, privacy = record.config, record.privacy
    evaluations = [shown(entry) for entry in record.evaluations]
    plots = {"Audit results": [Markup(figure) for figure in record.audit_figures]}
    for number, series in enumerate(series_of(record.progress, privacy, evaluations)):
        plot = series_plot(series, config, f"series{number}")
        heading = scores_heading("Scores during training", series.task, series.split)
        plots[heading] = [] if plot is None else [plot]
    confused = confused_entries(evaluations)
    for entry in confused:
        part = "" if len(confused) == 1 else f"_{entry.split}"
        figures = confusion_figures(entry, record.wrong_images.get(part, ()))
        plots[scores_heading("Confusions", entry.task, entry.split)] = figures
    if (plot := epsilon_plot(privacy)) is not None:
        first = next(iter(score_tables(evaluations)), None)
        heading = scores_heading("Scores", first.task, first.split) if first else "Accountants"
        plots[heading] = [plot]
    return render_page(sections(config, privacy, evaluations)["title"], report, plots)


PROMPTS_NOT_COVERED = (
    "epsilon does not cover the prompts: the generated records contain them as they were given, and"
    " only the user knows whether the model was trained on one of them"
)
RECORDS_AS_PROMPTS = (
    "NOT PRIVATE: the prompts are the run's own training or evaluation records, and epsilon does"
    " not cover what is generated from them"
)
NON_PRIVATE_RUN = (
    "NOT PRIVATE: the model was trained without differential privacy (privacy=none), so its texts"
    " may repeat training records"
)
REPRODUCIBLE_RUN = (
    "NOT PRIVATE: the run was reproducible, so its noise is predictable (privacy.noise_seed);"
    " epsilon is that of the same run with secret randomness"
)


def statement(
    privacy: RunPrivacy,
    *,
    run: str,
    task: str,
    decode: DecodeConfig,
    retries: int,
    records: int,
    unparsed: int | None,
    prompts: Prompts,
) -> GeneratedPrivacy:
    """Return the content of the file next to synthetic records.

    Args:
        privacy: Guarantee of the run.
        run: Name of the run's folder, as DATE/TIME, without its path on this machine.
        task: Name of the task whose format the records have.
        decode: Settings of the generation.
        retries: Maximum number of times that a text was generated again because it could not be
            parsed.
        records: Number of requested records.
        unparsed: Number of texts that the task's template cannot parse into rows. None if the task
            has no template, or if the number would reveal something about a user's prompts.
        prompts: Origin of the prompts.
    """
    promised = None if prompts == OWN_RECORDS else privacy
    return GeneratedPrivacy(
        private=promised is not None and promised.private,
        guarantee=promised,
        run=run,
        task=task,
        decode=decode,
        retries=retries,
        records=records,
        unparsed=unparsed,
        prompts=prompts,
        notes=notes_on(privacy, prompts),
    )


def notes_on(privacy: RunPrivacy, prompts: Prompts) -> tuple[str, ...]:
    """Return notes on the cost of generated records, and on parts that ε does not cover."""
    if prompts == OWN_RECORDS and privacy.private:
        return (RECORDS_AS_PROMPTS,)
    return (cost(privacy), *([PROMPTS_NOT_COVERED] if prompts == "the user's" else []))


def cost(privacy: RunPrivacy) -> str:
    """Return a sentence on the privacy cost of a model's texts, or on the lack of protection."""
    if isinstance(privacy, OpenRun):
        return NON_PRIVATE_RUN
    if not privacy.private:
        return REPRODUCIBLE_RUN
    epsilon, delta = guarantee(privacy)
    whose = "model and its tokenizer" if privacy.with_tokenizer is not None else "model"
    return (
        f"post-processing of the run's {whose}: for the training records, the texts have the same"
        f" guarantee as the model (epsilon = {eps_text(epsilon)}, delta = {delta_text(delta)}), no"
        " matter how many are generated; they cost no additional epsilon"
    )


def counts_plot(counts: Sequence[int], threshold: float) -> Markup:
    """Return a plot of the released counts by rank on logarithmic axes, and the threshold.

    Args:
        counts: At least one count, each at least 1.
        threshold: Smallest count that was released.
    """
    from matplotlib.ticker import NullFormatter

    def draw(axes: "Axes") -> None:
        ranked = sorted(counts, reverse=True)
        axes.loglog(range(1, len(ranked) + 1), ranked, marker=".", color=COLORS[0])
        axes.axhline(threshold, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(
            f"threshold {threshold:.3g}", (0, threshold), xycoords=("axes fraction", "data"),
            xytext=(3, 3), textcoords="offset points", ha="left", va="bottom",
        )  # fmt: skip
        axes.set(xlabel="rank of the word", ylabel="noisy count")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())

    return draw_svg(draw, name="counts", label="noisy counts by rank")


LEDGER_NOTE = (
    "The first line of the ledger contains the plan and a random number that identifies the run."
    " The second line was written before the noise was drawn, and the third closes the ledger. The"
    f" head is the SHA-256 of the last line: `{HEAD_COMMAND}` computes it. No other run has this"
    " head. The owner of the files could rewrite all of them, so publish the head elsewhere."
)
COVERAGE: tuple[str, ...] = (
    "Covered: the released words with their counts (`histogram.tsv`), and everything derived from"
    " them: the tokenizer, and any other vocabulary from the same histogram, at no further cost.",
    "Not covered: other runs on the same records, including training with this tokenizer; their"
    " costs add up. `dpft train model.tokenizer=RUN` reports the total of both, and"
    " `dpft account runs=[RUN,OTHER]` that of any runs.",
    "Not covered: everything under `private/`, which must not be released, and the texts that a"
    " model reads: the tokenizer only splits them.",
    "Not private: the configuration, including the caps and the number of records.",
)
OPEN_COVERAGE: tuple[str, ...] = (
    "Nothing is covered: the pieces depend on the words of the records, including words that only"
    " one record contains.",
    "A private run accepts this tokenizer only if its texts are declared public"
    " (`model.tokenizer_is_public=true`).",
)
OPEN_NOTE = "There is no ledger: no noise was drawn, and no ε was spent."


def write_tokenizer_report(folder: Path, record: Vocabulary) -> None:
    """Write report.md and report.html of a vocabulary."""
    plot = None
    kind, coverage, note = "Vocabulary", OPEN_COVERAGE, OPEN_NOTE
    if isinstance(record, PrivateVocabulary):
        kind, note = "Private vocabulary", LEDGER_NOTE
        coverage = (*COVERAGE, *_delta_notes(record))
        lines = (folder / HISTOGRAM).read_text(encoding="utf-8").split("\n")[:-1]
        counts = [int(line.rpartition("\t")[2]) for line in lines]
        plot = counts_plot(counts, _histogram(record).threshold) if counts else None
    title = f"{kind} of {record.data}"
    parts = {
        "title": title,
        "headline": headline(record),
        "warnings": [f"Warning: {symbols(warning)}" for warning in record.warnings],
        "rows": rows(record),
        "coverage": map(symbols, coverage),
        "ledger_note": note,
    }
    report = render_markdown("tokenizer.md.j2", **parts)
    plots = {} if plot is None else {"Noisy counts by rank": [plot]}
    write_text(folder / PAGE, render_page(title, report, plots))
    write_text(folder / REPORT, report)


def headline(record: PrivateVocabulary | OpenVocabulary) -> str:
    """Return ε with everything that it depends on, or "NOT PRIVATE"."""
    if isinstance(record, OpenVocabulary):
        return (
            "**NOT PRIVATE: this vocabulary was made without differential privacy"
            " (`privacy=none`), from all words of the records.**"
        )
    if not record.private:
        return PREDICTABLE
    plan = record.plan
    unit = plan.unit_definition.partition(";")[0]
    return (
        f"**(ε = {eps_text(record.epsilon)}, δ = {delta_text(plan.delta)})-differentially private**"
        f" for adding or removing {unit}. This is the exact ε of the Gaussian mechanism with a"
        " threshold."
    )


def rows(record: PrivateVocabulary | OpenVocabulary) -> list[tuple[str, str]]:
    """Return rows (quantity, value) on the mechanism and the resulting tokenizer."""
    tokenizer_rows = [("tokenizer", "none yet: see the message of the command")]
    pieces = record.pieces
    if pieces is not None:
        tokenizer_rows = [
            ("pieces", f"{pieces.vocab_size}, by {record.algorithm}"),
            ("tokens, including special tokens and sentinels", f"{pieces.tokens}"),
            ("tokenizer's SHA-256", f"`{pieces.tokenizer_sha256}`"),
        ]
    begun = [] if record.date is None else [("started on (UTC)", record.date)]
    if isinstance(record, OpenVocabulary):
        size = ("number of examples", f"{record.num_examples} ({record.num_examples_source})")
        return [size, *tokenizer_rows, ("data", record.data), *begun]
    plan, histogram = record.plan, _histogram(record)
    counted = f"{plan.num_examples} ({histogram.num_examples_source}); ε does not hide this number"
    return [
        ("ε (exact)", eps_text(record.epsilon)),
        ("ε by the classical formula (no bound above 1)", eps_text(record.epsilon_classical)),
        ("δ", f"{delta_text(plan.delta)}, half for the noise, half for the threshold"),
        ("neighboring relation", f"{plan.neighboring_relation.replace('_', ' ')} {plan.unit}"),
        ("privacy unit", plan.unit_definition),
        ("number of units", counted),
        ("counted words of a unit (N)", f"{histogram.words_per_record}"),
        ("largest count of one word (m)", f"{histogram.linf_cap:g}"),
        ("L2 norm of a unit's counts (k)", f"{histogram.l2_cap:g}"),
        ("noise on each count (standard deviation)", f"{histogram.noise_std:.6g}"),
        ("threshold", f"{histogram.threshold:.6g}"),
        ("noise source", record.noise_source),
        ("words above the threshold", f"{record.words_kept}"),
        *tokenizer_rows,
        ("data", record.data),
        *begun,
        ("ledger", f"{record.ledger.lines} lines, head `{record.ledger.head}`"),
    ]


def table(record: PrivateVocabulary | OpenVocabulary, folder: Path) -> str:
    """Return the table that the command prints."""
    shown = [*rows(record), ("tokenizer's folder", str(folder / TOKENIZER))]
    width = max(len(name) for name, _ in shown)
    lines = [f"{name:<{width}}  {value}".replace("`", "") for name, value in shown]
    if isinstance(record, OpenVocabulary):
        return "\n".join([headline(record).replace("*", "").replace("`", ""), *lines])
    lines += [f"warning: {warning}" for warning in record.warnings]
    return "\n".join([*lines, *(f"note: {note}" for note in _delta_notes(record))])


def _delta_notes(record: PrivateVocabulary) -> list[str]:
    return delta_notes(record.plan.num_examples, source=record.plan.delta_source)


def _histogram(record: PrivateVocabulary) -> GaussianHistogram:
    assert isinstance(record.plan.histogram, GaussianHistogram)
    return record.plan.histogram
