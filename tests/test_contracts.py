"""Each import contract of pyproject.toml holds, and fails on an import that it forbids.

The imports are planted in the graph of imports, not in files: of each pair of neighbouring
layers one upwards, of modules that share a layer one sideways, of each forbidden contract one
from every source and one to every forbidden module.
"""

import itertools
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# tox tests the wheel, beside which there are no contracts.
pytestmark = pytest.mark.skipif(
    not (ROOT / "worker").is_dir(), reason="the sources are not beside the tests"
)

CHECK = """
import json, sys
import grimp
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

configure()
options, contracts = json.load(sys.stdin)
graph = grimp.build_graph(
    options.pop("root_package"),
    include_external_packages=options["include_external_packages"],
    exclude_type_checking_imports=options.pop("exclude_type_checking_imports"),
    cache_dir=None,
)
kinds = {"layers": LayersContract, "forbidden": ForbiddenContract}
options["root_packages"] = ["shoal"]

def kept(contract):
    given = {
        name: str(each) if isinstance(each, bool) else each  # as import-linter reads TOML
        for name, each in contract.items()
        if name not in ("name", "type", "id")
    }
    made = kinds[contract["type"]](contract["name"], options, given)
    return made.check(graph, verbose=False).kept

found = []
for contract, planted in contracts:
    found.append([None, kept(contract)])
    for importer, imported in planted:
        known = {importer, imported} & graph.modules
        for each in {importer, imported} - known:
            graph.add_module(each, is_squashed=not each.startswith("shoal"))
        held = imported in graph.find_modules_directly_imported_by(importer)
        graph.add_import(importer=importer, imported=imported)
        found.append([f"{importer} -> {imported}", kept(contract)])
        if not held:
            graph.remove_import(importer=importer, imported=imported)
        for each in {importer, imported} - known:
            graph.remove_module(each)
json.dump(found, sys.stdout)
"""


def configuration():
    """The options of import-linter and its contracts."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return options, options.pop("contracts")


def against(contract):
    """Imports that a contract forbids, as (importer, imported)."""
    if contract["type"] == "forbidden":
        sources, targets = contract["source_modules"], contract["forbidden_modules"]
        return [
            *((each, targets[0]) for each in sources),
            *((sources[0], each) for each in targets),
        ]
    found = []
    for container in contract.get("containers", [None]):
        layers = [
            [
                name.strip("() ") if container is None else f"{container}.{name.strip('() ')}"
                for name in layer.split("|")
            ]
            for layer in contract["layers"]
        ]
        found += [(lower[-1], upper[0]) for upper, lower in itertools.pairwise(layers)]
        found += [(layer[0], layer[-1]) for layer in layers if len(layer) > 1]
    return found


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The sources as they are imported, shoal/ps and so on."""
    folder = tmp_path_factory.mktemp("tree")
    package = folder / "shoal"
    package.mkdir()
    for each in (ROOT / "shoal").iterdir():
        (package / each.name).symlink_to(each)
    for name in ("native", "proto", "ps", "master", "worker", "model_zoo"):
        (package / name).symlink_to(ROOT / name)
    return folder


def test_every_contract_holds_and_fails_on_each_planted_import(tree):
    options, contracts = configuration()
    given = [(each, against(each)) for each in contracts]
    assert all(planted for _, planted in given)
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        input=json.dumps([options, given]),
        capture_output=True,
        text=True,
        cwd=tree,
    )
    assert done.returncode == 0, done.stderr
    for planted, kept in json.loads(done.stdout):
        assert kept == (planted is None), planted or "a contract is broken: run make lint"


@pytest.mark.parametrize("package", ["shoal", "shoal.master", "shoal.ps", "shoal.worker"])
def test_a_new_module_must_be_given_its_layer(tree, package):
    options, contracts = configuration()
    layers = next(each for each in contracts if each.get("containers") == [package])
    assert layers["exhaustive"]
    lost = (f"{package}.__main__", f"{package}.without_a_layer")
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        input=json.dumps([options, [(layers, [lost])]]),
        capture_output=True,
        text=True,
        cwd=tree,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[None, True], [" -> ".join(lost), False]]
