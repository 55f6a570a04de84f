"""Reports of many runs: what is averaged, what is bold, what is marked, what is drawn."""

import csv
import io
import itertools
from pathlib import Path

import pytest
from scipy import stats

from dpft.errors import InputError
from dpft.reports.comparison.compare import compare
from dpft.reports.comparison.pages import csv_table, markdown, page
from dpft.reports.comparison.significance import best, p_value
from dpft.reports.run.run_record import find_runs, read_record
from dpft.reports.run.scores import PRIVATE_SPLIT
from tests.reports.run.folders import EVIL, write_run

FULL, LORA = (60.0, 61.0, 62.0), (50.0, 51.0, 52.0)


def sweep(root: Path, *, public: bool = True) -> list[Path]:
    """Two methods at two epsilons, three seeds each; at ε = 8 the methods' scores overlap."""
    runs = [
        ("full", 3.0, FULL), ("lora", 3.0, LORA), ("full", 8.0, FULL), ("lora", 8.0, (60, 63, 61)),
    ]  # fmt: skip
    return [
        write_run(
            root / f"{method}-{eps:g}-{seed}",
            bleu=bleu,
            eps=eps,
            public=public,
            method={"name": method},
            train={"seed": seed},
            privacy={"trainable_parameters": 500 if method == "full" else 20},
        )
        for method, eps, scores in runs
        for seed, bleu in enumerate(scores)
    ]


def compared(folders: list[Path], **options: object):
    return compare([read_record(folder) for folder in folders], **options)


def test_runs_that_differ_in_seeds_alone_are_averaged(tmp_path: Path) -> None:
    """Mean and sample standard deviation of 60, 61 and 62 are 61 and 1."""
    comparison = compared(sweep(tmp_path))
    assert comparison.keys == ["method.name", "privacy.eps"]
    text = markdown(comparison)
    assert "| full | 2.9900 | 3 | 500 | " in text and "**61.000 ± 1.000** |" in text
    assert "### bleu: method.name × privacy.eps\n\n|  | 3 | 8 |" in text


def test_no_mean_is_taken_over_two_settings(tmp_path: Path) -> None:
    rates = [write_run(tmp_path / str(r), train={"learning_rate": r}) for r in (0.1, 0.2)]
    comparison = compared(rates)
    assert comparison.keys == ["train.learning_rate"]
    assert [len(setting.runs) for setting in comparison.settings] == [1, 1]


def test_two_keys_that_are_asked_for_have_a_table_for_each_value_of_a_third(
    tmp_path: Path,
) -> None:
    for rate, size, eps in itertools.product((0.1, 0.2), (8, 16), (3.0, 8.0)):
        train = {"learning_rate": rate, "expected_batch_size": size}
        write_run(tmp_path / f"{rate}-{size}-{eps}", bleu=100 * rate + size, eps=eps, train=train)
    keys = ("train.expected_batch_size", "train.learning_rate")
    comparison = compared(sorted(tmp_path.iterdir()), over=keys)
    first, second = comparison.pivots(comparison.splits[0])
    assert (first.fixed, second.fixed) == ("privacy.eps = 3", "privacy.eps = 8")
    means = [[cell.mean for cell in row] for row in first.cells]
    assert (first.rows, first.columns, means) == (["8", "16"], ["0.1", "0.2"], [[18, 28], [26, 36]])
    assert f"### bleu: {' × '.join(keys)}, privacy.eps = 8\n\n|  | 0.1 | 0.2 |" in markdown(
        comparison
    )
    assert page(comparison).count("<figure>") >= 3


def test_a_two_way_table_that_would_hide_a_third_key_is_left_out(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{m}{e}{r}", eps=e, method={"name": m}, train={"learning_rate": r})
        for m in ("full", "lora")
        for e in (3.0, 8.0)
        for r in (0.1, 0.2)
    ]
    assert "###" not in markdown(compared(folders))
    assert "###" in markdown(compared(folders[::2]))


def test_the_best_is_bold_only_where_the_test_tells_it_apart(tmp_path: Path) -> None:
    text = markdown(compared(sweep(tmp_path)))
    table = text.partition("### bleu")[2]
    assert "| full | **61.000 ± 1.000** | 61.000 ± 1.000 |" in table
    assert "| lora | 51.000 ± 1.000 | 61.333 ± 1.528 |" in table


