"""The master's decisions compute with what gives the same bits on every processor.

BLAS has other kernels for each processor, NumPy adds in an order and takes logarithms by
instructions that depend on it, and the C library's own logarithms and powers depend on whether
the processor fuses multiplication and addition.
"""

import ast
from pathlib import Path

import pytest

import shoal.master

MASTER = Path(shoal.master.__file__).parent
FOLDERS = ("job", "work", "journal")

REFUSED = {
    *("linalg", "dot", "vdot", "inner", "matmul", "tensordot", "einsum", "convolve", "correlate"),
    *("sum", "nansum", "prod", "mean", "nanmean", "average", "std", "var", "cov", "corrcoef"),
    *("percentile", "quantile", "polyfit", "interp", "trapezoid", "reduce", "reduceat"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "power", "float_power"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "hypot"),
    *("erf", "erfc", "gamma", "lgamma", "cbrt", "norm"),
}
"""Names of NumPy, of arrays and of math. math.fsum and statistics are exact."""

LIBRARIES = ("np", "numpy", "math")

ALLOWED = {
    # Bytes of measured memory, which are compared with a limit. No event has them.
    ("job/scaling/memory_forecast.py", "log"),
    ("job/scaling/memory_forecast.py", "pow"),
}


def name_of(node):
    return node.id if isinstance(node, ast.Name) else ""


def of_integers(call):
    """Whether a sum says that it is one of integers."""
    return any(
        each.arg == "dtype" and ast.unparse(each.value) == "np.int64" for each in call.keywords
    )


def refused(source):
    """(line, name) of what depends on the processor."""
    found = []
    tree = ast.parse(source)
    sums = {
        node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and of_integers(node)
    }
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult):
            found.append((node.lineno, "@"))
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Pow):
            found.append((node.lineno, "**"))
        elif isinstance(node, ast.Attribute) and node.attr in REFUSED:
            owner = name_of(node.value)
            method = node in called and owner not in ("logger", "statistics")
            if (owner in LIBRARIES or method) and not (node.attr == "sum" and node in sums):
                found.append((node.lineno, node.attr))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names = {*(node.module or "").split("."), *(each.name for each in node.names)}
            found += [(node.lineno, name) for name in sorted(names & REFUSED)]
        elif isinstance(node, ast.Import):
            found += [(node.lineno, "linalg") for each in node.names if "linalg" in each.name]
    return found


@pytest.mark.parametrize(
    "path",
    [path for folder in FOLDERS for path in sorted((MASTER / folder).glob("*.py"))],
    ids=lambda path: path.relative_to(MASTER).as_posix(),
)
def test_no_decision_depends_on_the_processor(path):
    name = path.relative_to(MASTER).as_posix()
    assert [each for each in refused(path.read_text()) if (name, each[1]) not in ALLOWED] == []


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ("x = np.linalg.lstsq(a, b, rcond=None)", "linalg"),
        ("import numpy.linalg", "linalg"),
        ("from numpy.linalg import lstsq", "linalg"),
        ("from numpy import dot", "dot"),
        ("x = a @ b", "@"),
        ("a @= b", "@"),
        ("x = a.dot(b)", "dot"),
        ("x = np.sum(a)", "sum"),
        ("x = a.sum()", "sum"),
        ("x = int(a.sum(axis=0))", "sum"),
        ("x = a[1:].mean()", "mean"),
        ("x = np.add.reduce(a)", "reduce"),
        ("x = map(np.exp, a)", "exp"),
        ("x = math.log(a)", "log"),
        ("from math import pow", "pow"),
        ("x = a**0.5", "**"),
    ],
)
def test_each_planted_line_is_found(planted, name):
    assert refused(planted) == [(1, name)]


def test_what_is_exact_is_allowed():
    assert (
        refused(
            "x = a.sum(dtype=np.int64) + math.fsum(b) + sum(c) + statistics.mean(d)\n"
            "logger.log(1, record.mean)\n"
            "y = np.cumsum(e) + math.sqrt(2.0) + np.argsort(f, kind='stable')\n"
        )
        == []
    )
