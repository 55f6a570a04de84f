from dataclasses import replace

import pytest

from benchmarks import evaluation
from benchmarks.evaluation import Subject, Timings


@pytest.fixture(scope="module")
def subject() -> Subject:
    subject = evaluation.make_subject(data=None, inputs=2, steps=0)
    return replace(subject, decode=subject.decode.replace(max_new_tokens=10))


def test_a_table_line_holds_median_quartiles_seconds_positions_and_the_number_of_pairs() -> None:
    timings = Timings(measured=[2.0, 3.0, 4.0], baseline=[2.0, 2.0, 2.0], positions=(1200, 3000))
    line = evaluation.table_line("texts", timings)
    assert line == "| texts | 1.500 (1.250 to 1.750) | 1.10 | 3.00 / 2.00 | 1,200 / 3,000 | 3 |"


@pytest.mark.slow
def test_what_is_timed_writes_the_same_texts_and_reads_each_prompt_once(subject: Subject) -> None:
    found = evaluation.texts(subject)
    assert all(found)
    assert evaluation.generated(subject) == found
    assert evaluation.generated_in_our_batches(subject) == found
    timings = evaluation.measure(subject, evaluation.texts, evaluation.generated, pairs=1)
    examples = [group.examples[0] for group in subject.groups]
    prompts = subject.encoding.prompts(examples, max_length=200, max_new_tokens=10)
    copies = (5 - 1) * 2 * max(map(len, prompts))
    assert timings.positions[1] - timings.positions[0] == copies


@pytest.mark.slow
def test_what_is_timed_gives_the_same_likelihood_of_the_same_positions(subject: Subject) -> None:
    ours, plain = evaluation.likelihood(subject), evaluation.plain_likelihood(subject)
    assert ours == pytest.approx(plain, rel=1e-6)
    timings = evaluation.measure(
        subject, evaluation.likelihood, evaluation.plain_likelihood, pairs=1
    )
    assert timings.positions[0] == timings.positions[1] > 0


@pytest.mark.slow
def test_a_run_writes_its_table(tmp_path) -> None:
    output = tmp_path / "results.md"
    arguments = ["--inputs", "2", "--steps", "1", "--pairs", "2", "--threads", "1"]
    evaluation.main([*arguments, "--output", str(output)])
    lines = output.read_text().splitlines()
    assert lines[0] == f"# {evaluation.TITLE}"
    assert [line.split(" | ")[0] for line in lines[-3:]] == [
        f"| {name}" for name in evaluation.ROWS
    ]
