"""report.html and the model's card: what they say, and what they let nobody smuggle in."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dpft.evaluation.predictions import Sample
from dpft.reports import rendering as pages
from dpft.reports.card import render_card
from dpft.reports.privacy_json import read_privacy
from dpft.reports.rendering import epsilon_plot, epsilon_points
from dpft.reports.report import render, render_run_page, write_report
from dpft.reports.run_record import RunRecord
from tests.reports.folders import EVIL, EXPORTED, read, write_run
from tests.reports.plain import plain, privacy_of
from tests.reports.test_privacy_record import LEDGER
from tests.reports.test_report import non_private, private

epsilon_points = plain(epsilon_points)

PUBLISHED = {"source": "Paper", "what": "full", "model": None, "eps": 3.0}
REFERENCE = [{**PUBLISHED, "metrics": {"bleu": 61.519}}]


def page_of(record: RunRecord) -> str:
    return render_run_page(record, render(record))


def page(folder: Path, **changes: object) -> str:
    return page_of(read(write_run(folder / "run", **changes)))


@pytest.mark.slow
def test_the_page_says_all_that_the_headline_rests_on(tmp_path: Path) -> None:
    """docs/dev/design.md, rule 6."""
    curve = {"steps": [1, 4], "epsilons": [0.5, 3.0], "accountants": ["prv"] * 2}
    text = page(tmp_path, reference=REFERENCE, privacy={"epsilon_curve": curve})
    headline = text.partition("<blockquote>")[2].partition("</blockquote>")[0]
    for part in (
        *("ε = 2.9900", "δ = 0.001", "upper bound by prv", "adding or removing one example"),
        *("Poisson sampling", "4 steps taken of 4 planned"),
    ):
        assert part in headline
    assert "is correct at most <strong>95." in headline
    assert "ChaCha20 (RFC 8439)" in text.partition("<h2>Mechanism</h2>")[2]
    assert "ChaCha20" not in text.partition("<h2>Mechanism</h2>")[0]
    for part in ("Mechanism", "Accountants", "Not covered", LEDGER.head):
        assert part in text
    scores = text.partition("<h2>Scores on E2E, test split</h2>")[2].partition("<h2>")[0]
    assert re.search("<table>.*</table>\n<figure><svg", scores, re.DOTALL), "ε next to the scores"
    row = text.partition("<td>Paper: full</td>")[2].partition("</tr>")[0]
    assert re.findall(">([^<]+)</td>", row) == ["3", "61.5190"]


def test_the_page_is_the_report_rendered(tmp_path: Path) -> None:
    """Every line of the Markdown that is not markup is a text of the page, in the same order."""
    record = read(write_run(tmp_path / "run", reference=REFERENCE))
    text = html.unescape(re.sub("<[^>]*>", "", page_of(record)))
    place = 0
    report = re.sub(r"\]\(https://arxiv[^)]*\)", " ", render(record))
    for word in re.findall(r"\w[\w.]+", re.sub(r"[*`#|\\-]", " ", report)):
        place = text.index(word, place)


def test_the_page_fetches_nothing_and_needs_no_script(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "<script" not in text and "<link" not in text and "@import" not in text
    assert "default-src 'none'" in text
    addresses = set(re.findall(r'(\S+)="(https?://[^"]*)"', text))
    names = {"xmlns", "xmlns:xlink"}  # never fetched
    assert {name for name, _ in addresses} <= {*names, "href"}
    links = re.findall(r'<a href="([^"]*)"', text)
    assert "https://arxiv.org/abs/1311.0776" in links
    assert all(re.fullmatch(r"https://arxiv\.org/abs/[\d.]+", link) for link in links)
    others = re.findall(r'(?<!<a )href="([^"]*)"', text)
    assert all(value.startswith("#") for value in others)


def test_names_reasons_and_paths_are_escaped_everywhere(tmp_path: Path) -> None:
    marked = {"metrics": {EVIL: 1.0}, "not_computed": {"bleu": EVIL}}
    folder = write_run(
        tmp_path / "run",
        scores=marked,
        overrides=(f"task.data_dir={EVIL}",),
        task={"data_dir": EVIL},
        model={"name": EVIL},
        privacy={"warnings": [EVIL]},
    )
    write_report(folder, read_privacy(folder / "privacy.json"))
    card = render_card(read(folder), EXPORTED, folder)
    for name, text in {
        "report.md": (folder / "report.md").read_text(),
        "report.html": (folder / "report.html").read_text(),
        "card": card,
    }.items():
        # indented lines are code, which every renderer escapes
        lines = [line for line in text.splitlines() if not line.startswith("    ")]
        assert not any("<script" in line for line in lines), name
    assert "<script" not in (folder / "report.html").read_text()
    assert "alert(1)" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_scores_of_a_private_split_are_marked(tmp_path: Path) -> None:
    marks = {"public": False, "publish": True, "bleu": 60.4321}
    text = page(tmp_path, **marks, reference=REFERENCE)
    mention = "computed on private held-out records, not covered by ε"
    assert text.count(mention) == 1 and "split test (private, not covered by ε, two digits)" in text
    assert ">60</td>" in text and "60.4" not in text and "630" not in text
    text = page(tmp_path / "hidden", public=False, reference=REFERENCE)
    assert "split test (private" not in text and "private/metrics.json" in text


@pytest.mark.slow
def test_the_recipe_shows_no_seed_and_no_path_that_the_user_did_not_write(tmp_path: Path) -> None:
    text = page(
        tmp_path,
        overrides=("task=e2e", "model.path=/given/model", "privacy.noise_seed=8151"),
        privacy=None,
        model={"path": "/given/model"},
        task={"data_dir": "/home/alice/data"},
        train={"seed": 4242},
    )
    assert "dpft train task=e2e model.path=/given/model\n" in text.replace("</code>", "\n")
    assert "/home/alice" not in text and "4242" not in text and "8151" not in text
    given = page(tmp_path / "b", overrides=("train.seed=4242",), train={"seed": 4242})
    assert "seed: 4242" in given


def test_a_run_without_privacy_has_no_epsilon_on_its_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    text = page_of(replace(read(folder), privacy=privacy_of(non_private())))
    assert "NOT PRIVATE" in text and "<svg" not in text and "Accountants" not in text


def test_the_curve_of_a_run_is_the_one_in_its_record_and_ends_at_the_headline() -> None:
    curve = {"steps": [1, 3, 9], "epsilons": [0.5, 1.5, 9.0], "accountants": ["prv"] * 3}
    record = {**private(), "steps_taken": 4, "epsilon": 2.0, "epsilon_curve": curve}
    assert epsilon_points(record) == [(1, 0.5), (3, 1.5), (4, 2.0)]
    assert epsilon_points({**record, "steps_taken": 9})[-2:] == [(3, 1.5), (9, 2.0)]
    assert epsilon_points(record | {"epsilon": 1.0})[1:] == [(3, 1.0), (4, 1.0)]
    assert epsilon_points(private()) == []


def test_the_plot_of_epsilon_says_whose_bounds_it_shows_and_draws_none_below_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Epsilon bends downwards, so that a line between two bounds would lie below it."""
    curve = {"steps": [1, 4], "epsilons": [0.5, 1.5], "accountants": ["rdp", "prv"]}
    record = {**private(), "accountant": "prv", "steps_taken": 4, "epsilon_curve": curve}
    axes = Figure().add_subplot()
    monkeypatch.setattr(pages, "draw_svg", lambda draw, **_: draw(axes))
    epsilon_plot.__wrapped__(privacy_of(record))  # Not as tests/conftest.py remembers it.
    line = axes.lines[0]
    assert line.get_label() == "upper bound (prv, rdp)"
    assert line.get_color() != axes.lines[1].get_color(), "the mark of the run"
    assert line.get_drawstyle() == "steps-pre"
    assert line.get_xydata().tolist() == [[0, 0], [1, 0.5], [4, record["epsilon"]]]


