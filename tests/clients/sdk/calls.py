"""Makes calls with the provider's own SDK, unchanged: each line of stdin is a call in JSON, each line of stdout its outcome.

    calls.py HOST KEY
    > {"call": "get", "box": "bx_8bhkse3n"}
    < {"returned": "BoxInfoResponse", "value": {"ok": true, ...}}
    < {"raised": "NotFoundException", "status": 404, "code": "box_not_found", "envelope": "ErrorEnvelope"}
"""

import json
import sys

from ascii_box_sdk import ApiClient, BoxApi, Configuration, box_helpers
from ascii_box_sdk.exceptions import ApiException
from ascii_box_sdk.models.command_request import CommandRequest


def make(api, call):
    name, box = call["call"], call["box"]
    if name == "get":
        return api.get(box)
    if name == "command":
        return api.command(box, CommandRequest.from_dict(call["request"])).actual_instance
    if name == "command_unchecked":
        # Past the SDK's own look at the values.
        return api.command(box, CommandRequest.model_construct(**call["request"])).actual_instance
    if name == "command_status":
        return api.command_status(box, call["process"], tail_bytes=call.get("tailBytes"))
    if name == "wait_until_ready":
        return box_helpers.wait_until_ready(api, box, timeout_seconds=60, poll_interval_seconds=0.05)
    raise ValueError(f"no such call: {name}")


def outcome(api, call):
    try:
        value = make(api, call)
    except ApiException as error:
        data = error.data
        return {
            "raised": type(error).__name__,
            "status": error.status,
            "code": getattr(data, "code", None),
            "envelope": type(data).__name__,
        }
    except RuntimeError as error:
        return {"raised": type(error).__name__, "text": str(error)}
    return {"returned": type(value).__name__, "value": json.loads(value.to_json())}


def main(host, key):
    api = BoxApi(ApiClient(Configuration(host=host, access_token=key)))
    for line in sys.stdin:
        print(json.dumps(outcome(api, json.loads(line))), flush=True)


main(*sys.argv[1:])
