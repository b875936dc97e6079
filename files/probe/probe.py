# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests connections from inside the cluster; prints one line of JSON per request.

    probe.py '[{"do": "tcp", "to": "host:443", "proxy": "host:3128"},
               {"do": "get", "to": "http://...", "only": "DCGM_"},
               {"do": "post", "to": "http://...", "body": {...}}]'

An answer: ``{"n": 0, "ok": true, "status": 200, "text": "..."}`` or ``{"n": 0, "ok": false, "error": "..."}``, in any
order. "only": prefix or prefixes of the lines to print; "seconds": timeout of a request; "tries": number of attempts;
"token", "ca": files in the pod with a bearer token, which is never printed, and with the CA of the server's
certificate.
Python 3.8 or newer, standard library.
"""

import concurrent.futures
import json
import pathlib
import re
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request

LONGEST = 65536
"""Characters of an answer that are printed."""
WIDTH = 32
"""Requests at once."""


def tcp(request, seconds):
    """Connects to ``to``, through ``proxy`` if there is one, and returns the answer. OSError if no connection is
    made within ``seconds``."""
    host, _sep, port = request["to"].rpartition(":")
    proxy = request.get("proxy") or ""
    first = proxy.rpartition(":") if proxy else (host, "", port)
    with socket.create_connection((first[0], int(first[2])), timeout=seconds) as connection:
        if not proxy:
            return {"ok": True}
        connection.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        said = connection.recv(1024).decode("latin-1").split("\r\n")[0]
        if said.split(" ")[1:2] == ["200"]:
            return {"ok": True}
        return {"ok": False, "error": "the proxy says: " + (said or "nothing")}


def token(path):
    """Returns the token in a file. ValueError if the content cannot be a token, OSError if the file cannot be read."""
    found = pathlib.Path(path).read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", found):  # the library would print a header that it refuses
        raise ValueError(f"what {path} holds is no token")
    return found


def tls(ca):
    """Returns a context that accepts every certificate authority in the file ``ca`` that kubectl accepts: one without
    keyUsage, which Python refuses from 3.13 on, and one that another has signed, which it refuses before 3.13."""
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= 0x80000  # VERIFY_X509_PARTIAL_CHAIN, a name since 3.10
    return context


def http(request, seconds):
    """Sends a GET, or a POST if there is a ``body``, and returns the answer. HTTPError for status 400 and above,
    URLError without a connection."""
    body = request.get("body")
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(request["to"], data, {"Content-Type": "application/json"} if data else {})
    if request.get("token"):
        asked.add_unredirected_header("Authorization", "Bearer " + token(request["token"]))
    # Not through the proxy of the image's environment: all of this is inside the cluster.
    handlers = [urllib.request.ProxyHandler({})]
    if request.get("ca"):
        handlers.append(urllib.request.HTTPSHandler(context=tls(request["ca"])))
    opener = urllib.request.build_opener(*handlers)
    with opener.open(asked, timeout=seconds) as answer:
        text = answer.read().decode("utf-8", "replace")
        only = request.get("only")
        if only:
            starts = tuple([only] if isinstance(only, str) else only)
            text = "".join(line + "\n" for line in text.splitlines() if line.startswith(starts))
        return {"ok": True, "status": answer.status, "text": text[:LONGEST]}


def once(request):
    """Returns the answer to one attempt; errors become answers with ``ok`` false."""
    seconds = float(request.get("seconds", 10))
    try:
        return tcp(request, seconds) if request["do"] == "tcp" else http(request, seconds)
    except urllib.error.HTTPError as error:
        return {"ok": False, "status": error.code, "error": f"HTTP {error.code} {error.reason}"}
    except urllib.error.URLError as error:
        return {"ok": False, "error": str(error.reason)}
    except Exception as error:
        return {"ok": False, "error": str(error) or type(error).__name__}


def answer(number, request):
    """Repeats a request until it succeeds or its tries are used up, and prints the last answer with ``n`` =
    ``number``."""
    for left in range(int(request.get("tries", 1)) - 1, -1, -1):
        found = once(request)
        if found["ok"] or not left:
            break
        time.sleep(float(request.get("pause", 2)))
    print(json.dumps(dict(found, n=number)), flush=True)


def main():
    """Runs all requests of the first argument in parallel and prints ``gpuops: probe done`` at the end."""
    requests = json.loads(sys.argv[1])
    with concurrent.futures.ThreadPoolExecutor(max_workers=WIDTH) as pool:
        list(pool.map(answer, range(len(requests)), requests))
    print("gpuops: probe done", flush=True)


if __name__ == "__main__":
    main()
