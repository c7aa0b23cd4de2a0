"""What a rank reaches without a proxy, whatever its environment names."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def exempted(env: Mapping[str, str], addresses: Sequence[str]) -> dict[str, str]:
    """Return the variables that exempt addresses from proxies, and all that was exempted before.

    Programs read either spelling; each gets what the other had, since one that is set hides the
    other. gRPC reads ``no_grpc_proxy`` instead where there is one.
    """
    if not addresses:
        return {}
    lower, upper = env.get("no_proxy"), env.get("NO_PROXY")
    before = {"no_proxy": lower or upper, "NO_PROXY": upper or lower}
    if env.get("no_grpc_proxy"):
        before["no_grpc_proxy"] = env["no_grpc_proxy"]
    return {name: ",".join(filter(None, (value, *addresses))) for name, value in before.items()}
