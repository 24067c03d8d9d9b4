"""The stacks of a job's processes in words: what `shoal stacks` prints.

Takes the master's answer; asking.py asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from shoal.base.words import counted
from shoal.proto import shoal_pb2 as pb

OWN_MARK = ">"
"""Before a line of the user's own code."""


def stacks_lines(processes: Iterable[pb.ProcessStacks]) -> Iterator[Text]:
    """A heading for each process, then its threads by the place where they stand.

    The last call of a thread comes last. Without styles the text says the same.
    """
    for number, process in enumerate(processes):
        if number:
            yield Text()
        yield from _process(process)


def problems(processes: Iterable[pb.ProcessStacks]) -> list[str]:
    """The processes that have not answered, each with the reason."""
    return [f"{each.process}: {each.problem}" for each in processes if each.problem]


def _process(process: pb.ProcessStacks) -> Iterator[Text]:
    restart = f" (restart {process.incarnation})" if process.incarnation else ""
    if process.problem:
        yield Text(f"{process.process}{restart}: no answer: {process.problem}", style="bold red")
        return
    yield Text(f"{process.process}{restart}: {counted(process.threads, 'thread')}", style="bold")
    for stacks in process.stacks:
        yield Text(f"  {_names(stacks)}", style="cyan")
        if stacks.left_out:
            yield Text(f"      ... {counted(stacks.left_out, 'call')} left out", style="dim")
        for frame in stacks.frames:
            yield _frame(frame)
    if (left := process.threads - sum(each.threads for each in process.stacks)) > 0:
        yield Text(f"  ... {counted(left, 'more thread')} at other places", style="dim")


def _names(stacks: pb.ThreadStacks) -> str:
    names = ", ".join(stacks.names)
    more = stacks.threads - len(stacks.names)
    return f"{counted(stacks.threads, 'thread')}: {names}" + (f" and {more} more" if more else "")


def _frame(frame: pb.StackFrame) -> Text:
    code = f": {frame.code}" if frame.code else ""
    line = f"{frame.where}, line {frame.line}, in {frame.function}{code}"
    if frame.own:
        return Text(f"    {OWN_MARK} {line}", style="bold yellow")
    return Text(f"      {line}")
