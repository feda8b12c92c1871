"""An OpenID provider: its configuration and its public keys over HTTP, and tokens signed with the real private ones."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

AUDIENCE = "standfast"
KEY_BITS = 2048


class OIDCServer:
    """Serves the keys that it has at the moment; `requests` are the paths that were asked for."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.kid = ""
        self.rotate()
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,), name="oidc")

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    @property
    def jwks_url(self) -> str:
        return f"{self.issuer}/keys"

    def rotate(self) -> None:
        """A new key signs from now on, and the old ones are no longer published."""
        self.kid = f"key-{len(self.requests)}-{time.monotonic_ns()}"
        self.keys = {self.kid: rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """The claims of a good token, with changes; None leaves a claim out."""
        now = int(time.time())
        good = {"iss": self.issuer, "aud": AUDIENCE, "sub": "kim", "iat": now, "exp": now + 300, "groups": ["finance"]}
        return {name: value for name, value in {**good, **changes}.items() if value is not None}

    def token(self, *, kid: str | None = None, **changes: Any) -> str:
        """A token signed with the current key."""
        return jwt.encode(self.claims(**changes), self.keys[self.kid], "RS256", headers={"kid": kid or self.kid})

    def public_pem(self) -> bytes:
        """The current public key, as anybody can have it."""
        return (
            self.keys[self.kid]
            .public_key()
            .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Go down; stopping twice is stopping."""
        if self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
            self._listener.server_close()

    def _answer(self, path: str) -> dict[str, Any] | None:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.issuer, "jwks_uri": self.jwks_url}
        if path == "/keys":
            return {"keys": [self._public(kid) for kid in self.keys]}
        return None

    def _public(self, kid: str) -> dict[str, Any]:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.keys[kid].public_key(), as_dict=True)
        return {**public, "kid": kid, "use": "sig", "alg": "RS256"}

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                found = server._answer(self.path)
                body = json.dumps(found).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        return Handler
