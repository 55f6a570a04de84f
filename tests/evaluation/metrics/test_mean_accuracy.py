from dpft.evaluation.metrics.mean_accuracy import mean_accuracy


def test_it_is_the_mean_of_each_attributes_accuracy():
    told, gold = [[1, 0], [1, 1], [0, 0], [1, 1]], [[1, 1], [1, 1], [0, 1], [0, 1]]
    assert mean_accuracy(told, gold) == (3 / 4 + 2 / 4) / 2
