"""`python -m shoal.master.journal.kept_audit JOB_DIR`: an audit to be kept, or sent.

For a job on Kubernetes, whose journal nobody but its master sees. Owns the form: JSON with
"text" as `shoal audit` prints it, "report" as with --json, and "clean", whether all is
accounted for. What an audit says is audit.py's.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import click

from shoal.base.disk.job_folder import JobFolder
from shoal.errors import EXIT_USER_ERROR, UserError


def audit_apart(folder: JobFolder) -> str:
    """The audit of a job, which may be running in this process: made by another one.

    To read a journal takes its time, and a master must not be slowed by it. Raises
    UserError if it cannot be read.
    """
    command = [sys.executable, "-m", "shoal.master.journal.kept_audit", str(folder.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the journal cannot be audited: {done.stderr.strip()}")
    return done.stdout


@click.command()
@click.argument("job_dir", type=click.Path(path_type=Path))
def main(job_dir: Path) -> None:
    """Print the audit of the job in JOB_DIR as JSON."""
    # Late: a master that has it made by another process needs none of it.
    from shoal.master.journal.audit import audit
    from shoal.master.journal.audit_report import text_of

    try:
        report = audit(JobFolder(job_dir))
    except UserError as error:
        click.echo(error, err=True)
        sys.exit(EXIT_USER_ERROR)
    content = {"clean": not report.problems, "text": text_of(report)}
    click.echo(json.dumps(content | {"report": dataclasses.asdict(report)}))


if __name__ == "__main__":
    main()
