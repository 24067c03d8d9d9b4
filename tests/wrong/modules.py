"""Modules that cannot be trained: edits of a good one, and words of the message.

EARLY: refused by the text alone. LATE: by the process that has TensorFlow. RAISE: whose own code
raises, so that its lines are shown.
"""

MODULE = """
import keras
import tensorflow as tf
from shoal.layers import Embedding


def feed(dataset, mode, metadata):
    def prepare(record):
        features = {name: record[name] for name in ("user", "item", "price")}
        return features if mode == "prediction" else (features, record["label"])

    return dataset.map(prepare)


def custom_model():
    user, item = (keras.Input([], dtype="int64", name=name) for name in ("user", "item"))
    price = keras.Input([], dtype="float32", name="price")
    vectors = [Embedding(4, name="users")(user), Embedding(4, name="items")(item)]
    hidden = keras.layers.Concatenate()([*vectors, price[:, None]])
    out = keras.layers.Dense(1, activation="sigmoid")(hidden)[:, 0]
    return keras.Model({"user": user, "item": item, "price": price}, out)


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels[:, None], predictions[:, None])


def optimizer():
    return keras.optimizers.Adam(0.01)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC()}
"""

_FEATURES = '{name: record[name] for name in ("user", "item", "price")}'
_MODEL = 'keras.Model({"user": user, "item": item, "price": price}, out)'
_LOSS = "return keras.losses.binary_crossentropy(labels[:, None], predictions[:, None])"
_ADAM = "return keras.optimizers.Adam(0.01)"
_LABEL = 'record["label"]'
_MAP = "return dataset.map(prepare)"
_METRICS = 'return {"auc": keras.metrics.AUC()}'


def edited(*edits):
    """The module, in which the first text of each pair is the second one."""
    text = MODULE
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def more(text):
    """The module with a text behind it."""
    return f"{MODULE}\n\n{text}\n"


EARLY = {
    "no function": (edited(("def optimizer", "def optimzer")), r"model.py has no function optimi"),
    "no Python": (
        edited((_ADAM, "print 'x'")),
        "model.py is not valid Python: line 29: Missing parentheses",
    ),
    "tabs": (edited((_ADAM, "if 1:\n\treturn 2\n        return 3")), "not valid Python: line 30"),
    "an optimizer that servers lack": (
        edited(("Adam(0.01)", "Nadam(0.01)")),
        r"line 29: optimizer\(\): the optimizer Nadam is not supported: .*the nearest is Adam",
    ),
    "another name": (edited(("def custom_model", "def custom_modle")), "did you mean custom_modle"),
    "a module of ElasticDL": (
        edited(("import keras\n", "import keras\nfrom elasticdl.python.common import constants\n")),
        "line 3: elasticdl.python.common is a module of ElasticDL, which is not installed",
    ),
}

