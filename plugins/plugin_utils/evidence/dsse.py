# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signed envelopes by DSSE 1.0.0, with keys of ed25519 or ECDSA P-256. PRIVATE to the collection."""

from __future__ import annotations

import base64
import json
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    MISSING = ""
except ImportError as error:
    MISSING = str(error)

TYPE = "application/vnd.in-toto+json"
_KEYS = "an ed25519 or ECDSA P-256 key in PEM"


def signed_bytes(payload: bytes) -> bytes:
    """What is signed: the pre-authentication encoding of DSSE's protocol.md."""
    return b"DSSEv1 %d %s %d %s" % (len(TYPE), TYPE.encode(), len(payload), payload)


def _envelope(payload: bytes, signature: bytes) -> bytes:
    # without a keyid, which nothing protects
    document = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": TYPE,
        "signatures": [{"sig": base64.b64encode(signature).decode()}],
    }
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()


def seal(payload: bytes, pem: bytes, name: str) -> bytes:
    """The envelope of a payload, signed with a private key. ``name``: the key's, for messages. Raises InputError."""
    key = _key(lambda: serialization.load_pem_private_key(pem, None), name, "a private key without a passphrase: ")
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return _envelope(payload, key.sign(signed_bytes(payload)))
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return _envelope(payload, key.sign(signed_bytes(payload), ec.ECDSA(hashes.SHA256())))
    raise InputError(f"Cannot sign with {name}: it must be {_KEYS}.")


def unseal(data: bytes, pem: bytes, name: str) -> bytes:
    """The payload of an envelope that was signed with the private key of a public one. Raises InputError for any other,
    and for one that is not written byte by byte as ``seal`` does."""
    key = _key(lambda: serialization.load_pem_public_key(pem), name, "")
    try:
        document = json.loads(data)
        payload = base64.b64decode(document["payload"], validate=True)
        signature = base64.b64decode(document["signatures"][0]["sig"], validate=True)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise InputError("Refused: this is no signed envelope (DSSE), or it was changed.") from None
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, signed_bytes(payload))
        elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
            key.verify(signature, signed_bytes(payload), ec.ECDSA(hashes.SHA256()))
        else:
            raise InputError(f"Cannot verify with {name}: it must be {_KEYS}.")
    except InvalidSignature:
        raise InputError(f"Refused: it was not signed with the key of {name}, or it was changed.") from None
    if _envelope(payload, signature) != data:
        raise InputError("Refused: the envelope has other bytes than the one that was signed; it was changed.")
    return payload


def is_envelope(data: bytes) -> bool:
    """Whether these bytes are meant as an envelope."""
    try:
        return "payload" in json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return False


def _key(load: Any, name: str, kind: str) -> Any:
    if MISSING:
        raise InputError(
            f"Cannot use the key {name}: the Python library cryptography is missing on this machine ({MISSING}). "
            "Install it into the Python of ansible-playbook: pip install cryptography"
        )
    try:
        return load()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"Cannot use the key {name}: it must be {kind}{_KEYS}.") from None
