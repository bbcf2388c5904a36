"""What the two ends of a connection prove to each other: that they know one secret, and that these are their words.

The secret itself never travels. A client greets a server with a number of its own, and the server answers with one of
its own and the proof that it knows the secret: whoever has merely taken its port cannot. From both numbers and the
secret comes the key of what follows. Each request is numbered and signed, host and body included, and so is each
answer. What somebody on the way has changed, said again or made up is of no effect. It is not hidden from them.

No module but the standard library's: a server imports this, too.
"""

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from oblr.errors import SettingError

#: Tells a server which file has the secret.
VARIABLE = "OBLR_SERVER_TOKEN_FILE"
SETTING = "rollout.engines.server.token_file"
#: Answered by the server's guard, not by vLLM.
HELLO, CLAIM = "/oblr/hello", "/oblr/claim"
#: What a request has: whose it is and of which run, its number, its body's length and digest, and the proof.
SESSION, RUN, COUNT, BODY, PROOF = "x-oblr-session", "x-oblr-run", "x-oblr-count", "x-oblr-body", "x-oblr-proof"
#: Characters of a secret, which are hexadecimal digits.
LENGTH = 64


def make_secret(path: Path) -> None:
    """A new secret in a new file that its user alone may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(secrets.token_hex(LENGTH // 2))


def read_secret(path: Path) -> bytes:
    """The secret in a file.

    Raises:
        SettingError: there is none, or others may read or write it.
    """
    try:
        with path.open("rb") as file:
            status, text = os.fstat(file.fileno()), file.read(LENGTH + 1).strip()
    except OSError as error:
        raise SettingError(
            SETTING, f"{path}: {error.strerror}", "name the file that the server was started with"
        ) from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise SettingError(SETTING, f"{path} is not yours alone", f"chmod 600 {path}, or name another file")
    if len(text) != LENGTH or not all(character in b"0123456789abcdef" for character in text):
        raise SettingError(SETTING, f"{path} holds no token of {LENGTH} hexadecimal digits", f"remove {path}")
    return text


def secret_of(path: Path) -> bytes:
    """The secret in a file, which is made where it is not there."""
    if not path.exists():
        try:
            make_secret(path)
        except FileExistsError:  # somebody else has made it meanwhile
            pass
        except OSError as error:
            raise SettingError(SETTING, f"{path}: {error.strerror}", "name a file that can be written") from error
    return read_secret(path)


def sign(key: bytes, *parts: str) -> str:
    """HMAC-SHA256 of the parts, which nobody can cut otherwise."""
    message = b"".join(len(part).to_bytes(8) + part for part in map(str.encode, parts))
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def same(given: str, expected: str) -> bool:
    """Whether they are, in a time that does not tell how much of them is."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def greeting(secret: bytes, session: str, epoch: str) -> str:
    """A server's proof that it knows the secret."""
    return sign(secret, "server", session, epoch)


def key_of(secret: bytes, session: str, epoch: str) -> bytes:
    """Of all that a client and a server say to each other after the greeting."""
    return sign(secret, "key", session, epoch).encode()


def of_body(body: bytes) -> str:
    """Length and digest."""
    return f"{len(body)}-{hashlib.sha256(body).hexdigest()}"


def of_request(key: bytes, method: str, host: str, target: str, run: str, count: str, body: str) -> str:
    return sign(key, "request", method, host, target, run, count, body)


def of_reply(key: bytes, count: str, status: int, body: str) -> str:
    return sign(key, "reply", count, str(status), body)
