import itertools
from pathlib import Path

from dpft.reports.comparison.pages import markdown, page
from tests.reports.comparison.swept_runs import compared
from tests.reports.run.folders import write_run


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