LATE = {
    "a tuple as model": (
        edited((_MODEL, f"{_MODEL}, 1")),
        r"custom_model\(\) of model.py returned tuple, not a keras.Model",
    ),
    "a parameter": (
        edited(("def custom_model()", "def custom_model(dim)")),
        "has a parameter dim without a default: give its value, --model-params dim=VALUE",
    ),
    "a value as model": (more("custom_model = 3"), "custom_model in .* must be a function"),
    "a class of its own": (more("class custom_model: ..."), "returned custom_model, not a keras.M"),
    "a class without call": (
        more("class custom_model(keras.Model): ..."),
        r"calling the model of model.py raised NotImplementedError: .*`call\(\)`",
    ),
    "ids of floats": (
        edited(('dtype="int64"', 'dtype="float32"')),
        "embedding 'users' was called with float32 ids: they must be integers or strings; convert",
    ),
    "feed reads": (
        edited((_MAP, "return list(dataset.map(prepare))")),
        r"feed\(\) of model.py reads the dataset while it is called, .*: return a dataset",
    ),
    "feed gives nothing": (edited((_MAP, "dataset.map(prepare)")), "returned NoneType, not a tf.d"),
    "feed makes batches": (edited((_MAP, f"{_MAP}.batch(8)")), "makes batches .*: remove that"),
    "feed takes two": (
        edited(("feed(dataset, mode, metadata)", "feed(dataset, mode)")),
        r"is called with dataset, mode, metadata, and its parameters are \(dataset, mode\): hav",
    ),
    "features alone": (
        edited((f'features if mode == "prediction" else (features, {_LABEL})', "features")),
        r"must give \(features, labels\) or \(features, labels, weights\) .*, not dict",
    ),
    "features in a list": (
        edited((_FEATURES, 'list(record[name] for name in ("user", "item", "price"))')),
        "a function that returns a list, .*: return features as a dict by name, or as a tuple",
    ),
    "a feature less": (
        edited((_FEATURES, '{name: record[name] for name in ("user", "item")}')),
        "gives no feature 'price', which the model takes; it gives user, item",
    ),
    "a feature of another name": (
        edited(("{name: record", '{name.replace("ice", "ize"): record')),
        r"gives no feature 'price' \(did you mean prize\?\)",
    ),
    "a column of another name": (
        edited((_LABEL, 'record["lable"]')),
        r"there is no column 'lable' \(did you mean label\?\)",
    ),
    "a feature of text": (
        edited(("record[name] for", "tf.strings.as_string(record[name]) for")),
        "gives text as feature 'item', but the model's input takes int64: convert it in feed",
    ),
    "labels of text": (
        edited((_LABEL, f"tf.strings.as_string({_LABEL})")),
        "gives text as labels, and the loss takes numbers: make numbers of them in feed",
    ),
    "feed_batch gives less": (
        more("def feed_batch(columns, mode, metadata):\n    return columns, columns['label'][:3]"),
        r"feed_batch\(\) of model.py gave 3 labels for 200 records of .*: it must give one per",
    ),
    "a loss that is none": (
        edited((f"def loss(labels, predictions):\n    {_LOSS}", 'loss = "binary_crossentropi"')),
        "model.py: loss: Could not interpret loss identifier: binary_crossentropi",
    ),
    "no loss": (edited((_LOSS, "predictions")), "loss returned None: return a number for each rec"),
    "text as loss": (edited((_LOSS, "return 'low'")), "loss returned text: return a number for"),
    "a loss of one": (
        edited(("def loss(labels, predictions)", "def loss(labels)")),
        r"loss\(\) of model.py is called with labels, predictions, and its parameters are \(lab",
    ),
    "a loss without gradient": (
        edited((_LOSS, "return tf.argmax(predictions)")),
        "the loss has no gradient, so nothing would be learned: compute it from the predictions",
    ),
    "a loss that is NaN": (edited((_LOSS, "return tf.math.log(-1.0 - predictions)")), "is nan:"),
    "no optimizer": (edited((_ADAM, "pass")), "optimizer.. of model.py returned NoneType, not a k"),
    "an optimizer that is none": (
        edited((f"def optimizer():\n    {_ADAM}", 'optimizer = "adamm"')),
        "optimizer: Keras has no optimizer 'adamm'",
    ),
    "a class of optimizers": (edited(("Adam(0.01)", "Adam")), "returned type, not a keras.optimi"),
    "an optimizer for tables alone": (
        edited((_ADAM, "return {'users': 'adam'}")),
        'returned a dict without "default": name the optimizer of the dense variables',
    ),
    "metrics in a list": (edited((_METRICS, "return [keras.metrics.AUC()]")), "not a dict of metr"),
    "a class of metrics": (
        edited(("AUC()", "AUC")),
        "metric 'auc' is the class AUC: give an object of it, AUC()",
    ),
    "a metric by name": (edited(("keras.metrics.AUC()", "'auc'")), "metric 'auc' is a str; it mus"),
    "a metric called loss": (edited(('{"auc"', '{"loss"')), "'loss' is the loss, which is always"),
    "a number as callbacks": (more("callbacks = 3"), "callbacks in .*model.py must be a function"),
    "callbacks by name": (
        more("def callbacks():\n    return ['early_stopping']"),
        "str is neither of shoal.callbacks nor a keras.callbacks.Callback",
    ),
    "a callback of its own files": (
        more("def callbacks():\n    return [keras.callbacks.BackupAndRestore('x')]"),
        "BackupAndRestore is not supported: the job takes checkpoints, and shoal train --resume",
    ),
    "a reader that is none": (
        more("def custom_data_reader(path):\n    return 3"),
        r"custom_data_reader must return an object with the methods sources\(\) and read\(",
    ),
}

RAISE = {
    "a missing package": (
        edited(("import keras\n", "import keras\nimport not_installed\n")),
        "importing .*model.py raised ModuleNotFoundError: No module named 'not_installed'",
        "import not_installed",
    ),
    "an unknown name": (more("RATE = ratee"), "raised NameError: name 'ratee'", "RATE = ratee"),
    "an end of the process": (
        edited((f"return {_MODEL}", "raise SystemExit(0)")),
        r"custom_model\(\) of model.py raised SystemExit: 0",
        "raise SystemExit(0)",
    ),
    "an argument of an optimizer": (
        edited(("Adam(0.01)", "Adam(learning_rat=0.01)")),
        r"optimizer\(\) of model.py raised ValueError: Argument\(s\) not recognized",
        "return keras.optimizers.Adam(learning_rat=0.01)",
    ),
    "a table of no columns": (
        edited(('Embedding(4, name="users")', 'Embedding(0, name="users")')),
        "raised ValueError: output_dim must be a positive integer, not 0",
        "vectors = [",
    ),
    "two tables of one name": (
        edited(('name="items")', 'name="users")')),
        'raised ValueError: The name "users" is used 2 times in the model',
        f"return {_MODEL}",
    ),
    "a feed that raises": (
        edited(("features = {name", "1 / 0\n        features = {name")),
        r"feed\(\) of model.py raised ZeroDivisionError: division by zero",
        "1 / 0",
    ),
    "a loss that raises": (
        edited((_LOSS, "raise ValueError('oh')")),
        "the training step of model.py raised ValueError: oh",
        "raise ValueError('oh')",
    ),
    "a loss of NumPy": (
        edited((_LOSS, "return predictions.numpy().mean()")),
        "raised AttributeError: 'SymbolicTensor' object has no attribute 'numpy'",
        "return predictions.numpy().mean()",
    ),
    "a callback that is none": (
        more("def callbacks():\n    return [keras.callbacks.EarlyStoping()]"),
        r"callbacks\(\) of model.py raised AttributeError: module 'keras.callbacks' has no",
        "return [keras.callbacks.EarlyStoping()]",
    ),
}
