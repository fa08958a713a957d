"""The control plane's own certificate authority, made with openssl; valid for one year."""

import subprocess
from pathlib import Path
from typing import NamedTuple

_SELF_SIGNED = [
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-noenc",
    "-config",
    "/dev/null",
    "-days",
    "365",
]
_CA_EXTENSIONS = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")


class Pair(NamedTuple):
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; all files go into one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pair = self._make("ca", "/CN=resnetboost-test", *_CA_EXTENSIONS)

    def issue(self, user: str, group: str = "", addresses: str = "") -> Pair:
        """Issue a certificate for a user (Kubernetes reads CN and O), or for a server with addresses.

        Addresses are in openssl's syntax, such as `IP:127.0.0.1,DNS:localhost`.
        """
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        extensions = [f"subjectAltName={addresses}"] if addresses else []
        return self._make(user.rpartition(":")[2], subject, *extensions, authority=self.pair)

    def _make(self, name: str, subject: str, *extensions: str, authority: Pair | None = None) -> Pair:
        made = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        command: list[str | Path] = [
            "openssl",
            *_SELF_SIGNED,
            "-subj",
            subject,
            "-out",
            made.certificate,
            "-keyout",
            made.key,
        ]
        if authority:
            command += ["-CA", authority.certificate, "-CAkey", authority.key]
        for extension in extensions:
            command += ["-addext", extension]
        subprocess.run(command, check=True, capture_output=True)
        return made
