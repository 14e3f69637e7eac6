"""Socket and certificate of the planner, and the check against open access."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import resource
import socket
from pathlib import Path

from flyball_server.serving.certificate import CertificateError, load_certificate
from flyball_server.settings import Settings
from flyball_wire.command.command import BAD_INPUT, NOT_NOW, CommandError

# For TLS 1.2; TLS 1.3 has forward secrecy with every cipher.
TLS_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
# Open files of a planner beside its connections.
_OTHER_FILES = 512


def listening_socket(settings: Settings) -> socket.socket:
    """Return a socket that is bound to the settings' address and does not listen yet.

    Raises:
        CommandError: it cannot be bound.
    """
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise CommandError(f"cannot listen on {where}: {error}; give another --host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise CommandError(
            f"cannot listen on {where}: {error.strerror}; give another --port or --host",
            status=NOT_NOW if error.errno == errno.EADDRINUSE else BAD_INPUT,
        ) from None
    return listener


def address_of(listener: socket.socket, settings: Settings) -> str:
    """Return the planner's address for clients."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def must_ask(listener: socket.socket, settings: Settings) -> bool:
    """Return whether tokens are required: other machines can reach the planner."""
    is_loopback = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
    return not is_loopback and not settings.allow_open


def check_operator_has_a_token(address: str, *, has_operator: bool, has_tokens: bool) -> None:
    """Check that an operator's token exists.

    Raises:
        CommandError: there is none.
    """
    if has_operator:
        return
    make = "create a token with `flyball token create --operator` or set FLYBALL_TOKEN"
    if has_tokens:
        raise CommandError(
            f"no token is an operator's, so nobody could operate the planner at {address}: {make}"
        )
    raise CommandError(
        f"anyone who reaches {address} could change plans: {make}; --allow-open or"
        f" FLYBALL_ALLOW_OPEN=1 disables authentication"
    )


def check_certificate(
    settings: Settings,
    *,
    certificate_name: str = "FLYBALL_TLS_CERTIFICATE",
    key_name: str = "FLYBALL_TLS_KEY",
) -> None:
    """Check that the certificate and its key can be loaded.

    Args:
        settings: settings that name the files.
        certificate_name: option or variable of the certificate.
        key_name: option or variable of the key.

    Raises:
        CommandError: they cannot be loaded; it names the file.
    """
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None or key is None:
        return
    try:
        load_certificate(Path(certificate), Path(key))
    except CertificateError as error:
        if error.file is None:
            raise CommandError(f"{certificate_name}, {key_name}: {error}") from None
        name = certificate_name if error.file == Path(certificate) else key_name
        raise CommandError(f"{name}: {error.file}: cannot be read ({error.reason})") from None


def raise_file_limit(settings: Settings) -> None:
    """Raise the limit of open files to the limit of connections, as far as permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
