"""The secret of a fleet, the key of each share, and the tokens that drivers sign.

A node has the key of its own share, HMAC(secret, share), so what one node knows opens no other.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time


def new_secret() -> str:
    """32 random bytes, as text."""
    return secrets.token_hex(32)


def share_key(secret: str, share: str) -> str:
    """The key of one share, as text."""
    return hmac.new(bytes.fromhex(secret), share.encode(), hashlib.sha256).hexdigest()


def sign(key: str, share: str, tenant: str, ttl: float) -> str:
    """A token for the server of a share; "" as tenant: for all of them, and for what is shared."""
    import jwt

    now = int(time.time())
    claims: dict[str, object] = {"aud": share, "iat": now, "exp": now + max(1, int(ttl))}
    if tenant:
        claims["sub"] = tenant
    return jwt.encode(claims, key, algorithm="HS256")
