"""What is unsupported of a module is refused by name, before a record is trained."""

import pytest

from shoal.errors import UserError
from tests.worker.engines.torch.conftest import NET

torch = pytest.importorskip("torch")


def with_optimizer(text):
    return NET.replace("torch.optim.SGD(parameters, lr=0.1)", text)


def in_init(text):
    return NET.replace(
        "self.last = torch.nn.Linear(5, 1)", f"self.last = torch.nn.Linear(5, 1)\n        {text}"
    )


REFUSED = {
    "weight decay": (
        with_optimizer("torch.optim.Adam(parameters, lr=0.1, weight_decay=0.1)"),
        "no weight_decay; AdamW decays weights",
    ),
    "an optimizer that servers lack": (
        with_optimizer("torch.optim.Adadelta(parameters)"),
        "torch.optim.Adadelta is not supported.*the nearest is RMSprop",
    ),
    "LBFGS": (with_optimizer("torch.optim.LBFGS(parameters)"), "torch.optim.LBFGS is not supp"),
    "dampening": (
        with_optimizer("torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1)"),
        "no dampening",
    ),
    "groups that differ": (
        with_optimizer(
            "torch.optim.SGD([{'params': parameters[:1], 'momentum': 0.5}, "
            "{'params': parameters[1:]}], lr=0.1)"
        ),
        "param_groups that differ in momentum",
    ),
    "parameters left out": (
        with_optimizer("torch.optim.SGD(parameters[1:], lr=0.1)"),
        "1 of 5 parameters that require gradients are not given to the optimizer",
    ),
    "no optimizer": (with_optimizer("parameters"), "not an optimizer of torch.optim"),
    "an optimizer of its own": (
        NET.replace("def optimizer", "class Adam(torch.optim.Adam): pass\n\ndef optimizer").replace(
            "torch.optim.SGD(parameters, lr=0.1)", "Adam(parameters)"
        ),
        "Adam, a class of its own",
    ),
    "a scheduler that waits for evaluations": (
        NET + "\ndef scheduler(optimizer):\n"
        "    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n",
        "take shoal.callbacks.ReduceLROnPlateau",
    ),
    "no scheduler": (
        NET + "\ndef scheduler(optimizer):\n    return 0.1\n",
        "not a torch.optim.lr_scheduler.LRScheduler",
    ),
    "a lazy module": (in_init("self.lazy = torch.nn.LazyLinear(3)"), "lazy.*is a LazyLinear"),
    "averages of all batches": (
        in_init("self.norm = torch.nn.BatchNorm1d(5, momentum=None)"),
        r"norm of the model in model.py is a BatchNorm1d\(momentum=None\)",
    ),
    "doubles": (in_init("self.double()"), "is torch.float64: parameters and buffers must be"),
    "a hook of accumulated gradients": (
        in_init("self.last.weight.register_post_accumulate_grad_hook(print)"),
        "last of the model in model.py: its weight has a hook",
    ),
    "a compiled module": (
        NET + "\ndef Made():\n    return torch.compile(Net())\n",
        r"call model.compile\(\)",
    ),
    "an optimizer by name": (
        NET[: NET.index("def optimizer")] + "optimizer = 'adam'\n",
        r"optimizer is the name 'adam', .*return torch\.optim\.Adam\(parameters, lr=0\.01\)",
    ),
    "forward of several arguments": (
        NET.replace("forward(self, features):", "forward(self, ids, x):\n        features = 0"),
        r"forward\(\) of Net takes ids, x, and shoal calls .* as features\['ids'\]",
    ),
    "forward of none": (
        NET.replace("forward(self, features):", "forward(self):\n        features = 0"),
        r"forward\(\) of Net takes nothing",
    ),
    "forward that needs a keyword": (
        NET.replace("forward(self, features):", "forward(self, features, *, x):"),
        r"forward\(\) of Net takes features, x",
    ),
    "no module": (NET + "\ndef Made():\n    return 5\n", "returned int, not a torch.nn.Module"),
    "a loss by name": (
        NET.replace("torch.nn.BCEWithLogitsLoss()", "'binary_crossentropy'"),
        "loss is the name 'binary_crossentropy': give a loss of torch.nn",
    ),
    "a class of losses": (
        NET.replace("torch.nn.BCEWithLogitsLoss()", "torch.nn.BCEWithLogitsLoss"),
        r"loss is the class BCEWithLogitsLoss: give an object of it",
    ),
    "two losses": (
        NET + "\ndef training_step(model, features, labels):\n    return 1\n",
        "there are training_step and loss",
    ),
    "two tables of a name": (
        NET.replace("shoal.torch.Embedding(1)", "shoal.torch.Embedding(1, table='deep')"),
        "two embeddings have the table 'deep'",
    ),
    "two forms of a table": (
        NET.replace("shoal.torch.Embedding(1)", "shoal.torch.Embedding(1, table='t')").replace(
            "shoal.torch.Embedding(4)", "shoal.torch.Embedding(4, table='t')"
        ),
        "share table 't', but differ in dim",
    ),
    "weights of classes beside those of records": (
        NET + "\nclass_weight = {0: 1.0}\n",
        "gives weights, and there is class_weight",
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of PyTorch's own, where it compiles
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(served, name):
    text, message = REFUSED[name]
    function = "Made" if "def Made" in text else "Net"
    weights = True if "class_weight" in text else None
    with pytest.raises(UserError, match=message):
        served(text, function, weights=weights)


PLAIN = {
    "a norm": ("torch.nn.Embedding(99, 4, max_norm=1.0)", "has max_norm, which changes rows"),
    "frequencies": ("torch.nn.Embedding(99, 4, scale_grad_by_freq=True)", "has scale_grad_by_freq"),
    "the maximum": ("torch.nn.EmbeddingBag(99, 4, mode='max')", "has mode='max'"),
    "one row filled": (
        "torch.nn.Embedding(99, 4)\n        self.deep.weight.data[3].zero_()",
        "above --embedding-threshold.*computes with its weight itself",
    ),
    "its weight as a matrix": (
        "torch.nn.Embedding(99, 4)\n        self.deep.weight.norm()",
        "computes with its weight itself",
    ),
    "an orthogonal weight": (
        "torch.nn.Embedding(99, 4)\n        torch.nn.init.orthogonal_(self.deep.weight)",
        "computes with its weight itself",
    ),
    "rows of NaN": (
        "torch.nn.Embedding.from_pretrained(torch.full((99, 4), torch.nan))",
        "are not finite in row 0",
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_table_with_what_servers_lack_is_refused(served, name):
    made, message = PLAIN[name]
    text = NET.replace("shoal.torch.Embedding(4)", made)
    with pytest.raises(UserError, match=message) as caught:
        served(text, embedding_threshold=99 * 16 - 1)
    if "NaN" not in name:
        assert "--embedding-threshold 1584" in str(caught.value)


ARGUMENTS = {
    "Embedding(1000, 16)": r"Embedding\(1000, 16\): the module takes any id.*Embedding\(16\)",
    "Embedding(0)": "dim must be a positive integer, not 0",
    "Embedding(4, sparse=True)": "takes no sparse: gradients are of the rows",
    "Embedding(4, max_norm=1)": "takes no max_norm: normalize the looked-up rows",
    "Embedding(4, tabel='a')": r"takes no tabel: it takes .*\(did you mean table\?\)",
    "Embedding(4, table='')": "table must be a name",
    "Embedding(4, init=0.1)": "init must be a function that fills a weight",
    "Embedding(4, init=torch.nn.init.orthogonal_)": "init computes with the weight itself",
    "Embedding(4, init=lambda w: w.copy_(torch.ones(4)))": "init fills the weight by no law",
    "Embedding(4, optimizer=torch.optim)": "optimizer must be a function of parameters",
    "Embedding(4, padding_idx='a')": "padding_idx must be an id",
    "Embedding(4, admit_after=0)": "admit_after must be",
    "Embedding(4, expire_after='soon')": "expire_after must be",
    "Embedding(4, dtype=torch.int8)": "dtype must be one of",
    "EmbeddingBag(4, mode='max')": r"mode must be one of sum, mean, sqrtn.*amax\(-2\)",
}


@pytest.mark.parametrize("call", ARGUMENTS)
def test_arguments_are_refused_by_name(call):
    import shoal.torch

    with pytest.raises(UserError, match=ARGUMENTS[call]):
        eval(f"shoal.torch.{call}", {"shoal": shoal, "torch": torch})
