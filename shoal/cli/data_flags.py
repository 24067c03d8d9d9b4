"""A command's flags: in groups in its help, and mistakes in them told with what to do.

A shell makes many words of a pattern that stands without quotes, and of a flag that is given
twice the last value counts: both would leave out data, so both are refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
import click.core

from shoal.base.words import near
from shoal.client.run.checks import DATA_FIELDS
from shoal.config.flags import default_of, flag, kind_of, value_of
from shoal.config.options import GROUPS
from shoal.errors import EXIT_USER_ERROR

Command = TypeVar("Command", bound=Callable[..., Any])

OTHER = "Options"
"""The section of the flags that are in no group."""


NOTHING_REQUIRED = "shoal.cli.nothing_required"
"""In the `meta` of a context: no flag has to be given."""


NUMBERS = {"integer": "a whole number", "float": "a number"}
"""What click calls types of numbers, in words."""


class FlagError(click.ClickException):
    """A wrong flag, told in one line."""

    exit_code = EXIT_USER_ERROR


class GroupedOption(click.Option):
    """A flag in a section of the help."""

    def __init__(self, *arguments: Any, group: str = OTHER, **values: Any) -> None:
        """group: the title of the section."""
        super().__init__(*arguments, **values)
        self.group = group

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Process a value as any option does; none is required if an earlier one has said so.

        Raises FlagError that explains a missing option, or says which number a value must be.
        """
        required = self.required
        self.required = required and not ctx.meta.get(NOTHING_REQUIRED)
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            what = (self.help or "").partition(". ")[0].rstrip(".")
            raise FlagError(
                f"{self.opts[0]} is required. {what}; see {ctx.command_path} --help"
            ) from error
        except click.BadParameter as error:
            if self.type.name not in NUMBERS:
                raise
            kind = NUMBERS[self.type.name]
            raise FlagError(f"{self.opts[0]} must be {kind}, not {value!r}") from error
        finally:
            self.required = required


def _field_option(field: dataclasses.Field[Any], required: bool) -> GroupedOption:
    """The flag of a field of JobConfig. required: one without a default must be given."""
    kind = kind_of(field)
    needed = field.default is dataclasses.MISSING
    # Click takes None for a value.
    default = {} if needed else {"default": default_of(field)}
    if field.metadata["repeated"]:
        default = {"multiple": True, "callback": lambda _context, _option, given: ",".join(given)}
    return GroupedOption(
        [flag(field.name), field.name],
        **default,
        group=next(group.title for group in GROUPS if field in group.fields),
        type=kind,
        required=needed and required,
        is_flag=kind is bool,
        metavar=None if kind is bool else value_of(field),
        show_default=not needed and field.default != "" and kind is not bool,
        help=field.metadata["help"],
    )


class _FieldOptions(click.Option):
    """Stands for the flags of fields until a GroupedCommand needs them.

    Making a hundred of them takes longer than the rest of a command's start.
    """

    def __init__(
        self, _: Sequence[str], fields: Sequence[dataclasses.Field[Any]], required: bool
    ) -> None:
        self._fields, self._required = fields, required

    def options(self) -> list[click.Option]:
        """The flags."""
        return [_field_option(field, self._required) for field in self._fields]


def field_options(
    fields: Sequence[dataclasses.Field[Any]], *, required: bool = True
) -> Callable[[Command], Command]:
    """Adds the flags of fields of JobConfig, in their order, to a GroupedCommand.

    required: those without a default must be given.
    """
    return click.option(cls=_FieldOptions, fields=fields, required=required)


def given_flags(context: click.Context, names: Iterable[str]) -> list[str]:
    """The parameters among `names` that the command line has."""
    command_line = click.core.ParameterSource.COMMANDLINE
    return [name for name in names if context.get_parameter_source(name) == command_line]


class GroupedCommand(click.Command):
    """A command whose help has a section for each group of flags."""

    _params: list[click.Parameter]

    @property
    def params(self) -> list[click.Parameter]:
        """Its parameters; the flags of fields are made now."""
        self._params = [
            option
            for each in self._params
            for option in (each.options() if isinstance(each, _FieldOptions) else [each])
        ]
        return self._params

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._params = params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections in the order of their first flags."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue  # the text above says what it is
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(parameter, "group", OTHER), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                for about in [group.about for group in GROUPS if group.title == title]:
                    formatter.write_text(about)
                for term, text in records:
                    formatter.write(f"{'':{formatter.current_indent}}{term}\n")
                    formatter.write(_indented(text, formatter) + "\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as every command does, with `help` for --help.

        Raises UsageError for an unknown flag; it names the other commands that have the flag.
        """
        args = ["--help"] if args == ["help"] else args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            commands = _commands_with(ctx, error.option_name)
            if not commands:
                # Click counts the dashes, in which all flags are alike.
                name, close = error.option_name.strip("-"), error.possibilities or ()
                close = [each for each in close if near(name, [each.strip("-")])]
                raise click.NoSuchOption(error.option_name, None, close, ctx) from error
            raise click.UsageError(
                f"shoal {ctx.info_name} has no flag {error.option_name}. It is a flag of shoal "
                f"{' and '.join(', '.join(commands).rsplit(', ', 1))}",
                ctx,
            ) from error


def _indented(text: str, formatter: click.HelpFormatter) -> str:
    indent = " " * (formatter.current_indent + 6)
    # Click would break --servers after a dash.
    return textwrap.fill(
        text,
        formatter.width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _commands_with(context: click.Context, name: str) -> list[str]:
    """The commands beside this one that have a flag."""
    parent = context.parent
    if parent is None or not isinstance(parent.command, click.Group):
        return []
    return [
        name_of_command
        for name_of_command, command in parent.command.commands.items()
        if any(name in (*each.opts, *each.secondary_opts) for each in command.params)
    ]


class DataCommand(GroupedCommand):
    """A command with flags that name data: each once, and a pattern in quotes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as every command does; raises UsageError that says how to name several files."""
        names = [argument.partition("=")[0].replace("_", "-") for argument in args]
        for name in map(flag, DATA_FIELDS):
            if names.count(name) > 1:
                raise click.UsageError(
                    f"{name} is given twice: for several files give their folder, or a pattern in "
                    "quotes",
                    ctx,
                )
        given = list(args)  # of which click takes them
        files = [argument for argument in given if os.path.exists(argument)]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message:
                raise
            if any(name in error.message for name in files):
                hint = "a flag takes one value: put a pattern of files into quotes, or give their "
                raise click.UsageError(f"{error.message}; {hint}folder", ctx) from error
            options = [each for each in self.params if isinstance(each, click.Option)]
            switches = {name for each in options if each.is_flag for name in each.opts}
            for name, value in itertools.pairwise(given):
                if name.replace("_", "-") in switches and f"({value})" in error.message:
                    raise click.UsageError(f"{name} takes no value: remove {value}", ctx) from error
            raise
