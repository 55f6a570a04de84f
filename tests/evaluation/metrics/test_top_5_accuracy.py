from sklearn.metrics import top_k_accuracy_score

from dpft.evaluation.metrics.top_5_accuracy import top_5_accuracy


def test_it_is_the_share_whose_class_is_among_the_five_likeliest():
    scores = [[0.3, 0.1, 0.2, 0.15, 0.05, 0.2], [0.02, 0.3, 0.2, 0.18, 0.2, 0.1]]
    ranked = [sorted(range(6), key=lambda k: -one[k]) for one in scores]
    for gold in ([4, 1], [0, 0], [5, 5]):
        expected = top_k_accuracy_score(gold, scores, k=5, labels=range(6))
        assert top_5_accuracy(ranked, gold) == expected
