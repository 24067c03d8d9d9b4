"""Models by name, of which a process that is killed leaves the old one or the new one."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.sql.errors import START, SqlError
from shoal.sql.jobs.registry import Model, Registry
from shoal.sql.terms import Name

TRAINS = """
import sys
from pathlib import Path
from shoal.sql.errors import START
from shoal.sql.jobs.registry import Model, Registry
from shoal.sql.terms import Name

registry, name = Registry(Path(sys.argv[1])), Name("of.earns", START)
for number in range(int(sys.argv[2]), 10**9):
    with registry.making(name) as folder:
        print(number, flush=True)
        for part in range(20):
            (folder / f"part{part}").write_text(str(number))
        made = Model(str(number), "DNN", False, {}, "y", "", {}, {})
        registry.keep(name, folder, made, f"SELECT {number}")
"""


def named(text):
    return Name(text, START)


def kept(registry, name, **more):
    with registry.making(named(name)) as folder:
        (folder / "model.py").write_text(name)
        values = {"algorithm": "DNN", "module": False, "arguments": {}, "label": "y", "plan": ""}
        made = Model(**{"name": name, **values, "columns": {}, "attributes": {}, **more})
        registry.keep(named(name), folder, made, f"SELECT '{name}'")
    return folder


def test_a_model_is_found_replaced_and_dropped(tmp_path):
    registry = Registry(tmp_path)
    first = kept(registry, "earns", metrics={"auc": 0.5, "loss": None})
    assert registry.find(named("earns"))[0].metrics == {"auc": 0.5, "loss": None}
    second = kept(registry, "earns", records=7)
    model, folder = registry.find(named("earns"))
    assert (model.records, folder) == (7, second)
    assert not first.exists()
    assert (tmp_path / "earns" / "statement.sql").read_text() == "SELECT 'earns';\n"
    kept(registry, "of.pay:v1")
    kept(registry, "of.deep/er")
    assert registry.names() == ["earns", "of.deep.er", "of.pay:v1"]
    registry.drop(named("earns"))
    assert registry.names() == ["of.deep.er", "of.pay:v1"]
    assert not second.exists()
    with pytest.raises(SqlError, match=r"there is no model of\.deeper .*did you mean of\.deep\.er"):
        registry.drop(named("of.deeper"))


def test_the_folder_of_models_may_be_moved(tmp_path):
    kept(Registry(tmp_path / "here"), "earns", arguments={"model_zoo": "there"})
    kept(Registry(tmp_path / "here"), "mine", module=True, arguments={"model_zoo": "there"})
    (tmp_path / "here").rename(tmp_path / "moved")
    registry = Registry(tmp_path / "moved")
    model, folder = registry.find(named("earns"))
    assert model.arguments["model_zoo"] == str(folder)
    assert folder.parent == tmp_path / "moved"
    assert registry.find(named("mine"))[0].arguments["model_zoo"] == "there"


def test_names_that_would_be_models_and_folders_are_refused(tmp_path):
    registry = Registry(tmp_path)
    kept(registry, "earns")
    kept(registry, "of.pay")
    for name, message in (
        ("earns.more", "earns is a model, and no folder"),
        ("of", "of is a folder of models"),
        ("of//pay", "is no name for a model"),
    ):
        with pytest.raises(SqlError, match=message), registry.making(named(name)):
            pass
    (tmp_path / "earns" / "model.json").write_text("{}")
    with pytest.raises(SqlError, match=r"model.json cannot be read"):
        registry.find(named("earns"))


def test_a_training_that_fails_leaves_the_old_model_and_its_own_files(tmp_path):
    registry = Registry(tmp_path)
    kept(registry, "earns", records=1)

    def failing():
        with registry.making(named("earns")) as folder:
            (folder / "log").write_text("the reason")
            raise RuntimeError(folder)

    with pytest.raises(RuntimeError) as raised:
        failing()
    assert (raised.value.args[0] / "log").exists()
    assert registry.find(named("earns"))[0].records == 1
    kept(registry, "earns", records=2)
    assert not (raised.value.args[0] / "log").exists()


def test_two_trainings_of_a_name_do_not_run_at_once(tmp_path):
    with Registry(tmp_path).making(named("earns")):
        with pytest.raises(SqlError, match="another process trains earns"):
            kept(Registry(tmp_path), "earns")
        kept(Registry(tmp_path), "other")


def test_a_password_is_not_kept(tmp_path):
    registry = Registry(tmp_path)
    url = "postgresql://me:secret@host/db"
    with registry.making(named("earns")) as folder:
        made = Model("earns", "DNN", False, {}, "y", "", {}, {"validation.select": url})
        registry.keep(named("earns"), folder, made, f"SELECT '{url}'")
    assert not any("secret" in path.read_text() for path in folder.iterdir() if path.is_file())


@pytest.mark.slow
def test_a_kill_at_any_time_leaves_the_old_model_or_the_new_one(tmp_path):
    registry, last = Registry(tmp_path), 0
    for kill in range(12):
        command = [sys.executable, "-c", TRAINS, str(tmp_path), str(last + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            # The kill comes at another place each time: some lines, and some of the next one's way.
            for _ in range(1 + kill % 5):
                began = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            began = int(([began, *process.stdout.read().split()])[-1])
        if began == 1:
            continue
        model, folder = registry.find(named("of.earns"))
        number = int(model.name)
        assert began - 1 <= number <= began
        assert {path.read_text() for path in folder.glob("part*")} == {str(number)}
        assert len(list(folder.glob("part*"))) == 20
        assert Path(tmp_path, "of", "earns", "statement.sql").read_text() == f"SELECT {number};\n"
        assert json.loads((folder / "model.json").read_text())["name"] == str(number)
        last = number
    assert last > 12
    assert registry.names() == ["of.earns"]
