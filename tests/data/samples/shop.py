"""The clicks of a made-up shop, day after day: popularity, prices and traffic drift as they do.

Faults that a day's data may have are in FAULTS.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BEGIN = 1_767_225_600
"""The first day, in seconds since 1970."""

COUNTRIES = ["DE", "FR", "IT", "ES", "PL", "NL", "AT", "BE", "CH", "SE", "PT", "IE", "LU", "MT"]
DEVICES = ["android", "ios", "web", "tablet"]


class Shop:
    """A shop whose days follow from one seed. records: of an average day."""

    def __init__(self, seed, records=20_000):
        self._draw = np.random.default_rng(seed)
        draw = self._draw
        self.records = records
        # Ids are hashes, as in logs; those of items are counted up as items come.
        self._users = draw.integers(-(2**62), 2**62, 6000)
        self._activity = draw.zipf(1.8, 6000).clip(max=60).astype(float)
        self._items = np.arange(100_000, 101_500)
        self._popularity = draw.pareto(1.5, 1500).clip(max=60) + 0.1
        self._price = np.exp(draw.normal(3, 1, 1500))
        self._countries = np.sort(draw.pareto(0.9, len(COUNTRIES)) + 0.02)[::-1]
        self._devices = np.array([0.45, 0.3, 0.2, 0.05])
        self._clicked, self._missing = draw.uniform(0.05, 0.3), draw.uniform(0.01, 0.05)
        self._words = np.array([f"q{each:x}" for each in draw.integers(0, 2**40, 4000)])
        self.day = 0

    def _drift(self):
        draw = self._draw
        self.day += 1
        self._popularity *= np.exp(draw.normal(0, 0.2, self._popularity.size))
        new = draw.integers(5, 25)  # items that come today, which are looked at more
        self._items = np.concatenate([self._items, self._items[-1] + 1 + np.arange(new)])
        self._popularity = np.concatenate(
            [self._popularity, draw.pareto(1.5, new).clip(max=60) + 1]
        )
        self._price = np.concatenate([self._price, np.exp(draw.normal(3, 1, new))])
        self._price *= np.where(draw.random(self._price.size) < 0.05, draw.uniform(0.7, 1.3), 1)
        gone = draw.random(self._users.size) < 0.05
        self._users[gone] = draw.integers(-(2**62), 2**62, gone.sum())
        self._countries *= np.exp(draw.normal(0, 0.06, self._countries.size))
        self._devices *= np.exp(draw.normal(0, 0.04, self._devices.size))
        self._clicked *= np.exp(draw.normal(0, 0.04))

    def next_day(self):
        """The records of the next day, as a table."""
        self._drift()
        draw = self._draw
        week = 1 + 0.12 * np.sin(2 * np.pi * self.day / 7)
        size = int(self.records * week * np.exp(draw.normal(0, 0.05)))
        hours = (0.3 + np.sin(np.pi * np.arange(24) / 24) ** 2) * np.exp(draw.normal(0, 0.05, 24))
        hour = draw.choice(24, size, p=hours / hours.sum())
        seconds = np.sort(hour * 3600 + draw.integers(0, 3600, size))

        def choice(values, weights):
            return draw.choice(values, size, p=weights / weights.sum())

        item = choice(np.arange(self._items.size), self._popularity)
        position = draw.geometric(0.25, size).clip(max=20)
        appeal = np.exp(-0.1 * position) * (1 + (item % 7 == 0))
        clicked = draw.random(size) < np.clip(self._clicked * appeal / appeal.mean(), 0, 1)
        bought = clicked & (draw.random(size) < 0.15)
        age = draw.normal(38, 12, size).clip(16, 90).astype(np.int64)
        dwell = np.where(
            clicked, np.exp(draw.normal(2.5, 1.2, size)), np.exp(draw.normal(0, 1, size))
        )
        offsets = np.concatenate([[0], np.cumsum(draw.poisson(3, size))])
        tags = draw.zipf(1.5, offsets[-1]).clip(max=300)
        return pa.table(
            {
                "event": pa.array([f"{self.day:04d}-{each:08d}" for each in range(size)]),
                "time": pa.array(BEGIN + 86_400 * self.day + seconds),
                "user": self._users[choice(np.arange(self._users.size), self._activity)],
                "item": self._items[item],
                "country": pa.array(choice(COUNTRIES, self._countries)),
                "device": pa.array(choice(DEVICES, self._devices)),
                "age": pa.array(age, mask=draw.random(size) < self._missing),
                "price": self._price[item].round(2),
                "position": position,
                "query": pa.array(choice(self._words, np.arange(1, 4001) ** -0.9)),
                "new_user": pa.array(draw.random(size) < 0.08),
                "tags": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tags)),
                "dwell": dwell,
                "clicked": clicked.astype(np.int64),
                "bought": bought.astype(np.float32),
            }
        )


# ---------------------------------------------------------------- faults


def put(table, name, column):
    column = pa.array(column) if isinstance(column, np.ndarray) else column
    return table.set_column(table.schema.get_field_index(name), name, column)


def ids(table, name):
    return table[name].to_numpy()


def _random(table):
    return np.random.default_rng(7).random(len(table))


FAULTS = {
    "the unit of prices": lambda t, _: put(t, "price", pc.multiply(t["price"], 100.0)),
    "miles for kilometres": lambda t, _: put(t, "dwell", pc.multiply(t["dwell"], 1.609)),
    "milliseconds for seconds": lambda t, _: put(t, "time", pc.multiply(t["time"], 1000)),
    "a column of nulls": lambda t, _: put(t, "age", pa.nulls(len(t), pa.int64())),
    "a tenth is missing": lambda t, _: put(
        t, "price", pa.array(ids(t, "price"), mask=_random(t) < 0.1)
    ),
    "users hashed anew": lambda t, _: put(t, "user", ids(t, "user") * 0x1E3779B97F4A7C15),
    "items numbered anew": lambda t, _: put(
        t, "item", np.random.default_rng(3).permutation(200_000)[ids(t, "item")]
    ),
    "labels late": lambda t, _: put(
        t, "bought", ids(t, "bought") * (_random(t) < 0.4).astype(np.float32)
    ),
    "labels all zero": lambda t, _: put(t, "clicked", np.zeros(len(t), np.int64)),
    "a constant column": lambda t, _: put(t, "device", pa.array(["web"] * len(t))),
    "another type": lambda t, _: put(t, "age", pc.cast(t["age"], pa.string())),
    "the day before again": lambda _, before: before,
    "the day twice": lambda t, _: pa.concat_tables([t, t]),
    "a day that ends at noon": lambda t, _: t.slice(0, len(t) * 45 // 100),
    "two columns changed places": lambda t, _: put(put(t, "user", t["item"]), "item", t["user"]),
    "like columns changed places": lambda t, _: put(
        put(t, "age", t["position"]), "position", t["age"]
    ),
    "ages of 999": lambda t, _: put(
        t, "age", pa.array(np.where(_random(t) < 0.03, 999, pc.fill_null(t["age"], 30).to_numpy()))
    ),
    "one price of a billion": lambda t, _: put(
        t, "price", np.where(np.arange(len(t)) == 5, 1e9, ids(t, "price"))
    ),
    "times of last week": lambda t, _: put(t, "time", pc.subtract(t["time"], 7 * 86_400)),
    "half of another day": lambda t, _: put(
        t, "time", ids(t, "time") + 86_400 * 3 * (_random(t) < 0.5)
    ),
    "a vocabulary doubled": lambda t, _: put(
        t,
        "country",
        pc.if_else(pa.array(_random(t) < 0.3), pc.utf8_lower(t["country"]), t["country"]),
    ),
    "a column is gone": lambda t, _: t.drop_columns(["query"]),
    "lists cut": lambda t, _: put(t, "tags", pc.list_slice(t["tags"], 0, 1)),
}
"""By name: a function of a day's table, and of the day's before, to the faulty one."""
