"""Statements, run: SQL by the database, and clauses as jobs of the Python API.

Owns what each statement does, step by step, and what it prints. TensorFlow is the jobs' alone.
"""

from __future__ import annotations

import dataclasses
import datetime
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal.base.words import counted
from shoal.result import JobResult
from shoal.sql import module
from shoal.sql.clause import Clause, Command
from shoal.sql.databases.engine import Answer, Engine, Saved
from shoal.sql.errors import SqlError
from shoal.sql.jobs.answers import answered, bars, with_numbers
from shoal.sql.jobs.asked import Asked, divided
from shoal.sql.jobs.checks import check_columns, check_label, reported
from shoal.sql.jobs.registry import Model, Registry
from shoal.sql.jobs.training import VALIDATION, asked_by, command_of, prepared
from shoal.sql.models.plan import Plan
from shoal.sql.terms import Name, Place
from shoal.sql.tokens import Sql, Statement, is_query, statements

REPLACE = "predict.replace"
METRICS = "validation.metrics"
EXPLAIN = ("explain.metric", "explain.repeats", "explain.records")


class Session:
    """A database and a folder of models, for one statement after the other.

    tell: prints a text. dry: nothing is trained or changed. verbose: of the jobs' displays.
    """

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        tell: Callable[[str], None],
        *,
        dry: bool = False,
        verbose: int | str = "auto",
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._tell = tell
        self._dry = dry
        self._verbose = verbose

    @property
    def dialect(self) -> str:
        """The name of the database's SQL."""
        return self._engine.dialect

    def run(self, text: str, show: Callable[[Answer], None]) -> None:
        """Run all statements of a text, none if one has a mistake. Raises SqlError.

        show: gets each answer.
        """
        for statement in statements(text, self.dialect):
            answer = self.execute(statement)
            if answer is not None:
                show(answer)

    def execute(self, statement: Statement) -> Answer | None:
        """Run a statement; returns its answer, if it has one. Raises SqlError."""
        if isinstance(statement, Sql):
            if self._dry:
                self._tell(f"not run: {statement.text}")
                return None
            return self._engine.answer(statement)
        if isinstance(statement, Command):
            return self._command(statement)
        if self._dry and statement.verb != "TRAIN":
            self._tell(f"not run: {statement.text}")
            return None
        with reported(statement.place):
            return {
                "TRAIN": self._train,
                "PREDICT": self._predict,
                "EVALUATE": self._evaluate,
                "EXPLAIN": self._explain,
            }[statement.verb](statement)

    # ------------------------------------------------------------ the models themselves

    def _command(self, command: Command) -> Answer | None:
        if command.name is None:
            models = [
                self._registry.find(Name(n, command.place))[0] for n in self._registry.names()
            ]
            names = ("name", "algorithm", "label", "records", "created")
            rows = {n: pa.array([getattr(m, n) for m in models]) for n in names}
            rows["metrics"] = pa.array([_metrics(each) for each in models])
            return Answer.of(pa.table(rows)) if models else self._tell("there is no model")
        model, folder = self._registry.find(command.name)
        if command.words == "DROP MODEL":
            if self._dry:
                return self._tell(f"not run: DROP MODEL {command.name.text}")
            self._registry.drop(command.name)
            return self._tell(f"model {model.name} is removed")
        lines = [(folder / "statement.sql").read_text().rstrip()]
        derived = "" if model.module else Plan.from_json(model.plan).clause()
        if derived not in lines[0]:
            lines += [f"-- {line}" for line in derived.split("\n")]
        lines.append(f"-- {model.algorithm}, {counted(model.records, 'record')}, {model.created}")
        lines += [f"-- {_metrics(model)}"] * bool(model.metrics)
        shown = self._registry.path(command.name)
        lines += [f"-- module: {shown / 'model.py'}"] * (not model.module)
        lines.append(f"-- export: {shown / 'export'}; job: {shown / 'job'}")
        return self._tell("\n".join(lines))

    # ------------------------------------------------------------ TRAIN

    def _train(self, clause: Clause) -> None:
        assert clause.into is not None
        asked = asked_by(clause)
        if self._dry:
            with tempfile.TemporaryDirectory() as folder:
                self._show_training(clause, asked, Path(folder))
            return
        with self._registry.making(clause.into) as folder:
            data = self._save(clause, folder / "given" / "select.parquet")
            training = prepared(clause, asked, data, folder)
            if training.text:
                (folder / "model.py").write_text(training.text)
            given = self._validated(asked, folder / "given" / "validation.parquet")
            for line in training.said:
                self._tell(line)
            result = self._job(
                "train",
                training_data=str(data.path),
                output=str(folder / "export"),
                job_dir=str(folder / "job"),
                job_name=clause.into.text.replace(".", "-").replace("/", "-").lower(),
                **given,
                **training.arguments,
            )
            replaced = self._registry.path(clause.into).is_symlink()
            model = Model(
                name=clause.into.text.replace("/", "."),
                algorithm=training.algorithm,
                module=training.plan is None,
                arguments=training.of_model,
                label=clause.label.text if clause.label else "",
                plan=training.plan.to_json() if training.plan else "",
                columns={each.name: str(each.type) for each in data.schema},
                attributes={each.name: each.plain() for each in clause.attributes},
                metrics=result.metrics,
                records=data.records,
                created=datetime.datetime.now(datetime.UTC).isoformat(" ", "seconds"),
                version=version("shoal"),
            )
            self._registry.keep(clause.into, folder, model, clause.text)
        was = "replaced" if replaced else "trained"
        self._tell(f"model {model.name} is {was}: {self._registry.path(clause.into)}")

    def _show_training(self, clause: Clause, asked: Asked, folder: Path) -> None:
        """Print model.py and the command, with the paths that they would have."""
        assert clause.into is not None
        data = self._save(clause, folder / "select.parquet")
        place = self._registry.path(clause.into)
        training = prepared(clause, asked, data, place)
        given = {"validation_data": str(place / "given" / "validation.parquet")}
        rows = data.path if data.path.parent != folder else place / "given" / "select.parquet"
        arguments = {
            "training_data": str(rows),
            **(given if VALIDATION in asked.own else {}),
            "output": str(place / "export"),
            **training.arguments,
        }
        for text in (*training.said, training.text, command_of(arguments)):
            self._tell(text)

    def _validated(self, asked: Asked, path: Path) -> dict[str, str]:
        """The argument of validation data, which are selected."""
        if VALIDATION not in asked.own:
            return {}
        place = asked.places[VALIDATION]
        try:
            saved = self._select(Sql(asked.own[VALIDATION].strip().rstrip(";"), Place(1, 1)), path)
        except SqlError as error:
            raise SqlError(f"{VALIDATION}: {error.message}", place) from error
        return {"validation_data": str(saved.path)}

    # ------------------------------------------------------------ with a model

    def _predict(self, clause: Clause) -> None:
        assert clause.using is not None
        assert clause.name is not None
        asked = divided("predict", clause.attributes, [REPLACE])
        asked.refuse_rest([REPLACE])
        model, folder = self._registry.find(clause.using)
        table, dot, column = clause.name.text.rpartition(".")
        if not dot:
            table, column = clause.name.text, model.label or "prediction"
        self._check_free(table, asked, clause.name.place)
        with tempfile.TemporaryDirectory() as made:
            data = self._save(clause, Path(made, "select.parquet"))
            check_columns(model, data, clause)
            output = Path(made, "answers")
            self._with_model(
                "predict",
                model,
                folder,
                Path(made),
                prediction_data=str(data.path),
                output=str(output),
                in_order=True,
                **asked.flags,
            )
            schema, rows = answered(model, data, output / "predictions.parquet", column)
            self._engine.write(table, schema, rows)
        self._tell(f"table {table} has {counted(data.records, 'row')}, predictions in {column}")

    def _evaluate(self, clause: Clause) -> Answer:
        assert clause.name is not None
        asked = divided("evaluate", clause.attributes, [METRICS, REPLACE])
        asked.refuse_rest([METRICS, REPLACE])
        model, folder = self._registry.find(clause.name)
        self._check_free(clause.into.text if clause.into else "", asked, clause.place)
        check_label(model, clause)
        with tempfile.TemporaryDirectory() as made:
            data = self._save(clause, Path(made, "select.parquet"))
            check_columns(model, data, clause, label=True)
            more: dict[str, Any] = {}
            if METRICS in asked.own:
                more["model_zoo"] = self._measuring(model, asked, Path(made))
            result = self._with_model(
                "evaluate",
                model,
                folder,
                Path(made),
                validation_data=str(data.path),
                **more,
                **asked.flags,
            )
        names = sorted(result.metrics)
        numbers = pa.array([result.metrics[name] for name in names], pa.float64())
        return self._kept(pa.table({"metric": pa.array(names), "value": numbers}), clause)

    def _measuring(self, model: Model, asked: Asked, folder: Path) -> str:
        """A folder with the model's module, but for its metrics."""
        if model.module:
            raise SqlError(
                f"the metrics of {model.algorithm} are those of its eval_metrics_fn",
                asked.places[METRICS],
            )
        flags = ("train.", "shoal.", "engine.", "runtime.", VALIDATION)
        own = {n: v for n, v in model.attributes.items() if not n.startswith(flags)}
        own[METRICS] = asked.own[METRICS]
        plan = Plan.from_json(model.plan)
        text = module.text(plan, model.algorithm, own, {METRICS: asked.places[METRICS]})
        (folder / "model.py").write_text(text)
        return str(folder)

    def _explain(self, clause: Clause) -> Answer:
        from shoal.api.importance import importance  # late: few statements need it

        assert clause.name is not None
        if clause.using is not None:
            raise SqlError(
                f"{clause.using.text} is not part of shoal: without USING, the importance of each "
                "column is found by permutation",
                clause.using.place,
            )
        asked = divided("predict", clause.attributes, [*EXPLAIN, REPLACE])
        asked.refuse_rest([*EXPLAIN, REPLACE])
        model, folder = self._registry.find(clause.name)
        self._check_free(clause.into.text if clause.into else "", asked, clause.place)
        check_label(model, clause)
        if not model.label:
            raise SqlError(
                f"{model.name} was trained without LABEL, so nothing tells good predictions",
                clause.name.place,
            )
        with tempfile.TemporaryDirectory() as made:
            data = self._save(clause, Path(made, "select.parquet"))
            check_columns(model, data, clause, label=True)
            columns = [name for name in model.columns if name != model.label]
            if not model.module:
                used = Plan.from_json(model.plan).types
                columns = [name for name in columns if name in used]
            trained = JobResult.read(folder / "job" / "result.json")
            trained = dataclasses.replace(trained, output=str(folder / "export"))
            numbered = with_numbers(model, data, Path(made, "numbers.parquet"))
            found = importance(
                trained,
                str(numbered),
                label=model.label,
                columns=columns,
                job_dir=str(Path(made, "job")),
                verbose=self._verbose,
                **{n.partition(".")[2]: v for n, v in asked.own.items() if n in EXPLAIN},
                **model.arguments,
                **asked.flags,
            )
        if clause.into is not None:
            return self._kept(found, clause)
        return Answer.of(found.append_column("bar", bars(found["drop"].to_pylist())))

    # ------------------------------------------------------------ parts

    def _save(self, clause: Clause, path: Path) -> Saved:
        return self._select(Sql(clause.select, clause.select_place), path)

    def _select(self, select: Sql, path: Path) -> Saved:
        if not is_query(select.text, self.dialect, select.place):
            raise SqlError("a SELECT is expected", select.place)
        return self._engine.save(select, path)

    def _with_model(
        self, command: str, model: Model, folder: Path, made: Path, **arguments: Any
    ) -> JobResult:
        """The result of a job with a model."""
        of_model = {**model.arguments, "restore_from": str(folder / "export")}
        return self._job(command, job_dir=str(made / "job"), **{**of_model, **arguments})

    def _job(self, command: str, **arguments: Any) -> JobResult:
        import shoal.api  # late: a statement of SQL alone needs no jobs

        run = {"train": shoal.api.train, "predict": shoal.api.predict}
        result = run.get(command, shoal.api.evaluate)(verbose=self._verbose, **arguments)
        assert isinstance(result, JobResult)
        return result

    def _check_free(self, table: str, asked: Asked, place: Place) -> None:
        """Raise SqlError for a table that is there, and is not to be replaced.

        In DuckDB a table is like a file that is written anew; others' are not ours alone.
        """
        if not table or self.dialect == "duckdb" or asked.own.get(REPLACE) is True:
            return
        if self._engine.has(table):
            message = f"there is a table {table}: say WITH {REPLACE}=true, or name another"
            raise SqlError(message, place)

    def _kept(self, table: pa.Table, clause: Clause) -> Answer:
        """A small table, written where INTO says."""
        if clause.into is not None:
            self._engine.write(clause.into.text, table.schema, iter(table.to_batches()))
            self._tell(f"table {clause.into.text} has {counted(table.num_rows, 'row')}")
        return Answer.of(table)


def _metrics(model: Model) -> str:
    return ", ".join(f"{n} {'NaN' if v is None else f'{v:.4f}'}" for n, v in model.metrics.items())
