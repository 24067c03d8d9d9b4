"""`shoal sql`: statements of a file, of standard input, or typed at a prompt."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.client.show.plain import echo
from shoal.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError

if TYPE_CHECKING:
    from shoal.sql.errors import SqlError
    from shoal.sql.jobs.run import Session

MODELS = "shoal-models"
"""The folder of models where neither the flag nor $SHOAL_MODELS names one."""

HISTORY = "~/.shoal_sql_history"

_WORDS = ("help", "exit", "quit")

HELP = """Statements end with a semicolon: SQL, and
  SELECT ... TO TRAIN MODEL [WITH ...] [COLUMN ...] LABEL COLUMN INTO NAME;
  SELECT ... TO PREDICT TABLE.COLUMN USING NAME;    SELECT ... TO EVALUATE NAME;
  SELECT ... TO EXPLAIN NAME;    SHOW MODELS;    SHOW TRAIN NAME;    DROP MODEL NAME;
Ctrl-C stops a job or takes back what is typed; Ctrl-D ends."""


@click.command("sql")
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--database",
    default="",
    metavar="FILE|URL",
    help="Where SELECTs run: a file of DuckDB, or a URL of SQLAlchemy, in which ${VARIABLE} is of "
    "the environment. Default: DuckDB in memory, which reads files.",
)
@click.option(
    "--models",
    default=MODELS,
    envvar="SHOAL_MODELS",
    show_default=True,
    show_envvar=True,
    metavar="FOLDER",
    help="Folder of the models.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Run the SELECTs of TO TRAIN alone, and print the module of each model and the command "
    "shoal train.",
)
def sql(file: str | None, database: str, models: str, dry_run: bool) -> None:
    """Train, predict, evaluate and explain by SQL.

    FILE holds statements; without it they are read from standard input, or typed. Ends with 2 at
    the first statement that cannot be run; a mistake of form is found before any is run.
    """
    try:
        # Late: --help needs no database.
        from shoal.sql.databases.database import opened
        from shoal.sql.errors import SqlError
        from shoal.sql.jobs.registry import Registry
        from shoal.sql.jobs.run import Session

        session = Session(opened(database), Registry(Path(models).absolute()), echo, dry=dry_run)
        if file is None and sys.stdin.isatty():
            _prompt(session)
            return
        text = _read(file)
        try:
            session.run(text, _show)
        except SqlError as error:
            echo(f"Error: {error.explained(text)}", err=True)
            sys.exit(_code(error))
    except UserError as error:
        echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _read(file: str | None) -> str:
    try:
        return sys.stdin.read() if file in (None, "-") else Path(str(file)).read_text()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file or 'standard input'} is not in UTF-8") from error


def _code(error: SqlError) -> int:
    """The exit code of a statement that failed; of a job its own."""
    result: Any = getattr(error.__cause__, "result", None)
    return int(result.exit_code) if result is not None else EXIT_USER_ERROR


def _show(answer: Any) -> None:
    echo(answer.text())


def _prompt(session: Session) -> None:
    """Read statements, each up to its semicolon, and run them, until the end of the input."""
    from shoal.sql.errors import SqlError
    from shoal.sql.tokens import whole

    echo("shoal sql: statements end with ;  help; tells more, Ctrl-D ends")
    with _history():
        text = ""
        while True:
            try:
                text += input("shoal> " if not text else "    -> ") + "\n"
                word = text.strip(" \n;").lower()
                if word not in _WORDS and not whole(text, session.dialect):
                    continue
                given, text = text, ""
                if word == "help":
                    echo(HELP)
                elif word in _WORDS:
                    return
                else:
                    session.run(given, _show)
            except SqlError as error:
                echo(f"Error: {error.explained(given)}", err=True)
            except KeyboardInterrupt:
                text = ""
                echo("")
            except EOFError:
                echo("")
                return


@contextlib.contextmanager
def _history() -> Any:
    """Lines of earlier sessions, by the keys of readline, where Python has it."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = os.path.expanduser(HISTORY)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(path)