def test_the_p_value_is_welchs() -> None:
    """Closed form: t = (m1 - m2) / √(s1²/n1 + s2²/n2), Welch-Satterthwaite degrees of freedom."""
    one, other = (1.0, 2.0, 3.0), (2.0, 6.0, 10.0)  # means 2 and 6, variances 1 and 16
    error = 1 / 3 + 16 / 3
    freedom = error**2 / ((1 / 3) ** 2 / 2 + (16 / 3) ** 2 / 2)
    expected = 2 * stats.t.sf(4 / error**0.5, freedom)
    assert p_value(one, other) == pytest.approx(expected, rel=1e-9)
    assert (p_value((1, 1), (1, 1)), p_value((1, 1), (2, 2))) == (1.0, 0.0)


@pytest.mark.filterwarnings("error")
def test_scores_that_are_all_but_alike_are_compared_without_a_warning() -> None:
    assert p_value((1.0, 1.0 + 1e-15), (2.0, 2.0)) < 1e-6


def test_lower_perplexity_is_better_and_single_runs_are_not_tested() -> None:
    scores = {0: (20.0, 20.1, 20.2), 1: (30.0, 30.1, 30.2)}
    assert best(scores, "perplexity") == {0} and best(scores, "bleu") == {1}
    assert best(scores, "mean_length") == set()
    assert best({**scores, 2: (1.0,)}, "perplexity") == set()


def test_the_costs_of_all_runs_are_added_up(tmp_path: Path) -> None:
    """Basic composition: 12 runs of ε = 2.99 and δ = 0.001 cost 35.88 and 0.012."""
    (costs,) = compared(sweep(tmp_path)).costs
    assert "ε add up to 35.8800, their δ to 0.012;" in costs
    assert "dpft account runs=…" in costs
    one = write_run(tmp_path / "other", privacy={"unit": "customer_id"})
    assert "different units" in compared([*tmp_path.glob("full-3-*"), one]).costs[0]
    seeded = write_run(tmp_path / "seeded", privacy={"private": False})
    assert "not private" in compared([seeded]).costs[0]
    unfinished = compared([one], unfinished=[tmp_path / "begun"])
    assert "1 more run has begun" in unfinished.costs[1]


def test_scores_of_private_splits_are_marked_in_every_form(tmp_path: Path) -> None:
    comparison = compared(sweep(tmp_path, public=False))
    mention = "computed on private held-out records, not covered by epsilon"
    assert mention in markdown(comparison) and mention in page(comparison)
    assert "bleu (private split)" in page(comparison)
    rows = list(csv.DictReader(io.StringIO(csv_table(comparison))))
    assert len(rows) == 12 and {row["split_is_public"] for row in rows} == {"False"}
    assert {row["note"] for row in rows} == {PRIVATE_SPLIT}
    assert mention not in page(compared(sweep(tmp_path / "public")))


def test_the_page_draws_a_heat_map_lines_and_sizes(tmp_path: Path) -> None:
    comparison = compared(sweep(tmp_path))
    text = page(comparison)
    for label in (
        "bleu over method.name and privacy.eps, as a heat map",
        "bleu against privacy.eps",
        "bleu against trainable parameters",
    ):
        assert f'aria-label="{label}"' in text
    assert page(comparison) == text
    assert "data:image" not in text and 'href="http' not in text


def test_what_runs_hold_is_escaped(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / str(e), eps=e, method={"name": m}, scores={"metrics": {EVIL: e}})
        for e in (3.0, 8.0)
        for m in (f"{EVIL}{e:g}",)
    ]
    comparison = compared(folders)
    assert "<script" not in page(comparison) and "<script" not in markdown(comparison)
    assert "alert(1)" in page(comparison)


def test_a_sweep_gives_its_runs_and_those_that_have_not_ended(tmp_path: Path) -> None:
    for number in ("0", "2", "10"):
        write_run(tmp_path / number)
    (tmp_path / "2" / "privacy.json").unlink()
    finished, unfinished = find_runs([tmp_path, tmp_path / "0"])
    assert [folder.name for folder in finished] == ["0", "10"]
    assert [folder.name for folder in unfinished] == ["2"]
    with pytest.raises(InputError, match="which does not exist"):
        find_runs([tmp_path / "none"])


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"over": ("method.nam", "privacy.eps")}, "got 'method.nam'"),
        ({"metrics": ("blue",)}, "got 'blue'; there are bleu"),
    ],
)
def test_unknown_keys_and_metrics_are_refused(
    tmp_path: Path, options: dict[str, tuple[str, ...]], part: str
) -> None:
    with pytest.raises(InputError, match=part):
        compared([write_run(tmp_path / "run")], **options)
