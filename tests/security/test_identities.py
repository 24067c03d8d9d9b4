"""Who has which certificate of a job on this machine, and where its processes listen."""

import dataclasses
import shutil
import stat

import pytest

from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto.identity import Caller, Identity, IdentityError
from shoal.security.identities import (
    client_identity,
    ensure,
    listening_address,
    own_identity,
    prepare,
)

CONFIG = JobConfig(
    model_def="a.b", training_data="x", servers="2", workers="3", token="t", tls="always"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A job folder whose temporary folder has a short path, as a user's has."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    made = JobFolder(tmp_path / "job")
    made.path.mkdir()
    temporary.make(made)
    yield made
    temporary.remove(made)


def names(folder):
    return sorted(path.name for path in folder.identities.iterdir())


ALL = ["authority.key", "client-0", "master-0", "ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]


def test_every_process_has_a_certificate_of_its_own_for_this_user_alone(folder):
    prepare(CONFIG, folder)
    assert names(folder) == ALL
    for path in [folder.identities, *folder.identities.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    server = own_identity(CONFIG, folder, "ps", 1)
    assert server.caller == Caller(CONFIG.job_id, "ps", 1)
    assert client_identity(CONFIG, folder).caller.role == "client"
    assert len({own_identity(CONFIG, folder, "worker", each).key for each in range(3)}) == 3
    assert listening_address(CONFIG, folder, "ps-1.0") == "127.0.0.1:0"


def test_a_job_that_goes_on_keeps_its_authority_and_has_new_certificates(folder):
    prepare(CONFIG, folder)
    key = folder.authority_key.read_bytes()
    before = own_identity(CONFIG, folder, "ps", 1)
    prepare(dataclasses.replace(CONFIG, workers="4"), folder)
    assert folder.authority_key.read_bytes() == key
    assert own_identity(CONFIG, folder, "ps", 1).key != before.key
    assert own_identity(CONFIG, folder, "worker", 3)


def test_a_worker_that_came_later_has_one_too(folder):
    prepare(CONFIG, folder)
    with pytest.raises(IdentityError, match="worker-7 of job"):
        own_identity(CONFIG, folder, "worker", 7)
    ensure(CONFIG, folder, "worker", 7)
    key = own_identity(CONFIG, folder, "worker", 7).key
    ensure(CONFIG, folder, "worker", 7)
    assert own_identity(CONFIG, folder, "worker", 7).key == key


def test_a_job_that_goes_on_leaves_no_certificate_of_before(folder):
    prepare(CONFIG, folder)
    ensure(CONFIG, folder, "worker", 7)
    prepare(CONFIG, folder)
    with pytest.raises(IdentityError, match="worker-7 of job"):
        own_identity(CONFIG, folder, "worker", 7)


def test_on_one_machine_sockets_take_the_place_of_certificates(folder):
    config = dataclasses.replace(CONFIG, tls="auto")
    prepare(CONFIG, folder)  # of an earlier run, which had them
    prepare(config, folder)
    assert not folder.identities.exists()
    assert own_identity(config, folder, "ps", 0) is None
    ensure(config, folder, "ps", 0)
    sockets = temporary.sockets(folder)
    assert listening_address(config, folder, "ps-0.0") == f"unix:{sockets}/ps-0.0"
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert stat.S_IMODE(sockets.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["long" * 20, "a#b", "a?b", "a%41b"])
def test_where_grpc_takes_no_sockets_there_are_certificates(tmp_path, monkeypatch, name):
    place = tmp_path / name
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    folder = JobFolder(tmp_path)
    temporary.make(folder)
    config = dataclasses.replace(CONFIG, tls="auto")
    prepare(config, folder)
    assert names(folder) == ALL
    assert own_identity(config, folder, "ps", 0) is not None
    assert listening_address(config, folder, "ps-0.0") == "127.0.0.1:0"


def test_a_folder_of_sockets_that_is_gone_is_no_reason_to_let_strangers_in(folder):
    config = dataclasses.replace(CONFIG, tls="auto")
    prepare(config, folder)
    shutil.rmtree(temporary.path_of(folder))
    with pytest.raises(IdentityError, match="folder of the job's sockets"):
        listening_address(config, folder, "ps-0.1")


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_of_sockets_that_others_may_enter_is_not_used(folder, mode):
    config = dataclasses.replace(CONFIG, tls="auto")
    prepare(config, folder)
    temporary.sockets(folder).chmod(mode)
    with pytest.raises(IdentityError, match="folder of the job's sockets"):
        listening_address(config, folder, "ps-0.1")


def test_never_means_neither(folder):
    config = dataclasses.replace(CONFIG, tls="never")
    prepare(config, folder)
    assert not folder.identities.exists()
    assert own_identity(config, folder, "ps", 0) is None
    assert listening_address(config, folder, "ps-0.0") == "127.0.0.1:0"


def test_a_pod_has_its_certificate_where_its_secret_is_mounted(folder, monkeypatch):
    config = dataclasses.replace(CONFIG, image="shoal:1", tls="auto")
    with pytest.raises(IdentityError, match=r"worker-1 of job .* cannot be read: .*/etc/shoal-id"):
        own_identity(config, folder, "worker", 1)
    prepare(CONFIG, folder)
    mounted = folder.identity_of("worker", 1)
    monkeypatch.setattr("shoal.security.identities.POD_FOLDER", str(mounted))
    assert own_identity(config, folder, "worker", 1) == Identity.load(
        mounted, Caller(config.job_id, "worker", 1)
    )
    assert own_identity(dataclasses.replace(config, tls="never"), folder, "worker", 1) is None


def test_what_is_wrong_is_said_in_a_sentence(folder):
    with pytest.raises(UserError, match=r"client-0 of job .* cannot be read"):
        client_identity(CONFIG, folder)
    folder.identities.mkdir()
    folder.authority_key.write_text("no key")
    with pytest.raises(UserError, match="key of the job's authority"):
        prepare(CONFIG, folder)