TEXTS = {"samples": [{"input": "name[A]", "prediction": EVIL, "reference": "A is <b>fine</b>."}]}


def with_texts(folder: Path, *, public: bool = True) -> str:
    run = write_run(folder / "run", scores=TEXTS)
    record = read(run)
    texts = (Sample(input="name[A]", prediction="the the", reference=""),)
    record.evaluations[0] = record.evaluations[0].replace(samples=texts).marked(public)
    return page_of(record)


def test_a_public_split_shows_what_the_model_wrote_before_and_after(tmp_path: Path) -> None:
    text = with_texts(tmp_path).partition("Model outputs for")[2]
    shown = re.findall(r"<p>(\S[^:]*):</p>\n<pre><code>(.*?)\n?</code></pre>", text)
    assert shown[:4] == [
        ("Input", "name[A]"),
        ("Before", "the the"),
        ("After", "<mark>&lt;script&gt;alert(1)&lt;/script&gt;</mark>"),
        ("Reference", "A is &lt;b&gt;fine&lt;/b&gt;."),
    ]


def test_trust_rule_8_texts_of_a_split_that_is_private_at_any_stage_are_not_shown(
    tmp_path: Path,
) -> None:
    text = with_texts(tmp_path, public=False)
    assert "Model outputs for" not in text and "the the" not in text


def test_each_known_metric_is_explained(tmp_path: Path) -> None:
    scores = {"metrics": {"bleu": 60.5321, "perplexity": 1234.5, "mean_length": 21.3, "own": 1.0}}
    text = page(tmp_path, scores=scores).partition("<h2>Metrics</h2>")[2].partition("<h2>")[0]
    assert "<strong>BLEU ↑</strong> (higher is better): Corpus BLEU, mteval-13a tokens" in text
    assert "<strong>Perplexity ↓</strong> (lower is better): " in text
    assert "<strong>Mean length</strong>: " in text and "own" not in text
