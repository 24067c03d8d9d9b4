"""`shoal chaos`: its flags, its report and its exit code. What it does is shoal.tools.chaos'."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import click.core

from shoal.cli.data_flags import GroupedOption
from shoal.client.show.plain import echo
from shoal.config.flags import flag
from shoal.config.job import JobConfig
from shoal.errors import EXIT_INTERRUPTED, EXIT_JOB_FAILED, UserError

if TYPE_CHECKING:
    from shoal.tools.chaos.faults import Fault
    from shoal.tools.chaos.run import Outcome


GROUP = "Faults"
"""The section of their flags in the help."""


def _for_count(context: click.Context, _: click.Parameter, count: bool) -> bool:
    """The model is given with --count."""
    if count:
        for parameter in context.command.params:
            parameter.required = False
    return count


def _fault(name: str, plural: str, value: str, help_text: str) -> Any:
    """The flag of a kind of fault."""
    return click.option(
        name,
        plural,
        cls=GroupedOption,
        group=GROUP,
        multiple=True,
        metavar=value,
        help=f"{help_text} May be repeated.",
    )


OPTIONS = (
    click.option(
        "--count",
        cls=GroupedOption,
        group=GROUP,
        is_flag=True,
        is_eager=True,
        callback=_for_count,
        help="Train a model of shoal's own on its own data, whose rows count how often each "
        "record was trained, and compare them with the audit. Exits with 1 on any difference.",
    ),
    _fault(
        "--kill",
        "kills",
        "TARGET@WHEN",
        "Kill (SIGKILL) worker:N, ps:N or master: @step=N, @random, @phase=NAME, or at a point of "
        "the code, @point=NAME, also from a time on: @point=NAME,step=N. job: kill all of them "
        "and the client, then --resume, with ,servers=N, after ,flip=journal or ,remove=log.",
    ),
    _fault(
        "--pause",
        "pauses",
        "TARGET@WHEN,seconds=S",
        "Stop a process (SIGSTOP) for S seconds, then let it continue.",
    ),
    _fault(
        "--fill",
        "fills",
        "TARGET@WHEN,seconds=S",
        "Let no file of a process grow for S seconds, as on a full disk.",
    ),
    _fault(
        "--hang",
        "hangs",
        "TARGET@WHEN,seconds=S",
        "Let a process that reaches @point=NAME hang there for S seconds, or with inf for ever. "
        "Without a point, let ps:N or master handle no call and answer pings only.",
    ),
    _fault(
        "--storage",
        "storages",
        "STORAGE@WHEN,seconds=S,fail=N",
        "Let every N-th call of a process to its data, checkpoints or output fail for S seconds, "
        "as in data@step=100,seconds=5,fail=3; with hang=N in place of fail, it hangs until the "
        "S seconds are over.",
    ),
    _fault(
        "--half-sent",
        "half_sents",
        "ps:N@WHEN,seconds=S",
        "Send a server the first parts of eight pushes, or with ,count=N of N pushes, and nothing "
        "more for S seconds.",
    ),
    _fault(
        "--no-room",
        "no_rooms",
        "TARGET@WHEN,seconds=S",
        "Kill a worker or ps, and have no room for its successor for S seconds.",
    ),
    _fault(
        "--cut",
        "cuts",
        "TARGET-TARGET@WHEN,seconds=S",
        "Let nothing through between two processes for S seconds, as in "
        "worker:0-ps:1@step=300,seconds=3.",
    ),
    click.option(
        "--random-kills",
        cls=GroupedOption,
        group=GROUP,
        default=0,
        type=click.IntRange(0),
        metavar="N",
        help="Kill N processes at random moments of training, some two at once.",
    ),
    click.option(
        "--chaos-seed",
        cls=GroupedOption,
        group=GROUP,
        type=int,
        metavar="N",
        help="Seed for everything random about the faults. Default: --seed, the job's.",
    ),
    click.option(
        "--undisturbed",
        cls=GroupedOption,
        group=GROUP,
        default="run",
        show_default=True,
        metavar="JOB",
        help="Metrics to compare with. run: those of the same job, run undisturbed afterwards. "
        "none: no comparison. Also the folder of a job that has ended, or values such as auc=0.79.",
    ),
    click.option(
        "--tolerance",
        cls=GroupedOption,
        group=GROUP,
        type=click.FloatRange(0),
        metavar="X",
        help="Largest difference of a metric; a larger one exits with 1. Default: any is allowed.",
    ),
)
"""Beside those of `shoal train`."""


def chaos_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of chaos."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def counting(values: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """The fields of the configuration of a job that counts, of those that were given.

    values: of all flags of a job. given: names of the flags on the command line. Raises UserError
    for one with which no row could be a count.
    """
    from shoal.tools.chaos.count_job import COMPARED, FIXED, admit_after_of, count_values

    for name in (*FIXED, *COMPARED):
        if name in given:
            what = "it has its own" if name in FIXED else "rows are compared, not metrics"
            raise UserError(f"{flag(name)} cannot be given with --count: {what}")
    admit_after_of(values["table"])
    job_dir = values["job_dir"] or os.path.join("shoal-jobs", values["job_name"] or "counts")
    changes = count_values(Path(os.path.abspath(job_dir)))
    return values | {name: value for name, value in changes.items() if name not in given}


def run(
    config: JobConfig,
    *,
    count: bool,
    kills: Sequence[str],
    pauses: Sequence[str],
    fills: Sequence[str],
    hangs: Sequence[str],
    storages: Sequence[str],
    half_sents: Sequence[str],
    no_rooms: Sequence[str],
    cuts: Sequence[str],
    random_kills: int,
    chaos_seed: int | None,
    undisturbed: str,
    tolerance: float | None,
    limit_given: bool,
) -> None:
    """Run the job and exit with the code. limit_given: --relaunch-limit was. Raises UserError."""
    import dataclasses

    from shoal.client.show.notebook import default_display
    from shoal.client.show.report import print_report
    from shoal.result import JobFailedError
    from shoal.tools.chaos import faults, parsing
    from shoal.tools.chaos.count_job import write_input
    from shoal.tools.chaos.run import counted, given_metrics, run_disturbed, run_undisturbed

    if config.image:
        raise UserError("--image: shoal chaos runs jobs on this machine only")
    counts = config.num_workers, config.num_servers
    seed = config.seed if chaos_seed is None else chaos_seed
    asks = (
        (parsing.parse_kill, kills),
        (parsing.parse_pause, pauses),
        (parsing.parse_fill, fills),
        (parsing.parse_hang, hangs),
        (parsing.parse_storage, storages),
        (parsing.parse_half_sent, half_sents),
        (parsing.parse_no_room, no_rooms),
        (parsing.parse_cut, cuts),
    )
    fixed = [parse(text, *counts) for parse, texts in asks for text in texts]
    planned = faults.drawn(fixed, seed) + faults.random_kills(random_kills, seed, *counts)
    if not planned:
        raise UserError(
            "nothing is to be done: give --kill, --pause, --fill, --hang, --storage, --half-sent, "
            "--no-room, --cut or --random-kills"
        )
    if count:
        undisturbed = "none"
        config = config.resolved()
        write_input(Path(config.training_data), seed=config.seed)
    # Refused before the job, if it is to be.
    plain = {} if undisturbed in ("run", "none") else given_metrics(undisturbed)
    if not limit_given:
        # What is killed on purpose is not to end the job.
        limit = max(config.relaunch_limit, len(planned) + 1)
        config = dataclasses.replace(config, relaunch_limit=limit)

    outcome = run_disturbed(config, planned, default_display(), seed)
    if outcome.result is not None:
        print_report(outcome.result)
    if outcome.failure:
        echo(f"Error: {outcome.failure}", err=True)
    echo("\n".join(lines_of(outcome)))
    echo(outcome.audit_text)
    if outcome.state == "stopped":
        sys.exit(EXIT_INTERRUPTED)
    if count:
        counted(config, outcome)
        if outcome.comparison is not None:
            echo("\n".join(outcome.comparison.lines()))
    if outcome.state == "succeeded" and outcome.result is not None and undisturbed != "none":
        if not outcome.result.metrics:
            echo("no metric to compare: the job has no --validation-data")
        else:
            try:
                if undisturbed == "run":
                    plain = run_undisturbed(config, default_display()).metrics
                outcome.problems += compare(outcome.result.metrics, plain, tolerance)
            except JobFailedError as error:
                outcome.problems.append(f"nothing to compare with: {error}")
    for problem in outcome.problems:
        echo(f"PROBLEM: {problem}")
    sys.exit(EXIT_JOB_FAILED if outcome.problems else 0)


def lines_of(outcome: Outcome) -> list[str]:
    """The lines about the faults that were done to the job, and those that were not."""
    lines = [f"done to the job: {len(outcome.actions) - len(outcome.not_done)}"]
    for action in sorted(outcome.actions, key=lambda action: action.at or float("inf")):
        fault: Fault = action.fault
        if action.at is None:
            lines.append(f"  not done: {fault}@{fault.when}")
            continue
        at = time.strftime("%H:%M:%S", time.localtime(action.at))
        process = f" (process {action.process})" if action.process else ""
        point = f" at {fault.when.point}" if fault.when.point else ""
        rest = "" if action.ended else ", until the job ended"
        remarks = f": {'; '.join(action.remarks)}" if action.remarks else ""
        lines.append(f"  {at}  step {action.step:>6}  {fault}{point}{process}{rest}{remarks}")
    return lines


def compare(
    metrics: dict[str, float | None], plain: dict[str, float | None], tolerance: float | None
) -> list[str]:
    """Print each metric beside the undisturbed one; returns what differs too much."""
    problems = []
    for name, value in metrics.items():
        if name not in plain:
            continue
        other = plain[name]
        if value is None or other is None:
            echo(f"{name}: {value} disturbed, {other} undisturbed")
            continue
        difference = value - other
        echo(
            f"{name}: {value:.4f} disturbed, {other:.4f} undisturbed, difference {difference:+.4f}"
        )
        if tolerance is not None and abs(difference) > tolerance:
            problems.append(
                f"{name} differs by {abs(difference):.4f}, --tolerance is {tolerance:g}"
            )
    return problems
