"""Keeps what pods say to each other, as somebody sees it who is root on the node."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import socket
import struct
import threading

from tests.kubernetes.conftest import kubectl

ALL_PROTOCOLS, IPV4, TCP = 3, 0x0800, 6
ETHERNET_BYTES, LONGEST_PACKET = 14, 1 << 17
TYPE, PROTOCOL, SOURCE, DESTINATION = 12, 23, 26, 30
"""Places in a packet of IPv4 with its Ethernet header."""

SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
SOL_PACKET, PACKET_STATISTICS = 263, 6
BUFFER_BYTES = 64 << 20


def addresses_of_cluster():
    """(network of the pods, address of the node), as there is one node."""
    path = "jsonpath={.items[0].spec.podCIDR} {.items[0].status.addresses[0].address}"
    network, node = kubectl("get", "nodes", "-o", path).split()
    return ipaddress.ip_network(network), ipaddress.ip_address(node)


def between_pods(network, node):
    """A packet filter of the kernel that passes TCP from a pod to a pod, as its bytes.

    Not what comes from the node or goes there, which may have an address in the network: that is
    more, the API server's above all.
    """
    take, give_up = 0xFFFFFFFF, 0
    load_half, load_byte, load_word, mask, jump, end = 0x28, 0x30, 0x20, 0x54, 0x15, 0x06
    # (operation, operand, whether it has to be equal)
    checks = [(load_half, TYPE, None), (jump, IPV4, True)]
    checks += [(load_byte, PROTOCOL, None), (jump, TCP, True)]
    for place in (SOURCE, DESTINATION):
        checks += [(load_word, place, None), (jump, int(node), False)]
        checks += [(mask, int(network.netmask), None), (jump, int(network.network_address), True)]
    program = []
    for number, (operation, operand, equal) in enumerate(checks):
        away = len(checks) - number  # over the rest and the one that takes
        jumps = {None: (0, 0), True: (0, away), False: (away, 0)}[equal]
        program.append((operation, *jumps, operand))
    program += [(end, 0, 0, take), (end, 0, 0, give_up)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


class Capture:
    """All packets of TCP between pods while it is entered, whatever their ports."""

    def __init__(self):
        self._packets, self._over = [], threading.Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.settimeout(0.5)
        program = between_pods(*addresses_of_cluster())
        code = ctypes.create_string_buffer(program, len(program))
        attached = struct.pack("HL", len(program) // 8, ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, attached)
        self._thread = threading.Thread(target=self._read)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        counted = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        self.passed, self.lost = struct.unpack("II", counted)
        self._socket.close()

    def _read(self):
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                self._packets.append(self._socket.recv(LONGEST_PACKET))

    def between(self, addresses):
        """(port, packet) of each packet between two of these addresses; the server's port."""
        packed = {socket.inet_aton(address) for address in addresses}
        found = []
        for packet in self._packets:
            ends = packet[SOURCE : SOURCE + 4], packet[DESTINATION : DESTINATION + 4]
            if packed.issuperset(ends):
                header = ETHERNET_BYTES + 4 * (packet[ETHERNET_BYTES] & 0x0F)
                found.append((min(struct.unpack_from("!HH", packet, header)), packet))
        return found


def addresses_of(namespace, job):
    """Addresses of a job's pods, by their names."""
    found = kubectl("get", "pods", "-l", f"shoal.dev/job={job}", "-o", "json", namespace=namespace)
    return {
        pod["metadata"]["name"]: pod["status"]["podIP"]
        for pod in json.loads(found)["items"]
        if pod["status"].get("podIP")
    }
