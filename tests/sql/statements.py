"""Terms and plans as the parser and the analysis of a SELECT would give them."""

import pyarrow as pa

from shoal.data.opening import open_reader
from shoal.data.samples.analysis import analyze
from shoal.sql.columns import SelectSchema, plan
from shoal.sql.terms import Call, Listed, Literal, Name, Place

WORDS = ("int", "float", "string", "sum", "mean", "sqrtn", "zeros")


class Terms:
    """Terms of one line; the n-th that is made stands at column n."""

    def __init__(self):
        self.made = 0

    def place(self):
        self.made += 1
        return Place(1, self.made)

    def term(self, value):
        if isinstance(value, Name | Literal | Listed | Call):
            return value
        if isinstance(value, list):
            return Listed(tuple(map(self.term, value)), self.place())
        bare = isinstance(value, str) and (value.isidentifier() or value == "*")
        return Name(value, self.place()) if bare else Literal(value, self.place())

    def __getattr__(self, name):
        return lambda *arguments: Call(name, tuple(map(self.term, arguments)), self.place())


def planned(path, label, *terms, **parts):
    """The plan of a file's columns, by its schema and statistics. parts: terms by FOR's name."""
    reader = open_reader(str(path), flag="--data")
    schema = SelectSchema.of(reader.schema())
    return planned_of(schema, analyze(reader), label, *terms, **parts)


def planned_of(schema, statistics, label, *terms, **parts):
    make = Terms()
    schema = schema if isinstance(schema, SelectSchema) else SelectSchema.of(pa.schema(schema))
    given = {name: [make.term(each) for each in some] for name, some in parts.items()}
    given |= {"": [make.term(each) for each in terms]} if terms else {}
    return plan(given, make.term(label), schema, statistics)
