"""Become a program whose whole network is one listening socket of somebody else's.

    unshare --net python alone.py CHANNEL PORT PROGRAM ...

Inside the new network there is only loopback. A socket that listens on its PORT is made here and
handed out over CHANNEL, where the recorder serves it; after its answer the program begins.

Invariant: what the program reaches, it reaches through that socket.
"""

import fcntl
import os
import socket
import struct
import sys

SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


def main() -> None:
    """Give the socket away, wait, go."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=128)
    socket.send_fds(channel, [b"listening"], [listener.fileno()])
    listener.close()
    if not channel.recv(1):
        sys.exit("nobody serves the socket")
    channel.close()
    os.execv(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
