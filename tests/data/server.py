"""A server on this machine that can be told how to fail."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from threading import Event, Thread

Behaviour = Callable[[BaseHTTPRequestHandler, bytes], None]
"""How a request for a file is answered."""


@dataclass
class Server:
    """Files by their names, and how the next requests are answered: properly, where nothing else is said."""

    files: dict[str, bytes] = field(default_factory=dict)
    script: list[Behaviour] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """The name and the range of every request so far."""
    url: str = ""
    over: Event = field(default_factory=Event)


@contextmanager
def serving() -> Iterator[Server]:
    """A server for as long as it is needed."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = True
            name = self.path.rpartition("/")[2]
            server.asked.append((name, self.headers["Range"]))
            (server.script.pop(0) if server.script else properly)(self, server.files.get(name, b""))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_port}/"
        thread = Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            listening.shutdown()
            thread.join()


def answer(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """Send an answer; the length may be said to be another than that of the body."""
    handler.send_response(status)
    for name, value in ({"Content_Length": str(len(body))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def properly(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """All of the file, or what is asked of it."""
    asked = re.fullmatch(r"bytes=(\d+)-", handler.headers["Range"] or "")
    if not asked:
        return answer(handler, 200, body)
    start = int(asked[1])
    if start >= len(body):
        return answer(handler, 416, b"")
    return answer(handler, 206, body[start:], Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}")


def ignoring_ranges(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """All of the file, whatever is asked."""
    answer(handler, 200, body)


def from_elsewhere(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """Another range than the one that is asked for."""
    answer(handler, 206, body[1:], Content_Range=f"bytes 1-{len(body) - 1}/{len(body)}")


def cut(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """Three fifths of the file."""
    answer(handler, 200, body[: 3 * len(body) // 5], Content_Length=str(len(body)))


def cut_in_chunks(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """Three fifths of a file whose length is not said."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    some = body[: 3 * len(body) // 5]
    handler.wfile.write(b"%x\r\n%b\r\n" % (len(some), some))


def other_content(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """As many bytes, but others."""
    answer(handler, 200, bytes(255 - byte for byte in body))


def login_page(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """A page instead of the file."""
    answer(handler, 200, b"<html>Welcome</html>")


def hanging_up(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """Nothing at all."""


def status(code: int) -> Behaviour:
    """An error."""
    return lambda handler, body: answer(handler, code, b"no")


def silent(server: Server, *, after: float) -> Behaviour:
    """A fraction of the file, and then nothing for as long as the server lives."""

    def behave(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if after:
            answer(handler, 200, body[: int(after * len(body))], Content_Length=str(len(body)))
            handler.wfile.flush()
        server.over.wait()

    return behave


def endless(server: Server) -> Behaviour:
    """The file again and again, of a length that is not said."""

    def behave(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not server.over.is_set():
            try:
                handler.wfile.write(body)
            except OSError:  # nobody reads it any more
                return

    return behave


def saying(length: int) -> Behaviour:
    """The file, said to have another length."""
    return lambda handler, body: answer(handler, 200, body, Content_Length=str(length))


def dripping(server: Server) -> Behaviour:
    """One byte of the file after the other, without hurry."""

    def behave(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        answer(handler, 200, b"", Content_Length=str(len(body)))
        _drip(server, handler, (body[place : place + 1] for place in range(len(body))))

    return behave


def dripping_headers(server: Server) -> Behaviour:
    """One byte after the other of a header that does not end."""

    def behave(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        _drip(server, handler, repeat(b"x"))

    return behave


def continuing(server: Server) -> Behaviour:
    """A request to go on, again and again."""
    return lambda handler, body: _drip(server, handler, repeat(b"HTTP/1.1 100 Continue\r\n\r\n"))


def _drip(server: Server, handler: BaseHTTPRequestHandler, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        if server.over.wait(0.01):
            return
        try:
            handler.wfile.write(piece)
        except OSError:  # nobody reads it any more
            return


def escaping(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """An error in words that would change the colour of a terminal, and ring its bell."""
    handler.wfile.write(b"HTTP/1.1 404 \x1b[31mred\x07\r\nContent-Length: 0\r\n\r\n")


def redirecting(place: str) -> Behaviour:
    """Another address."""
    return lambda handler, body: answer(handler, 302, b"", Location=place)
