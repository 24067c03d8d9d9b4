"""An Iceberg catalog, for the tests of tables."""

import pytest


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    """A catalog in SQLite, known to pyiceberg by variables."""
    catalogs = pytest.importorskip("pyiceberg.catalog")
    config = pytest.importorskip("pyiceberg.utils.config")
    for name, value in (
        ("TYPE", "sql"),
        ("URI", f"sqlite:///{tmp_path}/catalog.db"),
        ("WAREHOUSE", f"file://{tmp_path}/warehouse"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__SHOP__{name}", value)
    # It looks at the environment as it is imported.
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", config.Config())
    made = catalogs.load_catalog("shop")
    made.create_namespace("web")
    return made
