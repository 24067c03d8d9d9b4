"""A connection that breaks says nothing on the terminal; what else goes wrong does."""

import threading

from shoal.cluster.portforward import quiet_where_connections_break


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
