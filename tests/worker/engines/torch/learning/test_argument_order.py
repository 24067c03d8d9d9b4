"""The order of labels and predictions, read from names."""

import pytest

pytest.importorskip("torch")

from shoal.worker.engines.torch.learning.argument_order import labels_first

LABELS_FIRST = [
    *("labels, predictions", "y_true, y_pred", "yTrue, yPred", "y, p", "targets, logits"),
    *("labels, x", "click_label, out", "target, vectors", "anything, y_hat", "t, x"),
]

PREDICTIONS_FIRST = [
    *("predictions, labels", "input, target", "outputs, targets", "y_hat, y", "x, y"),
    *("vectors, labels", "pred, gt", "preds, target", "model_output, ground_truth", "p, t"),
]

UNTOLD = [
    *("a, b", "y, t", "p, q", "y, z", "x, o", "labels, targets", "outputs, scores"),
    *("target_scores, label_outputs", "label", "*labels", "target_logits, data"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        *((each, True) for each in LABELS_FIRST),
        *((each, False) for each in PREDICTIONS_FIRST),
        *((each, None) for each in UNTOLD),
    ],
)
def test_names_tell_the_order(arguments, expected):
    assert labels_first(eval(f"lambda {arguments}: 0")) is expected
