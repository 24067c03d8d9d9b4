"""The modes in which the user's feed is called: what its records are for."""

TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"
