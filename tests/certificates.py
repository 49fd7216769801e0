"""A certificate for localhost from an authority of its own, as a household makes one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path
    locked_key: Path  # the same, with a passphrase
    authority: Path

    @property
    def settings(self) -> tuple[str, str]:
        return f"server.tls_cert={self.cert}", f"server.tls_key={self.key}"

    @property
    def trusting(self) -> ssl.SSLContext:
        """For clients that know the authority."""
        return ssl.create_default_context(cafile=str(self.authority))


def make_certificate(directory: Path) -> Certificate:
    authority = trustme.CA()
    made = Certificate(*(directory / name for name in ("cert.pem", "key.pem", "locked.pem", "authority.pem")))
    issued = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(made.authority))
    issued.private_key_pem.write_to_path(str(made.key))
    made.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    made.locked_key.write_bytes(
        serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return made
