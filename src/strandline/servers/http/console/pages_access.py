"""The page of access control: rules, tokens and quotas."""

from typing import Any, Final

from strandline.errors import InvalidRequestError
from strandline.security.acl import OPERATIONS, Rule
from strandline.servers.http.console.formatting import parse_size
from strandline.servers.http.console.request import ConsoleRequest, ConsoleRoute, Page, Redirect

NOTES: Final = {
    "granted": "The rule was added.",
    "revoked": "The rule was removed.",
    "token-revoked": "The token was revoked.",
    "quota-set": "The quota was set.",
    "quota-removed": "The quota was removed.",
}
DAYS: Final = (
    ("", "never"),
    ("1", "1 day"),
    ("30", "30 days"),
    ("90", "90 days"),
    ("365", "1 year"),
)


def access_page(request: ConsoleRequest) -> Page:
    """Return the rules, the tokens and the quotas."""
    return Page("access.html", _values(request))


def _values(request: ConsoleRequest) -> dict[str, Any]:
    client = request.client
    rules = client.access.rules()
    tokens = client.access.tokens()
    quotas = client.quotas.list()
    return {
        "rules": rules,
        "tokens": tokens,
        "quotas": quotas,
        "operations": [(each, each) for each in ("read", "publish", "group", "admin")],
        "kinds": [(each, each) for each in OPERATIONS],
        "days": DAYS,
        "form": request.form,
        "now_ns": request.now_ns,
        "new_token": "",
        "note": NOTES.get(request.query["note"], ""),
    }


def grant(request: ConsoleRequest) -> Redirect:
    """Add a rule."""
    rule = _rule(request)
    request.client.access.grant(rule.principal, rule.operation, rule.kind, rule.pattern)
    return Redirect("/access?note=granted")


def revoke(request: ConsoleRequest) -> Redirect:
    """Remove a rule."""
    rule = _rule(request)
    request.client.access.revoke(rule.principal, rule.operation, rule.kind, rule.pattern)
    return Redirect("/access?note=revoked")


def _rule(request: ConsoleRequest) -> Rule:
    """Return the rule in a form; the client checks it as the CLI does."""
    form = request.form
    return Rule(
        form["principal"],
        form["operation"],  # type: ignore[arg-type]  # checked by the client
        form["kind"],  # type: ignore[arg-type]  # checked by the client
        form["pattern"],
    )


def create_token(request: ConsoleRequest) -> Page:
    """Create a token and show it this once: the broker stores its hash only."""
    principal, days = request.form["token_principal"], request.form.number("days")
    token = request.client.access.create_token(principal, days=days)
    return Page("access.html", {**_values(request), "new_token": token, "token_of": principal})


def revoke_token(request: ConsoleRequest) -> Redirect:
    """Revoke a token."""
    request.client.access.revoke_token(request.form["id"])
    return Redirect("/access?note=token-revoked")


def set_quota(request: ConsoleRequest) -> Redirect:
    """Set a principal's limits, replacing all earlier ones."""
    form = request.form
    if "quota_principal" not in form:
        raise InvalidRequestError("principal: name the principal to limit")
    sizes = {
        name: parse_size(form[name], name.replace("_", " "))
        for name in ("publish_bytes_per_s", "read_bytes_per_s")
        if name in form
    }
    counts = {name: form.number(name) or 0 for name in ("requests_per_s", "connections")}
    request.client.quotas.set(form["quota_principal"], **sizes, **counts)
    return Redirect("/access?note=quota-set")


def remove_quota(request: ConsoleRequest) -> Redirect:
    """Remove a principal's limits."""
    request.client.quotas.remove(request.form["quota_principal"])
    return Redirect("/access?note=quota-removed")


ROUTES = [
    ConsoleRoute("GET", "/access", access_page),
    ConsoleRoute("POST", "/access/grant", grant, access_page),
    ConsoleRoute("POST", "/access/revoke", revoke, access_page),
    ConsoleRoute("POST", "/access/create-token", create_token, access_page),
    ConsoleRoute("POST", "/access/revoke-token", revoke_token, access_page),
    ConsoleRoute("POST", "/access/set-quota", set_quota, access_page),
    ConsoleRoute("POST", "/access/remove-quota", remove_quota, access_page),
]
