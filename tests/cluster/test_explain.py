"""What the API server says, as a user reads it: one line, however much it says."""

import json

import pytest
from kubernetes.client.exceptions import ApiException

from shoal.cluster.api import LONGEST_MESSAGE, message_of
from shoal.cluster.explain import cannot_start, refused, unreachable

LONG = "spec.containers[0].env: Invalid value:\n" * 1000


def said(body, status=422, reason="Unprocessable Entity"):
    error = ApiException(status=status, reason=reason)
    error.body = body
    return error


def test_a_long_message_of_several_lines_becomes_one_line():
    told = message_of(said(json.dumps({"message": LONG})))
    assert told.startswith("spec.containers[0].env: Invalid value: spec.containers[0].env")
    assert told.endswith(" ...")
    assert len(told) == LONGEST_MESSAGE
    assert "\n" not in told


def test_a_short_message_is_told_whole():
    assert message_of(said(json.dumps({"message": "no room"}))) == "no room"


@pytest.mark.parametrize("body", [None, "<html>" * 1000, "[]", "null", "{}", '"text"', b"\xff"])
def test_a_body_that_is_no_message_of_the_api_is_not_told(body):
    assert message_of(said(body, 502, "Bad Gateway")) == "502 Bad Gateway"


def test_why_the_server_was_not_reached_is_one_line_as_well():
    assert message_of(OSError("no route\nto host")) == "no route to host"


@pytest.mark.parametrize(
    "error",
    [
        refused(said(json.dumps({"message": LONG})), "team", "job", "create the job"),
        unreachable(OSError(LONG)),
        cannot_start("image", "ErrImagePull", LONG),
        cannot_start("image", "CreateContainerError", LONG),
    ],
)
def test_what_is_to_be_done_stands_in_one_line_with_it(error):
    assert "\n" not in str(error)
    assert len(str(error)) < LONGEST_MESSAGE + 300


def test_the_reason_of_a_refusal_by_quota_is_found_in_a_long_message():
    message = 'pods "job-worker-0" is forbidden: exceeded quota: small, requested: ' + LONG
    told = str(refused(said(json.dumps({"message": message}), 403), "team", "job", "create it"))
    assert told.startswith("--namespace: the quota of team leaves no room")


def test_a_log_of_a_node_that_is_away_says_so():
    call = "https://10.0.0.1:10250/containerLogs/team/job-ps-0/ps"
    message = f'Get "{call}": dial tcp 10.0.0.1:10250: connect: connection refused'
    told = str(refused(said(json.dumps({"message": message}), 500), "team", "job", "read logs"))
    assert told.startswith("the node of this pod does not answer, so its log cannot be read now")
    assert message in told
