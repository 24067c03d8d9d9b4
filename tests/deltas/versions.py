"""The rule by which TensorFlow Serving chooses a version, and what may be found then."""

from pathlib import Path


def whole(folder):
    """The numbers of the versions that are whole, rising: numbers are all that counts."""
    found = [each for each in Path(folder).iterdir() if each.name.isdecimal()]
    return sorted(int(each.name) for each in found if (each / "saved_model.pb").is_file())


def newest(folder):
    """The folder of the version that is served."""
    return Path(folder, str(max(whole(folder))))
