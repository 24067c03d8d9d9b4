"""Runs pytest, and reports where its time goes: `python -m tests.times PYTEST-ARGUMENTS...`.

The report is printed, and build/test-times.json has each test. CPU seconds are those of the test's
process and of all that it starts, however they end.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.times.hook.sitecustomize import COUNTS

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build"
TICKS = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 0.5
ROWS = 40
CAUSES = ("start", "import", "tracing", "computing")


class Processes:
    """CPU seconds of all processes that count themselves in a folder, as last seen in /proc."""

    def __init__(self, folder):
        self.folder = folder
        self.seen = {}  # file -> (CPU seconds, command line)

    def look(self):
        for path in self.folder.glob("*.*"):
            pid = path.name.partition(".")[0]
            if not pid.isdigit():
                continue
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            start, cpu = fields[19], (int(fields[11]) + int(fields[12])) / TICKS
            # An id is given out again: the file is older than the process that has it now.
            older = int(path.suffix[1:]) / 1e9 < int(start) / TICKS - LOOK_SECONDS
            if fields[0] not in "ZX" and not older:
                self.seen[path.name] = cpu, line

    def rows(self):
        """(test, role, {cause: CPU seconds}) of each process."""
        for name, (cpu, line) in self.seen.items():
            data = (self.folder / name).read_bytes()
            start, imports, tracing = COUNTS.unpack_from(data)
            test = data[COUNTS.size :].rstrip(b"\0").decode().rpartition(" (")[0]
            rest = max(0.0, cpu - start - imports - tracing)
            yield test, role(line), dict(zip(CAUSES, (start, imports, tracing, rest), strict=True))


def role(line):
    """What a process is, by its command line."""
    words = line.split("\0")
    if "-m" in words:
        at = words.index("-m")
        return " ".join(
            [words[at + 1], *words[at + 2 : at + 3]]
            if words[at + 1] == "shoal"
            else words[at + 1 : at + 2]
        )
    return "pytest" if "pytest" in line or "execnet" in line else Path(words[0] or "?").name


def main():
    """Run pytest with the arguments, and exit with its code."""
    with tempfile.TemporaryDirectory(prefix="times-") as name:
        folder, done = Path(name), threading.Event()
        path = os.pathsep.join(filter(None, [str(HERE / "hook"), os.environ.get("PYTHONPATH")]))
        pytest = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "tests.times.plugin", *sys.argv[1:]],
            env=os.environ | {"PYTHONPATH": path, "SHOAL_TEST_TIMES": name},
        )
        processes = Processes(folder)

        def sample():
            while not done.wait(LOOK_SECONDS):
                processes.look()

        threading.Thread(target=sample, daemon=True).start()
        code = pytest.wait()
        done.set()
        tests = [
            json.loads(line)
            for path in folder.glob("tests-*")
            for line in path.read_text().splitlines()
        ]
        report(tests, list(processes.rows()))
    sys.exit(code)


def report(tests, rows):
    """Print and keep where the time went: by role and cause, by file, by test."""
    by_role = collections.defaultdict(collections.Counter)
    started = collections.defaultdict(collections.Counter)
    for test, who, causes in rows:
        by_role[who].update(causes)
        by_role[who]["processes"] += 1
        if who != "pytest":
            started[test].update({"processes": 1, **causes})
    columns = ("processes", *CAUSES)
    print(f"\n{'CPU seconds of':<28}" + "".join(f"{each:>11}" for each in columns))
    for who, counts in sorted(by_role.items(), key=lambda row: -sum(row[1].values())):
        print(f"{who[:27]:<28}" + "".join(f"{counts[each]:>11.0f}" for each in columns))
    files = collections.defaultdict(collections.Counter)
    for each in tests:
        mine = started[each["test"]]
        each |= {"processes": mine["processes"], "started": sum(mine[c] for c in CAUSES)}
        each |= {cause: mine[cause] for cause in CAUSES}
        files[each["test"].partition("::")[0]].update(
            {k: v for k, v in each.items() if k != "test"}
        )
    columns = ("wall", "cpu", "started", "import", "tracing", "processes")
    for title, lines in (
        ("file", sorted(files.items(), key=lambda row: -row[1]["wall"])),
        ("test", sorted(((t["test"], t) for t in tests), key=lambda row: -row[1]["wall"])),
    ):
        print("\n" + "".join(f"{each:>10}" for each in columns) + f"  {title}")
        for name, counts in lines[:ROWS]:
            print("".join(f"{counts[each]:>10.1f}" for each in columns) + f"  {name}")
    print(f"\nsum of wall {sum(t['wall'] for t in tests):.0f} s, tests {len(tests)}")
    BUILD.mkdir(exist_ok=True)
    (BUILD / "test-times.json").write_text(json.dumps({"tests": tests, "roles": by_role}, indent=1))


if __name__ == "__main__":
    main()
