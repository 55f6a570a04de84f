from dpft.evaluation.metrics.mean_length import mean_length


def test_words_are_parted_by_blanks():
    assert mean_length(["a  b c.", "", "don't\nstop"], [["x"]] * 3) == 5 / 3
