"""TLS contexts: of a listener, and of a client that trusts one certificate alone."""

from __future__ import annotations

import ssl

from handrail.errors import UsageError


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """The context of a listener, from a certificate chain and its key; raises UsageError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a password is refused: asking for it would stop the server at its terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:  # an SSLError is one
        reason = error.strerror or str(error)
        raise UsageError(
            f"the certificate {certificate} with the key {key} cannot be used: {reason}; both are"
            " PEM files, and the key has no password"
        ) from None
    return context


def _no_password() -> str:
    raise UsageError("the key of --tls-key has a password; give a key without one")


def pinned_context(certificate: str) -> ssl.SSLContext:
    """The context of a client for the one server that has this certificate, given as PEM text.

    Names are not compared: the certificate itself says which server it is, self-signed or not.
    No other certificate is trusted, whatever authority has signed it.  Raises UsageError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    try:
        # The first is the server's; a chain may follow, which would vouch for others as well.
        own, end, _ = certificate.partition("-----END CERTIFICATE-----")
        context.load_verify_locations(cadata=own + end)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"the pinned certificate is no PEM text of one: {error}") from None
    # The certificate of a server is trusted for itself, without the authority that signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
