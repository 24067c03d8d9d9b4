"""`shoal checkpoint` on checkpoints that servers have written."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from shoal.checkpoints.folders import folder_name
from shoal.cli.main import main
from shoal.config.job import JobConfig
from tests.ps.groups import IDS, Group


@pytest.fixture
def saved(tmp_path):
    """(root of two checkpoints of two servers, what the second one holds)."""
    group = Group(2)
    root = tmp_path / "job" / "checkpoints"
    group.push(1, IDS[:40].copy())
    group.save(root, 1)
    group.push(2, IDS[:50].copy())
    group.save(root, 2)
    return root, group.content()[0]


def shoal(*arguments):
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
    return result.exit_code, result.output


def test_list_and_verify(saved):
    root, _ = saved
    code, output = shoal("list", root)
    assert code == 0
    assert [line.split()[-2] for line in output.splitlines() if "│" in line] == ["whole"] * 2
    assert shoal("verify", root) == (0, "checkpoint 1: good\ncheckpoint 2: good\n")
    (file,) = (root / folder_name(2)).glob("server-0001.*.table-0000.arrow")
    file.write_bytes(file.read_bytes()[:-1])
    (root / folder_name(1) / "manifest.json").unlink()
    code, output = shoal("verify", root)
    assert code == 1
    assert f"checkpoint 2: NOT GOOD: {file}: damaged" in output
    assert "checkpoint 1: NOT GOOD" in output
    assert "not whole: " in shoal("list", root)[1]
    assert shoal("verify", root / folder_name(2))[0] == 1


def test_show_and_export_give_the_rows_as_they_are(saved, tmp_path):
    root, rows = saved
    wanted = int(IDS[45])
    (tmp_path / "job" / "job.json").write_text(
        JobConfig(model_def="m.f", training_data="t", checkpoint_dir="/elsewhere").to_json()
    )
    code, output = shoal("show", tmp_path / "job", "items", "--id", wanted)
    assert code == 0
    values = next(line for line in output.splitlines() if "values" in line).split(maxsplit=1)[1]
    shown = [float(value) for value in values.split(", ")]
    np.testing.assert_allclose(shown, rows[wanted][:3], rtol=1e-6)
    code, output = shoal("show", root, "items", "--id", wanted, "--number", 1)
    assert code == 2
    assert f"checkpoint 1 has no row of id {wanted} in table 'items'" in output
    out = tmp_path / "items.parquet"
    code, output = shoal("export", root, "items", out)
    assert (code, output) == (0, f"50 rows of table items of checkpoint 2 in {out}\n")
    table = pq.read_table(out).to_pydict()
    assert {i: tuple(v) for i, v in zip(table["id"], table["vector"], strict=True)} == {
        i: row[:3] for i, row in rows.items()
    }
    assert shoal("export", root, "items", out)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "ROOT", "things", "--id", 1), "no table 'things'; its tables: items, unused"),
        (("show", "ROOT", "items", "--id", 2**63), "is not a 64-bit integer"),
        (("export", "ROOT", "unused", "OUT"), "table 'unused' of checkpoint 2 has no rows"),
        (("verify", "ROOT", "--number", 7), "no checkpoint 7 in ROOT, only 1, 2"),
        (("list", "ROOT/nowhere"), "there is no checkpoint in ROOT/nowhere"),
        (("list", "unknown://a"), "unknown://a"),
    ],
)
def test_wrong_input_is_one_line_that_says_what_is_wrong(saved, tmp_path, arguments, words):
    names = {"ROOT": str(saved[0]), "OUT": str(tmp_path / "out.parquet")}

    def filled(text):
        for name, value in names.items():
            text = str(text).replace(name, value)
        return text

    code, output = shoal(*map(filled, arguments))
    assert code == 2
    assert output.startswith("Error: ")
    assert filled(words) in output
    assert len(output.splitlines()) == 1
    shutil.rmtree(saved[0])
