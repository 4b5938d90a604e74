"""What the description of the API can't say, so that the fuzzer does not mistake a good request for a bad one.

A schema counts characters where we count bytes, and knows nothing of two fields together.
"""

import re

import schemathesis

# Bytes at least and at most.
LIMITS = {"command": (1, 8000), "idempotency_key": (1, 256), "cwd": (1, 4096)}
SECRET_LIMITS = (8, 32768)
# What a pattern lets pass and is no host or no base64 after all: a good one stands for it.
WEBHOOK_URL = re.compile(r"""(https?://)(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?([/?][!-"$-~]*)?""", re.IGNORECASE)
WEBHOOK_URL_MAX = 2048
WEBHOOK_SECRET = re.compile(r"whsec_(?:[A-Za-z0-9+/]{4}){8,21}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def same_in_bytes(text, limits):
    """The text, or one of as many characters that are a byte each where bytes and characters differ over the limits."""
    if not isinstance(text, str):
        return text
    least, most = limits
    size = len(text.encode("utf-8", "surrogatepass"))
    if (least <= len(text) <= most) == (least <= size <= most):
        return text
    return "".join(char if char.isascii() else "0" for char in text)


def good_webhook(body):
    """Hosts and secrets of a webhook, where they fit the description."""
    url, secret = body.get("url"), body.get("secret")
    if isinstance(url, str) and len(url) <= WEBHOOK_URL_MAX and (fits := WEBHOOK_URL.fullmatch(url)):
        body["url"] = (fits[1] + "app.example.com" + (fits[2] or ""))[:WEBHOOK_URL_MAX]
    if isinstance(secret, str) and WEBHOOK_SECRET.fullmatch(secret):
        body["secret"] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@schemathesis.hook
def before_call(context, case, kwargs):
    body = case.body
    if not isinstance(body, dict):
        return
    good_webhook(body)
    for field, limits in LIMITS.items():
        if field in body:
            body[field] = same_in_bytes(body[field], limits)
    env, secret_env = body.get("env"), body.get("secret_env")
    if isinstance(secret_env, dict):
        for name, value in secret_env.items():
            secret_env[name] = same_in_bytes(value, SECRET_LIMITS)
        # A name stands in one of the two.
        for name in env.keys() & secret_env.keys() if isinstance(env, dict) else ():
            del env[name]
    credential = body.get("git_credential")
    if isinstance(credential, dict) and "password" in credential:
        credential["password"] = same_in_bytes(credential["password"], SECRET_LIMITS)
