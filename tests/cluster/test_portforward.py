"""A connection that breaks says nothing on the terminal; what else goes wrong does."""

import socket
import threading

from kubernetes import client

from shoal.cluster.portforward import PortForward, quiet_where_connections_break


def test_only_the_librarys_broken_connections_are_passed_over(monkeypatch):
    told = []
    hook = quiet_where_connections_break(lambda died: told.append(str(died.exc_value)))
    monkeypatch.setattr(threading, "excepthook", hook)

    def run(source, name):
        space = {"__name__": name}
        exec(source, space)
        thread = threading.Thread(target=space["work"])
        thread.start()
        thread.join()

    run("def work():\n    raise ConnectionResetError('gone')", "kubernetes.stream.ws_client")
    assert told == []
    run("def work():\n    raise ValueError('a bug')", "kubernetes.stream.ws_client")
    run("def work():\n    raise ConnectionResetError('ours')", "shoal.own")
    assert told == ["a bug", "ours"]


def test_an_api_server_that_does_not_answer_once_does_not_hold_up_the_next_try():
    with socket.create_server(("127.0.0.1", 0)) as server:
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{server.getsockname()[1]}"
        forward = PortForward(client.ApiClient(configuration), "space", "pod", 1)
        tries = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        taken = []
        for each in tries:
            each.connect(forward.address.removeprefix("unix:"))
            taken.append(server.accept()[0])  # and never answered
        forward.close()
        for each in (*taken, *tries):
            each.close()


def test_no_thread_runs_on_after_the_end_which_could_abort_the_interpreter(monkeypatch):
    monkeypatch.setattr("shoal.cluster.portforward.CLOSE_SECONDS", 60.0)
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as tried:
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{server.getsockname()[1]}"
        forward = PortForward(client.ApiClient(configuration), "space", "pod", 1)
        tried.connect(forward.address.removeprefix("unix:"))
        taken = server.accept()[0]
        carrying = {*threading.enumerate()} - before
        breaks = threading.Timer(0.3, taken.close)
        breaks.start()
        forward.close()
        assert not any(each.is_alive() for each in carrying)
        breaks.join()
